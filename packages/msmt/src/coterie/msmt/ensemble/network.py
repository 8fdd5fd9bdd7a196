"""Two networks of one form as one: what a scenario of the method ``ensemble`` predicts with."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from coterie.core.local_training.row_optimizer import Params
from coterie.msmt.ensemble.mixture import Mixture
from coterie.msmt.models.base import Batch, MultiTask

OWN, PARTNER = "own.", "partner."
"""Before the names of the two networks' tensors."""


class Ensemble(MultiTask):
    """The scenario's own network and its partner, whose logits are added up for each task.

    Args:
        form: a network, whose values do not matter.

    Example:
        >>> from coterie.msmt.data.task import Schema
        >>> from coterie.msmt.models.mmoe import MMoE
        >>> from coterie.msmt.settings import ModelSettings
        >>> schema = Schema(("ctr",), ("NL",), (10,), 0)
        >>> two = Ensemble(MMoE(schema, ModelSettings(name="mmoe"))).eval()
        >>> batch = {"ids": torch.zeros(3, 1, dtype=torch.int64), "numbers": torch.zeros(3, 0)}
        >>> bool(torch.allclose(two.logits(batch), two.own.logits(batch)))  # both are the form
        True
    """

    slopes: Tensor
    offset: Tensor

    def __init__(self, form: MultiTask) -> None:
        super().__init__(form.schema)
        self.own, self.partner = copy.deepcopy(form), copy.deepcopy(form)
        like, tasks = next(form.parameters()), form.schema.n_tasks
        self.register_buffer("slopes", like.new_full((2, tasks), 0.5))
        self.register_buffer("offset", like.new_zeros(tasks))

    def logits(self, batch: Batch) -> Tensor:
        """Logits of the tasks' probabilities, ``(B, T)``."""
        own, partner = self.own.logits(batch), self.partner.logits(batch)
        return self.slopes[0] * own + self.slopes[1] * partner + self.offset


def joined(own: Params, partner: Params, found: list[Mixture]) -> Params:
    """Put the tensors of both networks and of the mixtures under their names in an `Ensemble`.

    Args:
        own: parameters and running statistics, each ``(C, ...)``.
        partner: the same of the other network.
        found: C mixtures.
    """
    like = next(value for value in own.values() if value.is_floating_point())
    return {
        **{OWN + name: value for name, value in own.items()},
        **{PARTNER + name: value for name, value in partner.items()},
        "slopes": torch.stack([each.slopes for each in found]).to(like),
        "offset": torch.stack([each.offset for each in found]).to(like),
    }
