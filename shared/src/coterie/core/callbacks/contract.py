"""What the logging callbacks read from the module that runs the rounds."""

from __future__ import annotations

from typing import Protocol, cast

from lightning import LightningModule

from coterie.core.federation.ledger import Ledger
from coterie.core.protocol.journal import Journal


class Rounds(Protocol):
    """A module whose training step is one communication round.

    Attributes:
        journal: what the round measured, still full in ``on_train_batch_end``.
        ledger: bytes since the start of the run.
        round: rounds done so far over all blocks, so 1 after the first step.
        block: the data block of that round, from 0.
        finished: whether that round was the last one.
        reopened: whether the round restored was the last one before the run got more rounds.
    """

    journal: Journal
    ledger: Ledger
    round: int
    block: int
    finished: bool
    reopened: bool


def rounds_of(module: LightningModule) -> Rounds:
    """View a Lightning module as the source of rounds.

    Raises:
        TypeError: an attribute that the callbacks read is missing.
    """
    missing = [name for name in Rounds.__annotations__ if not hasattr(module, name)]
    if missing:
        raise TypeError(f"{type(module).__name__} runs no rounds: it lacks {', '.join(missing)}")
    return cast(Rounds, module)
