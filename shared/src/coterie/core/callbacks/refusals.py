"""Answers that were left out: a warning names the client, the journal counts them."""

from __future__ import annotations

import logging
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from coterie.core.callbacks.contract import rounds_of

logger = logging.getLogger(__name__)


class Refusals(Callback):
    """Warn once for every (client, step) that was left out; list it before the loggers.

    The count of each round is ``fed/refused``. Ids stay in this process's warnings: no logger
    gets them.

    Args:
        named: at most so many warnings a round; the rest is summed up in one line.
    """

    def __init__(self, named: int = 10) -> None:
        self.named = named
        self._seen: set[tuple[int, str]] = set()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Warn and count."""
        rounds = rounds_of(pl_module)
        rounds.journal.scalar("fed/refused", len(rounds.journal.refused))
        new = {
            (client, step): why
            for step, client, why in rounds.journal.refused
            if (client, step) not in self._seen
        }
        for (client, _), why in list(new.items())[: self.named]:
            logger.warning("client %d left out of round %d: %s", client, rounds.round, why)
        if len(new) > self.named:
            logger.warning("%d more left out of round %d", len(new) - self.named, rounds.round)
        self._seen |= new.keys()
