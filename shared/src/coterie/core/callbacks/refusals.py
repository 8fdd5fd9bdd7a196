"""Answers that were left out: a warning names the client, the journal counts them."""

from __future__ import annotations

import logging

from coterie.core.callbacks.contract import RoundCallback, Rounds

logger = logging.getLogger(__name__)
_NAMED = 10  # warnings of a round; the rest is summed up in one line


class Refusals(RoundCallback):
    """Warn once for every (client, step) that was left out.

    The count of each round is ``fed/refused``. Ids stay in this process's warnings, a few a round:
    no logger gets them.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[int, str]] = set()

    def note(self, run: Rounds) -> None:
        """Warn and count."""
        run.journal.scalar("fed/refused", len(run.journal.refused))
        new = {
            (client, step): why
            for step, client, why in run.journal.refused
            if (client, step) not in self._seen
        }
        for (client, _), why in list(new.items())[:_NAMED]:
            logger.warning("client %d left out of round %d: %s", client, run.round, why)
        if len(new) > _NAMED:
            logger.warning("%d more left out of round %d", len(new) - _NAMED, run.round)
        self._seen |= new.keys()
