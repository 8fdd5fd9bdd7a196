"""Answers that were left out: a warning names the client, the journal counts them."""

from __future__ import annotations

import logging

from coterie.core.callbacks.contract import RoundCallback, Rounds

logger = logging.getLogger(__name__)


class Refusals(RoundCallback):
    """Warn once for every (client, step) that was left out.

    The count of each round is ``fed/refused``. Ids stay in this process's warnings: no logger
    gets them.

    Args:
        named: at most so many warnings a round; the rest is summed up in one line.
    """

    def __init__(self, named: int = 10) -> None:
        self.named = named
        self._seen: set[tuple[int, str]] = set()

    def note(self, run: Rounds) -> None:
        """Warn and count."""
        run.journal.scalar("fed/refused", len(run.journal.refused))
        new = {
            (client, step): why
            for step, client, why in run.journal.refused
            if (client, step) not in self._seen
        }
        for (client, _), why in list(new.items())[: self.named]:
            logger.warning("client %d left out of round %d: %s", client, run.round, why)
        if len(new) > self.named:
            logger.warning("%d more left out of round %d", len(new) - self.named, run.round)
        self._seen |= new.keys()
