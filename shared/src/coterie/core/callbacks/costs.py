"""What a round cost: bytes in both directions, local steps and wall time."""

from __future__ import annotations

import time

from coterie.core.callbacks.contract import RoundCallback, Rounds

DIRECTIONS = ("up", "down")


class Costs(RoundCallback):
    """Note ``cost/*`` of every round in the journal.

    Bytes are the ledger's; a round's own bytes are what was added since the round before, so that
    what is exchanged between blocks counts too.

    Attributes:
        seconds: wall time of all rounds so far, those before a resume included.
        local_steps: the same of local steps.
    """

    kept = ("seconds", "local_steps")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.local_steps = 0.0
        self._bytes = dict.fromkeys(DIRECTIONS, 0)
        self._began = time.perf_counter()

    def start(self, run: Rounds) -> None:
        """Start from what the ledger holds already (a resumed run)."""
        self._bytes = {way: run.ledger.bytes(way) for way in DIRECTIONS}

    def before_round(self, run: Rounds) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def note(self, run: Rounds) -> None:
        """Note the costs."""
        seconds = time.perf_counter() - self._began
        self.seconds += seconds
        for way in DIRECTIONS:
            total = run.ledger.bytes(way)
            run.journal.scalar(f"cost/{way}_bytes", total - self._bytes[way])
            run.journal.scalar(f"cost/{way}_bytes_total", total)
            self._bytes[way] = total
        steps = run.journal.scalars.get("cost/local_steps")
        if steps is not None:
            self.local_steps += steps
            run.journal.scalar("cost/local_steps_total", self.local_steps)
        run.journal.scalar("cost/seconds", seconds)
        run.journal.scalar("cost/seconds_total", self.seconds)
