"""A run of a federation: where it stands, how it goes on, what a checkpoint holds.

Imports neither lightning nor torchmetrics, so that what only looks into a run starts at once.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.federation.cohort import ExchangeCohort
from coterie.core.federation.exchange import Exchange, TooFew
from coterie.core.federation.federation import Federation, check_alike, check_reached
from coterie.core.federation.in_forks import clients_here
from coterie.core.federation.in_process import InProcess
from coterie.core.federation.ledger import Ledger, LedgerMark
from coterie.core.federation.store import PrivateStore
from coterie.core.kernels.switch import kernels
from coterie.core.local_training.step_count import counting_steps
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.run_keys import RunKeys
from coterie.core.run.checkpoint import Bound, bound_to, check_bound
from coterie.core.settings.sections import EngineSettings
from coterie.core.tensors import tree
from coterie.core.tensors.device import CPU, as_written, computing_on, moved
from coterie.core.tensors.keys import Key
from coterie.core.wire.annotations import restore

logger = logging.getLogger(__name__)

Measured = dict[str, tuple[Tensor, Tensor]]
"""Measurements of clients: name -> ids and values, both ``(R,)``."""


class FederatedRun:
    """One run of a federation, a communication round at a time.

    Where it stands is its own state (block, round), never a caller's counter, so that a run
    continues from a checkpoint exactly where it was.

    Args:
        federation: what is run.

    Attributes:
        journal: what the last round measured.
        ledger: bytes that crossed the boundary.
        block: number of the block that the last round belongs to, from 0; -1 before the first.
        round: rounds done, over all blocks.
        block_round: rounds done in that block.
        block_open: whether that block goes on.
        finished: whether the run is complete.
        closed: whether somebody else than the server ended the newest block.
        reopened: whether rounds follow after what was the end of the run when it was saved.
        history: what each round noted, the oldest first, over all blocks.
        results: final measurements, the journal's scalars named ``test/…`` or ``valid/…``.
        client_results: the same of every client, ``name -> (ids, values)``, of the newest block.

    Example:
        run = FederatedRun(experiment.federation())
        while not run.finished:
            run.advance()
            print(run.round, run.journal.scalars)
    """

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.journal, self.ledger = Journal(), Ledger()
        self.block = -1
        self.round = self.block_round = 0
        self.history: list[dict[str, float]] = []
        self.results: dict[str, float] = {}
        self.client_results: Measured = {}
        self.block_open = self.finished = self.closed = self.reopened = False
        check_alike(federation.server, federation.client)
        with self.on_device():
            self._keys = RunKeys(federation.seed)
            self.exchange: Exchange = federation.exchange or clients_here(
                federation, self.secret.fold
            )
            self.server_state = federation.server.begin(self._keys.begin)

    @property
    def block_history(self) -> list[dict[str, float]]:
        """What the rounds of the newest block noted, the oldest first: what its end depends on."""
        return self.history[len(self.history) - self.block_round :]

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Compute where and as the run does, for whoever looks into it.

        Tensors are made where it has its own, by default in the format in which the federation was
        made. No autocast, default format or missing gradient that is set around it has an effect.
        """
        federation = self.federation
        with as_written(federation.default_dtype), computing_on(federation.device):
            yield

    def advance(self) -> None:
        """Run one communication round, and what opens or closes its block.

        A round in which too few clients answer is tried again, from where it began.

        Raises:
            UserError: the answers of all clients were refused, too few answered in every try, or
                `check_reached`.
        """
        with self.on_device():
            self._advance()

    def _advance(self) -> None:
        check_reached(self.federation, self.exchange)
        before = _Before.of(self)
        self.journal.clear()
        for attempt in range(self.exchange.patience):
            self.exchange.begin(self.round + 1, attempt)
            try:
                self._round()
            except TooFew as few:
                before.restore(self)
                if attempt + 1 == self.exchange.patience:
                    raise UserError(
                        f"round {self.round + 1} was tried {self.exchange.patience} times in vain: "
                        f"{few}; go on by --resume once the others are back, or lower "
                        "engine.min_clients"
                    ) from None
                logger.warning("round %d is tried again: %s", self.round + 1, few)
            else:
                return

    def _round(self) -> None:
        server = self.federation.server
        if not self.block_open:
            self._open_block()
        self.block_round += 1
        self.ledger.begin_round(self.block, self.block_round)
        cohort, key = self._cohort(self.block_round), self._key(self.block_round)
        with counting_steps() as made:
            state = server.round(self.server_state, cohort, key)
        self.journal.check_heard()
        cohort.check_averaged()
        self.server_state = state
        if made.total:  # 0 where the clients are processes of their own
            self.journal.scalar("cost/local_steps", made.total)
        self.round += 1
        self.history.append(dict(self.journal.scalars))
        decision = server.stop(self.server_state, self.block_history)
        if decision != "go":
            self._end_block(cohort, key)
            self.finished |= decision == "end"
        self._keep_results()
        if self.finished:
            self.exchange.rest()

    def close_block(self) -> None:
        """End the block after the round that is done, though the server would go on.

        What its end notes joins the journal of that round.

        Raises:
            UserError: no block is open.
        """
        if not self.block_open:
            raise UserError("no block is open: it has ended by itself, or no round was run")
        with self.on_device():
            self._end_block(self._cohort(self.block_round), self._key(self.block_round))
            self._keep_results()
        self.closed = True

    def _end_block(self, cohort: ExchangeCohort, key: Key) -> None:
        server = self.federation.server
        last = dataclasses.replace(cohort, ending=True)
        self.server_state = server.end_block(self.server_state, last, key.fold("end"))
        last.check_averaged()
        self.block_open = False
        self.finished = self.block + 1 == len(self.federation.blocks)

    def _keep_results(self) -> None:
        final = ("test/", "valid/")
        self.results.update({n: v for n, v in self.journal.scalars.items() if n.startswith(final)})
        measured = {n: v for n, v in self.journal.clients.items() if n.startswith("test/")}
        self.client_results.update(measured)

    def reopen(self) -> None:
        """Take back the end of a run, where the server would not end it any more.

        Raises:
            UserError: the end cannot be taken back.
        """
        if self.finished and not self.ends_here():
            server = self.federation.server
            with self.on_device():
                self.server_state = server.reopen(self.server_state, self.block_history)
            self.finished, self.block_open, self.reopened = False, True, True

    def ends_here(self) -> bool:
        """Whether the block ends after the rounds that are done, by the server or since closed."""
        return (
            self.closed
            or self.federation.server.stop(self.server_state, self.block_history) != "go"
        )

    @cached_property
    def bound(self) -> Bound:
        """What the state is bound to; hashed once, since it never changes."""
        return bound_to(self.federation)

    def to_plain(self) -> dict[str, Any]:
        """Give server state, private state of all clients, ledger and position, for a checkpoint.

        They are tensors, plain values and append-only parts, on the CPU, so that any machine can
        read them; what is there already is not copied.
        """
        return {
            "bound": self.bound,
            "server": moved(tree.to_plain(self.server_state), CPU),
            "store": moved(self.exchange.to_plain(), CPU),
            "ledger": self.ledger.rows(),
            "by_party": self.ledger.by_party.rows(),
            "history": self.history,
            "results": self.results,
            "client_results": {
                name: {"ids": ids, "values": values}
                for name, (ids, values) in self.client_results.items()
            },
            **{name: getattr(self, name) for name in _POSITION},
            "closed": self.closed,
        }

    def load_plain(self, saved: Mapping[str, Any]) -> None:
        """Go on where `to_plain` was asked.

        Raises:
            UserError: it was asked of another method or backbone, or on other data.
        """
        blocks = check_bound(saved, self.bound, self.federation)
        device = self.federation.device
        try:
            with self.on_device():
                self.server_state = restore(self.server_state, moved(saved["server"], device))
                self.exchange.load_plain(moved(saved["store"], device))
            self.ledger.load(saved["ledger"], saved.get("by_party"))  # unknown to older versions
            self.history, self.results = saved["history"], saved["results"]
            self.client_results = {
                name: (pair["ids"], pair["values"])
                for name, pair in saved["client_results"].items()
            }
            for name in _POSITION:
                setattr(self, name, saved[name])
            self.closed = saved.get("closed", False)  # unknown to older versions
            if self.finished and self.block + 1 == blocks < len(self.federation.blocks):
                self.finished, self.reopened = False, True  # data were added
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise UserError(
                f"the checkpoint does not fit this run ({error}): it is of another method, "
                "backbone or version; start a new run with another --run.name"
            ) from error

    def revalidate(self) -> dict[str, float]:
        """Measure the newest block on its validation data, with the state that the run has."""
        self.journal.clear()
        with self.on_device():
            self.federation.server.validate(self.server_state, self.newest_cohort())
        return {n: v for n, v in self.journal.scalars.items() if not n.startswith("test/")}

    def earlier_results(self) -> dict[str, float]:
        """Final measurements of the blocks before the newest one."""
        of_newest = f"/block{self.block}/"
        return {n: v for n, v in self.results.items() if "/block" in n and of_newest not in n}

    def retest(self) -> dict[str, float]:
        """Measure the newest block again on its test data."""
        self.journal.clear()
        with self.on_device():
            self.federation.server.test(self.server_state, self.newest_cohort())
        return dict(self.journal.scalars)

    @property
    def secret(self) -> Key:
        """What the secrets of simulated clients follow from; real ones have drawn their own."""
        return self._keys.clients

    @property
    def clients(self) -> InProcess:
        """The clients of a run in this process, to look into them.

        Raises:
            UserError: they run elsewhere.
        """
        if not isinstance(self.exchange, InProcess):
            raise UserError("the clients of this run are not in this process")
        return self.exchange

    @property
    def store(self) -> PrivateStore[Any]:
        """Private state of the clients of a run in this process."""
        return self.clients.store

    @property
    def newest_data(self) -> Any:
        """Data of the clients of the newest block, or before it of the first."""
        return self.clients.data(self.block)

    def newest_cohort(self) -> ExchangeCohort:
        """All clients of the newest block, or before it of the first, to look into a run.

        They have no middleware; before the first round they are not enrolled yet.
        """
        exchange: Exchange = self.exchange
        if isinstance(exchange, InProcess):
            exchange = dataclasses.replace(exchange, middleware=(), kept=exchange.store)
        return dataclasses.replace(self._cohort(self.block_round), exchange=exchange)

    def _open_block(self) -> None:
        self.block += 1
        self.block_round = 0
        self.closed = False
        self.ledger.begin_round(self.block, 0)
        cohort = self._cohort(0)
        self.server_state = self.federation.server.start_block(
            self.server_state, self.block, cohort, self._key(0)
        )
        cohort.check_averaged()
        self.block_open = True

    def _cohort(self, round_in_block: int) -> ExchangeCohort:
        ids, when = self.exchange.present(self.block), (self.block, round_in_block)
        made = ExchangeCohort(self.exchange, ids, when, self.ledger, self.journal, whole=True)
        rule, noise, secret = self.federation.combining
        return dataclasses.replace(made, aggregation=rule, noise=noise, masked=secret)

    def _key(self, round_in_block: int) -> Key:
        return self._keys.round(self.block, round_in_block)


_POSITION = ("block", "round", "block_round", "block_open", "finished")


@dataclass(frozen=True)
class _Before:
    """Where a run stands before a round, to go back there.

    A server's state is a value, so that a round has not changed the one that it was given.
    """

    position: dict[str, Any]
    history: list[dict[str, float]]
    ledger: LedgerMark
    exchange: Any

    @staticmethod
    def of(run: FederatedRun) -> _Before:
        position = {name: getattr(run, name) for name in (*_POSITION, "closed", "server_state")}
        return _Before(position, list(run.history), run.ledger.mark(), run.exchange.mark())

    def restore(self, run: FederatedRun) -> None:
        for name, value in self.position.items():
            setattr(run, name, value)
        run.history = list(self.history)
        run.ledger.go_back(self.ledger)
        run.exchange.go_back(self.exchange)
        run.journal.go_back()


# What a run asks of the whole process while it computes: threads of torch, and kernels.


@contextmanager
def computing_as(engine: EngineSettings) -> Iterator[None]:
    """Give the process a run's threads and kernels for a while; after it the caller has its own.

    Args:
        engine: section of the run's settings.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(engine.threads)
    try:
        with kernels(engine.kernels == "auto"):
            yield
    finally:
        torch.set_num_threads(before)
