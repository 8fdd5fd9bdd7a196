"""The client half of methods whose server must know how much data all clients hold together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.fit import Params
from coterie.core.methods.kit.model_client import OwnModel
from coterie.core.protocol.client import step
from coterie.core.protocol.messages import Report, Reveals, leaves
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class Size(Report):
    """How much data a client holds; stacked over C clients."""

    samples: Tensor = leaves("number of samples n_i", reveals=Reveals.STEPS)  # (C,) int64


def anew(summed: Params, own: Tensor, block: int) -> Params:
    """Set to 0 what clients summed up in another block.

    Args:
        summed: each ``(C, ...)``.
        own: ``(C,)`` int64, the block that each client has it from.
        block: number of the block.

    Example:
        >>> anew({"c": torch.ones(2)}, torch.tensor([0, 1]), 1)["c"].tolist()
        [0.0, 1.0]
    """
    return tree.where_rows(own == block, summed, tree.map_tensors(torch.zeros_like, summed))


class TellsSize:
    """Adds to a client the step that tells its number of samples."""

    @step
    def size(self, down: None, mine: OwnModel, data: SplitSamples, key: Key) -> tuple[Size, None]:
        """Tell the number of training samples."""
        return Size(data.lengths), None
