"""Training that did not come to numbers, for clients whose agents must learn of it."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from coterie.core.local_training.fit import Fitted
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.evaluation import Quality
from coterie.core.protocol.expected import PLAUSIBLE


def has_diverged(fitted: Fitted, quality: Quality) -> Tensor:
    """Whose training did not come to plausible numbers, ``(C,)`` bool.

    A finite model whose loss is NaN does not count as such and is refused: nearly always it was
    measured on samples that are no numbers.
    """
    found = ~fitted.loss.isfinite() | quality.loss.isinf()
    for value in fitted.params.values():
        found |= ~(value.flatten(1).norm(dim=1) <= PLAUSIBLE.norm)  # NaN compares as false
    return found


def restored(diverged: Tensor, fitted: Fitted, start: Params) -> Fitted:
    """Put what training began with in the place of the models that ``diverged``, ``(C,)`` bool."""
    if not bool(diverged.any()):
        return fitted
    rows = diverged.nonzero().flatten()
    params = {
        name: value.index_copy(0, rows, start[name].index_select(0, rows))
        for name, value in fitted.params.items()
    }
    return replace(fitted, params=params, loss=fitted.loss.masked_fill(diverged, 0.0))
