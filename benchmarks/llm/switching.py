"""What it costs that one backbone serves all clients: switching it from one to the next."""

from __future__ import annotations

import copy
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from benchmarks.core.timing import Row, in_turns, row
from benchmarks.llm.federation import Shape, enrolled
from coterie.core.federation.in_process import InProcess
from coterie.core.tables.stopwatch import one_thread
from coterie.core.tensors.keys import Key
from coterie.llm.backbones.base import Backbone
from coterie.llm.client import Organisation
from coterie.llm.messages import UPDATE, Adapters, ClientState
from coterie.llm.mixing import (
    attention,
    dynamic_weights,
    inner_products,
    mix,
    row_normalised,
    softened_losses,
    warm_up,
)
from coterie.llm.readings import resolve
from coterie.llm.settings import Settings, TrainSettings

_STATES = 8  # whole copies of the model that the plain way goes through; K would not fit


def switching(shapes: Sequence[Shape], clients: int = 100, turns: int = 20) -> Iterator[Row]:
    """Measure a switch of clients against a training step, on one thread, in CPU time.

    - A *switch*, one for a client and round: take a copy of the client's private state, with its
      optimizer if that is kept, copy its row of the ``(K, d)`` matrix into the network, commit the
      state; and a K-th of gathering all trained rows into a matrix. It does not depend on the
      number of steps. To measure its recommendations a client's row is copied in once more.
    - A *whole turn* is a switch and everything else that `Cohort.ask` does for a client without an
      example: keys, the mode of every module, the check for NaN, the ledger.
    - A *step* is what asking takes longer for a client with one batch: loss, gradients, Adam.
    - *Mixing* is the aggregation of a round (Eq. 1 to 5), its K-th part. It is no part of a switch.
    - References, without optimizers: ``copy.deepcopy`` of the network for every client and round;
      one network whose whole ``state_dict`` is loaded and copied back.

    The kinds take turns, each time with another of the K clients, so that caches are as cold as in
    a run; figures are medians. The ratio is a share of a training step, the difference that of
    scores from those of a deep copy which was given the client's adapter.
    """
    with one_thread():
        for shape in shapes:
            yield from _rows(shape, clients, turns)


def _rows(shape: Shape, clients: int, turns: int) -> Iterator[Row]:
    anew = Switched(shape, clients, False)
    kept = Switched(shape, clients, True, like=anew)
    plain = Reloaded(shape)
    numbers = (37 * number % clients for number in itertools.count(1))

    def each(works: dict[str, Callable[[int], None]], turns: int) -> dict[str, float]:
        """Median CPU milliseconds of each kind, every time with another client."""
        called = {name: lambda work=work: work(next(numbers)) for name, work in works.items()}
        return {name: statistics.median(found) for name, found in in_turns(called, turns).items()}

    times = each(
        {
            "step": anew.step,
            "switch": anew.switch,
            "switch, optimizer kept": kept.switch,
            "whole turn": anew.turn,
            "load_state_dict": plain.switch,
            "copy.deepcopy": plain.deepcopy,
        },
        turns,
    )
    few = each({"gather": lambda _: anew.gather(), "mixing": lambda _: anew.mix()}, 3)
    step = times.pop("step") - times["whole turn"]
    for name in ("switch", "switch, optimizer kept", "whole turn"):
        times[name] += few["gather"] / clients
    times["mixing"] = few["mixing"] / clients
    differences = {
        "switch": anew.difference(1),
        "switch, optimizer kept": kept.difference(clients - 1),
    }
    for name, value in times.items():
        whose = f"{name}; {shape}, d = {anew.rows.shape[1]:,}, K = {clients}"
        yield row(whose, "CPU ms, of a step", value, step, differences.get(name), share=True)


class Switched:
    """One backbone and K clients, each with an adapter of its own in ``rows`` ``(K, d)``.

    With ``keep_optimizer`` clients keep Adam's moments; ``like`` lends its network and rows.
    """

    def __init__(
        self, shape: Shape, clients: int, keep_optimizer: bool, like: Switched | None = None
    ) -> None:
        train = TrainSettings(batch_size=shape.batch, keep_optimizer=keep_optimizer)
        settings = resolve(Settings(train=train))
        self.shape = shape
        self.backbone: Backbone = shape.backbone() if like is None else like.backbone
        self.client = Organisation(settings, self.backbone)
        if like is None:
            start = self.client.adapter.row()
            with Key.from_seed(3).torch_rng():
                self.rows = start + 1e-2 * torch.randn(clients, start.numel())
        else:
            self.rows = like.rows
        idle = enrolled(self.client, shape.organisations(clients, 0))
        assert isinstance(idle.exchange, InProcess)
        self.store = idle.exchange.store
        busy = enrolled(self.client, shape.organisations(clients, shape.batch), self.store)
        self.idle, self.busy = (
            [cohort.part(torch.tensor([c])) for c in range(clients)] for cohort in (idle, busy)
        )

    def switch(self, client: int) -> None:
        """Put the client's adapter and private state in the place of another's."""
        cohort, row = self.idle[client], self.rows[client]
        mine = self.store.take(cohort.ids)
        state = mine.optimizer or self.client.fresh
        self.client.adapter.load(row)
        kept = self.client.settings.train.keep_optimizer
        self.store.commit(cohort.ids, ClientState(state if kept else None))

    def turn(self, client: int) -> None:
        """Ask a client that has nothing to train on."""
        self.idle[client].ask(UPDATE, self._down(client))

    def step(self, client: int) -> None:
        """Ask a client that makes one step."""
        self.busy[client].ask(UPDATE, self._down(client))

    def gather(self) -> None:
        """Gather the rows of all clients as the server does."""
        torch.cat(self.rows.split(1))

    def mix(self) -> None:
        """Mix the adapters of all clients (Eq. 1 to 5)."""
        losses = torch.linspace(1.0, 2.0, len(self.rows))
        s = attention(inner_products(self.rows - self.rows[:1]))
        w = warm_up(softened_losses(losses, 0.05), 0, 0.7, 5.0)
        mix(self.rows, row_normalised(dynamic_weights(s, w)))

    def difference(self, client: int, count: int = 4) -> float:
        """Compare scores after a switch with those of a fresh copy with that adapter."""
        history = self.shape.examples(count, 0).history
        fresh = self.shape.backbone()
        parameters = dict(fresh.named_parameters())
        with torch.no_grad():
            for name, value in self.client.adapter.named_tensors(self.rows[client]).items():
                parameters[name].copy_(value)
        self.switch(client)
        own = self.backbone.eval().scores(history)
        return float((own - fresh.eval().scores(history)).abs().max())

    def _down(self, client: int) -> Adapters:
        return Adapters(self.rows[client])


class Reloaded:
    """The plain way: one network, and the whole state of every client in a list."""

    def __init__(self, shape: Shape) -> None:
        self.model = shape.backbone()
        self.states = [self._state() for _ in range(_STATES)]

    def switch(self, client: int) -> None:
        """Load a client's state, and keep a copy of it, as after training."""
        self.model.load_state_dict(self.states[client % _STATES])
        self.states[client % _STATES] = self._state()

    def deepcopy(self, client: int) -> None:
        """Copy the network for a client."""
        copy.deepcopy(self.model)

    def _state(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}
