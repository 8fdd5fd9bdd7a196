"""Numbers that callbacks add to the journal of a round, before it is logged."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import lightning

from coterie.core.engines.nodes import Nodes
from coterie.core.errors import UserError
from coterie.core.metrics.monitor import Monitor, of_start
from coterie.core.privacy.budget import Budget
from coterie.core.run.driver import FederatedRun
from coterie.core.run.metrics_file import STREAM
from coterie.core.settings.sections import PrivacySettings

logger = logging.getLogger(__name__)
DIRECTIONS = ("up", "down")
_NAMED = 10  # warnings of a round; the rest is summed up in one line


class Note(lightning.Callback):
    """Add to the journal of each round; every logger and every monitor sees what was added.

    Attributes:
        kept: attributes that a resumed run must have, plain values.

    Example:
        >>> class Odd(Note):
        ...     def note(self, run):
        ...         run.journal.scalar("fed/odd", run.round % 2)
    """

    kept: tuple[str, ...] = ()

    def note(self, run: FederatedRun) -> None:
        """After a round: add to its journal."""
        raise NotImplementedError(f"{type(self).__name__} must say what it notes")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Note."""
        self.note(pl_module.run)

    def state_dict(self) -> dict[str, Any]:
        """The attributes `kept`."""
        return {name: getattr(self, name) for name in self.kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore them.

        Raises:
            UserError: they are of another version.
        """
        for name in self.kept:
            if name not in state_dict:
                raise UserError(
                    f"the checkpoint does not fit ({type(self).__name__}: '{name}'): it is of "
                    "another version; start a new run with another --run.name"
                )
            setattr(self, name, state_dict[name])


class Costs(Note):
    """Note ``cost/*``: bytes in both directions, local steps and wall time.

    Bytes are the ledger's; a round's own bytes are what was added since the round before, so that
    what is exchanged between blocks counts too.

    Attributes:
        names: of all that it notes.
        seconds: wall time of all rounds so far, those before a resume included.
        local_steps: the same of local steps.
    """

    names = frozenset(
        f"cost/{name}{total}"
        for name in ("up_bytes", "down_bytes", "seconds", "local_steps")
        for total in ("", "_total")
    ) - {"cost/local_steps"}  # the run's own
    kept = ("seconds", "local_steps")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.local_steps = 0.0
        self._bytes = dict.fromkeys(DIRECTIONS, 0)
        self._began = time.perf_counter()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start from what the ledger holds already (a resumed run)."""
        self._bytes = {way: pl_module.run.ledger.bytes(way) for way in DIRECTIONS}

    def on_train_batch_start(self, *_: Any) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def note(self, run: FederatedRun) -> None:
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


class Refusals(Note):
    """Warn once for every (client, step) that was left out, and note how many: ``fed/refused``.

    Ids stay in this process's warnings, a few a round: no logger gets them.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[int, str]] = set()

    def note(self, run: FederatedRun) -> None:
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


class NodeCosts(Note):
    """Note which nodes were there, and what it cost to reach them.

    ``fed/online`` are clients whose nodes are there after the round, ``fed/late`` those whose nodes
    gave no answer in time; ``cost/sent_bytes`` and ``cost/received_bytes`` are what parcels and
    replies took, where ``cost/…_bytes`` of the ledger are the messages in them, for every client.
    """

    def note(self, run: FederatedRun) -> None:
        """Note them."""
        exchange, block = run.exchange, max(run.block, 0)
        if not isinstance(exchange, Nodes):
            return
        costs, here = exchange.costs, [one for one in exchange.members if not one.away]
        late = [one for one in exchange.members if one.node.name in costs.late]
        run.journal.scalar("fed/online", sum(one.count(block) for one in here))
        run.journal.scalar("fed/late", sum(one.count(block) for one in late))
        run.journal.scalar("cost/wait_seconds", costs.waited)
        run.journal.scalar("cost/sent_bytes", costs.sent)
        run.journal.scalar("cost/received_bytes", costs.received)


class PrivacyBudget(Note):
    """Note ``privacy/epsilon`` of all rounds so far, see `coterie.core.privacy.budget`.

    It is that of the client that released most, or where entries are clipped of one entry, and
    covers the steps that have noise. Nothing is noted where nothing is guaranteed (noise without a
    clip).

    Args:
        settings: the noise.
        elsewhere: whether clients are on other machines or in other processes. What they released
            in a round that was cut off cannot be taken back, so that a run that goes on counts a
            round more for each time that it was started.

    Attributes:
        budget: what was released so far.
    """

    kept = ("released",)

    def __init__(self, settings: PrivacySettings, elsewhere: bool = False) -> None:
        self.budget, self._elsewhere, self._goes_on = Budget(settings), elsewhere, 0
        self._starts = 1

    @property
    def released(self) -> dict[str, Any]:
        """The budget, as a checkpoint holds it."""
        return self.budget.to_plain() | {"starts": self._starts}

    @released.setter
    def released(self, plain: dict[str, Any]) -> None:
        """Go on with it."""
        self.budget.load_plain(plain)
        self._starts, self._goes_on = plain["starts"], int(self._elsewhere)

    def note(self, run: FederatedRun) -> None:
        """Count what each client released in the round."""
        starts = run.exchange.starts
        for _ in range(1 + max(self._goes_on, starts - self._starts)):
            self.budget.add(run.journal.releases)
        self._starts, self._goes_on = max(starts, self._starts), 0
        spent = self.budget.epsilon()
        if math.isfinite(spent):
            run.journal.scalar("privacy/epsilon", spent)


class StreamScore(Note):
    """Note ``<monitor>_stream`` in the last round: one number of a stream, for sweeps to optimise.

    It is the mean, over the blocks after the first, of each block's best validation score (with
    one block, that block's). The best round of the whole run would not do: in a stream the first
    block often scores best, and what a continual method does later would not count.

    Args:
        monitor: what the best round is chosen by.

    Attributes:
        best: score of every block so far.
    """

    kept = ("best",)

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.best: dict[int, float] = {}

    def note(self, run: FederatedRun) -> None:
        """Track the best of every block; note the mean when the run is finished."""
        block, noted = run.block, run.journal.scalars
        for key in (of_start(self.monitor.key), self.monitor.key):
            if not math.isnan(score := noted.get(key, math.nan)):
                self.best[block] = self.monitor.best((self.best.get(block, math.nan), score))
        if run.finished and self.best:
            later = [best for block, best in self.best.items() if block > 0]
            scores = later or list(self.best.values())
            run.journal.scalar(f"{self.monitor.key}{STREAM}", sum(scores) / len(scores))
