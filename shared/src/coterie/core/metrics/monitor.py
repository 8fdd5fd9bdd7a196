"""The measure that a run is chosen by, and which way it is better. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Monitor:
    """A measure of validation: rounds, checkpoints and settings are chosen by it.

    Attributes:
        key: its name among the scalars of a round, as ``eval/ndcg@20``.
        lower_is_better: as for a loss or an RMSE.
        digits: decimals that count; scores that agree in them are a tie, which the earlier round
            wins. None compares all digits.

    Example:
        >>> rmse = Monitor("eval/rmse", lower_is_better=True, digits=2)
        >>> rmse.better(0.91, than=0.95), rmse.better(0.949, than=0.95), rmse.best([0.9, 0.8])
        (True, False, 0.8)
    """

    key: str
    lower_is_better: bool = False
    digits: int | None = None

    @property
    def summary(self) -> Literal["min", "max"]:
        """Which end of a curve is its best one."""
        return "min" if self.lower_is_better else "max"

    def better(self, score: float, than: float) -> bool:
        """Whether a score beats another; NaN beats nothing, and any number beats NaN."""
        if math.isnan(score) or math.isnan(than):
            return not math.isnan(score)
        if self.digits is not None:
            score, than = round(score, self.digits), round(than, self.digits)
        return score < than if self.lower_is_better else score > than

    def best(self, scores: Iterable[float]) -> float:
        """Give the best of some scores, all their digits counted; NaN where there is none."""
        known = [score for score in scores if not math.isnan(score)]
        if not known:
            return math.nan
        return min(known) if self.lower_is_better else max(known)


VALIDATION, START = "eval/", "start/"
"""How names begin of what is measured after a round, and before the first one of a block."""


def of_start(key: str) -> str:
    """Name what is measured of the model that a block starts from.

    Example:
        >>> of_start("eval/auc")
        'start/auc'
    """
    return key.replace(VALIDATION, START, 1)
