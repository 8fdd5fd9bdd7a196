"""What a logger may know of rounds beside their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch.loggers import Logger
from torch import Tensor

from coterie.core.run.driver import FederatedRun

Measured = Mapping[str, tuple[Tensor, Tensor]]
"""Measurements of clients: name -> ids and values, both ``(R,)``."""


class RoundLogger(Logger):
    """A logger of Lightning that goes on with a resumed run, and may log what clients measured.

    Any other logger gets the numbers of each round alone. What it logs belongs to the round in
    which the run stands, whatever Lightning counts.

    Attributes:
        run: that is logged, once it has begun.
    """

    run: FederatedRun

    def begin(self, run: FederatedRun) -> None:
        """Start, or go on after the round in which the run stands."""
        self.run = run

    def log_clients(self, measured: Measured, step: int) -> None:
        """Log what each client measured in a round. Default: nothing."""

    def end_round(self) -> None:
        """Take note that nothing comes to the newest round any more. Default: nothing."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know: plain values. Default: nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave. Default: nothing."""
