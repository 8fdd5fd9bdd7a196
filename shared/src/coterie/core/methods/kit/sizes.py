"""Methods whose server must know how much data all clients hold together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.model_messages import OwnModel
from coterie.core.methods.kit.model_server import ServerModel
from coterie.core.methods.kit.uploads import counted
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.messages import Report, Step
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class Size(Report):
    """How much data a client holds; stacked over C clients."""

    samples: Tensor = counted("number of samples n_i")  # (C,) int64


SIZE = Step("size", None, Size)


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

    @SIZE
    def size(self, down: None, mine: OwnModel, data: SplitSamples, key: Key) -> tuple[Size, None]:
        """Tell the number of training samples."""
        return Size(data.lengths), None


@dataclass(frozen=True)
class Sizes:
    """How much data the clients of a block hold.

    Attributes:
        asked: clients that were asked.
        clients: those of them with data; N or m in the papers.
        samples: of all together.
    """

    asked: int = 0
    clients: int = 0
    samples: int = 0

    def total(self, weighting: str) -> int:
        """Sum of the weights of all clients, by "samples" or "equal"."""
        return self.samples if weighting == "samples" else self.clients


@dataclass(frozen=True, kw_only=True)
class SizedModel(ServerModel):
    """State of the server.

    Attributes:
        sizes: of the clients.
        block: number of the block.
    """

    sizes: Sizes = Sizes()
    block: int = 0


def ask_sizes(cohort: Cohort) -> Sizes:
    """Ask every client for its number of samples.

    What a server and its clients sum up over rounds is of the data of a block: in the next one a
    client may hold more, and would count otherwise. So these sums begin anew with each block, on
    the server in `start_block` and, as the block is sent along, on the clients (`anew`).
    """
    up = cohort.ask(SIZE, None).up
    if up is None:
        return Sizes(len(cohort))
    return Sizes(len(cohort), int((up.samples > 0).sum()), int(up.samples.sum()))
