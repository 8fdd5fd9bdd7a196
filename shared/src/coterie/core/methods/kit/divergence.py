"""Training that did not come to numbers, for clients whose agents must learn of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from torch import Tensor

from coterie.core.local_training.fit import Fitted, Params
from coterie.core.methods.kit.evaluation import Quality


class Diverging(Protocol):
    """An upload that says whether its training diverged."""

    @property
    def diverged(self) -> Tensor:
        """Whose training diverged, ``(C,)`` bool."""


def has_diverged(fitted: Fitted, quality: Quality) -> Tensor:
    """Whose training did not come to numbers, ``(C,)`` bool.

    A finite model whose loss is NaN does not count as such and is refused: nearly always it was
    measured on samples that are no numbers.
    """
    found = ~fitted.loss.isfinite() | quality.loss.isinf()
    for value in fitted.params.values():
        found |= ~value.flatten(1).isfinite().all(1)
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


def told_divergence(up: Diverging) -> Tensor:
    """Whose upload says that its training ``diverged``, ``(C,)`` bool; for `Cohort.ask`."""
    return up.diverged


__all__ = ["has_diverged", "restored", "told_divergence"]
