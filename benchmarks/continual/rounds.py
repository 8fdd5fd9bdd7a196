"""What the benchmark trains on, and the engine's side of it: clients in memory, single rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.continual.loop import Batch, ClientLoop, Remembered
from coterie.continual.algorithm import F3CRec, ServerState
from coterie.continual.batches import draw_batches
from coterie.continual.client import ContinualClient
from coterie.continual.experiment import Experiment
from coterie.continual.messages import UPDATE, ItemTable
from coterie.continual.settings import Settings, resolve
from coterie.core.data.interactions.negatives import distinct_places
from coterie.core.data.interactions.splits import UserRows
from coterie.core.data.sources.catalogue import load_all
from coterie.core.errors import UserError
from coterie.core.federation.cohort import ExchangeCohort
from coterie.core.federation.federation import Federation
from coterie.core.protocol.uploads import Sum
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.schema import changed
from coterie.core.tensors import tree
from coterie.core.tensors.device import CPU, computing_on
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

_AT_A_TIME = 4096  # clients whose items are drawn at once
_SPREAD = 0.8  # standard deviation of the logarithm of the lengths
_WARM_ROUNDS = 20  # so that rounds are measured, and memories made, on parameters that have moved


@dataclass(frozen=True)
class Workload:
    """Base block and incremental block of a stream, and the numbers of items known in each."""

    name: str
    blocks: list[UserRows]
    n_items: list[int]


def workload(settings: Settings) -> Workload:
    """Take the first two blocks of the data set; random data of ML-100K's size for the sample.

    The generated sample is too small to measure anything. Where a data set is absent and cannot be
    fetched, random data stands in too, and its name says so.
    """
    data = settings.data
    if data.name == "sample":
        return ml_100k_sized("random data of ML-100K's size")
    try:
        load_all(data)
    except UserError as error:
        return ml_100k_sized(f"random data of ML-100K's size ({error})")
    experiment = Experiment(settings)
    sizes = [block.n_items for block in experiment.stream.blocks]
    return Workload(data.name, experiment.blocks[:2], sizes[:2])


def ml_100k_sized(name: str) -> Workload:
    """Random items for as many clients and interactions as ML-100K's first two blocks have."""
    key = Key.from_seed(0).fold("workload")
    base = random_block(key.fold(0), torch.arange(587), 1136, 46_552)
    later = random_block(key.fold(1), torch.arange(480, 697), 1146, 10_298)
    return Workload(name, [base, later], [1136, 1146])


def random_block(key: Key, ids: Tensor, n_items: int, n_interactions: int) -> UserRows:
    """Different uniform items for each client ``(C,)``; lengths are log-normal, add up roughly."""
    spread = torch.exp(_SPREAD * key.fold("lengths").fold(ids).normal(dtype=torch.float64))
    lengths = (spread * (n_interactions / spread.sum())).round().to(torch.int64)
    lengths.clamp_(3, n_items // 2)
    items = torch.cat(list(_items(key, ids, lengths, n_items)))
    nothing = Ragged.from_lengths(items[:0], torch.zeros_like(ids))
    return UserRows(ids, Ragged.from_lengths(items, lengths), nothing, nothing)


def leave_one_out(block: UserRows) -> UserRows:
    """Hold the first item of each client out for validation, the second one for the test."""
    train = block.train
    ones = torch.ones_like(train.lengths)
    valid, test = (
        Ragged.from_lengths(train.values[train.offsets[:-1] + place], ones) for place in (0, 1)
    )
    kept = train.values[train.positions > 1]
    return replace(
        block, train=Ragged.from_lengths(kept, train.lengths - 2), valid=valid, test=test
    )


def _items(key: Key, ids: Tensor, lengths: Tensor, n_items: int) -> Iterator[Tensor]:
    for own, count in zip(ids.split(_AT_A_TIME), lengths.split(_AT_A_TIME), strict=True):
        wanted = Ragged.from_lengths(torch.empty(int(count.sum())), count)
        size = torch.full_like(own, n_items)
        place = distinct_places(key.fold("items").fold(own), wanted, size)
        yield place - wanted.rows * n_items


class Engine:
    """A run whose rounds are measured.

    Args:
        settings: with the reading's choices resolved.
        work: the data.
        device: where.
    """

    def __init__(self, settings: Settings, work: Workload, device: torch.device = CPU) -> None:
        last = _WARM_ROUNDS + 1
        self.settings, self.work = replace(settings, rounds=last, patience=last), work
        with computing_on(device):
            self.client = ContinualClient(self.settings)
            self.server = F3CRec(self.settings, work.n_items)
        federation = Federation(
            self.server,
            self.client,
            work.blocks,
            settings.seed,
            last,
            settings.engine.chunk,
            settings.engine.workers,
            device,
        )
        self.run = FederatedRun(federation)
        with self.run.on_device():
            self.run.newest_cohort().enrol()

    @property
    def block(self) -> int:
        """0 or 1."""
        return max(self.run.block, 0)

    @property
    def state(self) -> ServerState:
        """The server's."""
        state: ServerState = self.run.server_state
        return state

    def cohort(self, number: int) -> ExchangeCohort:
        """The block's clients in a round of its own."""
        return replace(self.run.newest_cohort(), when=(self.block, number))

    def train(self) -> None:
        """Train for a while."""
        for _ in range(_WARM_ROUNDS):
            self.run.advance()

    def next_block(self) -> None:
        """Finish the base block and begin the incremental one."""
        self.run.advance()
        self.run.advance()

    def down(self) -> ItemTable:
        """The message of a round."""
        return ItemTable(self.state.items, block=self.state.block)

    def round(self, number: int) -> Tensor:
        """Train all clients once, from the same table every time, ``(n_items, d)``."""
        with self.run.on_device():
            replies = self.cohort(number).ask(UPDATE, self.down(), reduce=Sum())
            return self.server.aggregated(self.state, replies)

    def validate(self, number: int) -> None:
        """Validate a round, as a run of these settings does."""
        with self.run.on_device():
            self.server.measure(self.state, self.cohort(number), "valid")

    def test(self, number: int) -> None:
        """Test all clients, as at the end of a block."""
        with self.run.on_device():
            self.server.measure(self.state, self.cohort(number), "test")

    def remember(self, items: Tensor) -> Tensor:
        """The server's part of the loop's round: blend with the previous block's table."""
        return self.server.blended(self.state, items)

    def loop(self, made: type[ClientLoop] = ClientLoop) -> ClientLoop:
        """The same clients for the plain loop, or for another of its kind."""
        data = self.work.blocks[self.block]
        mine, remembered = self.run.store.take(data.ids), None
        if bool((mine.blocks > 0).any()):
            old = (mine.blocks > 0).tolist()
            remembered = Remembered(mine.memory["items"].long(), mine.memory["taught"], old)
        users, n_items = mine.params["user"].clone(), self.state.items.shape[0]
        return made(self.settings, data.train, n_items, users, self.settings.seed, remembered)


def random_engine(
    clients: int,
    n_items: int,
    mean_length: int,
    chunk: int | None = None,
    *,
    workers: int = 1,
    device: torch.device = CPU,
) -> Engine:
    """Clients with random items, on average so many; arguments else as of the engine's settings."""
    settings = changed(Settings(), {"engine.chunk": chunk, "engine.workers": workers})
    key, ids = Key.from_seed(0).fold("scaling"), torch.arange(clients)
    block = leave_one_out(random_block(key, ids, n_items, mean_length * clients))
    return Engine(resolve(settings), Workload("random", [block], [n_items]), device)


def largest_difference(engine: Engine, made: type[ClientLoop] = ClientLoop) -> float:
    """Train once with the engine and once with a loop on the same draws; compare the tables."""
    data, down = engine.work.blocks[engine.block], engine.down()
    mine, n_items = engine.run.store.take(data.ids), down.items.shape[0]
    key = Key.from_seed(engine.settings.seed).fold("same draws").fold(data.ids)
    loop = engine.loop(made)
    up, _ = engine.client.update(down, tree.clone(mine), data, key)
    ours = engine.remember(down.items + up.items.sum() / data.ids.numel())
    batches = _same_batches(engine, key, n_items)

    def subset(client: int, step: int, count: int) -> Tensor:
        own = Key(key.state[client]).fold("replay", step)
        place = own.uniform(engine.settings.replay.top_n, dtype=torch.float64)
        return place.argsort()[:count]

    reference = engine.remember(loop.round(down.items, lambda c: batches[c], subset))
    return float((ours - reference).abs().max())


def _same_batches(engine: Engine, key: Key, n_items: int) -> list[list[Batch]]:
    """The batches that the engine draws with this key, client by client."""
    model = engine.settings.model
    drawn = draw_batches(
        key.fold("batches"),
        engine.work.blocks[engine.block].train,
        n_items,
        negatives=model.negatives,
        batch_size=model.batch_size,
        epochs=model.epochs,
        dtype=engine.client.dtype,
    )
    sizes = drawn.offsets.diff().tolist()
    parts = zip(drawn.item.split(sizes), drawn.label.split(sizes), strict=True)
    batches: list[list[Batch]] = [[] for _ in range(drawn.order.numel())]
    for owner, batch in zip(drawn.owner.tolist(), parts, strict=True):
        batches[owner].append(batch)
    return batches
