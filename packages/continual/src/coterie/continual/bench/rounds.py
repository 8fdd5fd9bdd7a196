"""The engine's side of the benchmark: clients in memory and single rounds of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coterie.continual.algorithm import F3CRec, ServerState
from coterie.continual.batches import draw_batches
from coterie.continual.bench.loop import Batch, ClientLoop, Remembered
from coterie.continual.bench.workload import Workload
from coterie.continual.client import ContinualClient
from coterie.continual.messages import KEEP_BEST, UPDATE, ClientState, ItemTable
from coterie.continual.settings import Settings
from coterie.continual.temporal_mean import item_wise_weight, knowledge_shift, temporal_mean
from coterie.core.federation.cohort import ExchangeCohort
from coterie.core.federation.in_process import InProcess
from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.protocol.folds import Sum
from coterie.core.protocol.journal import Journal
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

_WARM_ROUNDS = 20  # so that rounds are measured, and memories made, on parameters that have moved


@dataclass
class Engine:
    """Both halves with their clients, at the start of a block.

    Attributes:
        settings: with the reading's choices resolved.
        work: the data.
        state: the server's.
        block: 0 or 1.
    """

    settings: Settings
    work: Workload
    block: int = 0
    store: PrivateStore[ClientState] = field(default_factory=PrivateStore)

    def __post_init__(self) -> None:
        self.key = Key.from_seed(self.settings.seed)
        self.server = F3CRec(self.settings, self.work.n_items)
        self.client = ContinualClient(self.settings)
        self.state: ServerState = self.server.begin(self.key.fold("server"))
        self.state = self.server.start_block(self.state, 0, self.cohort(0), self.key)

    def cohort(self, number: int) -> ExchangeCohort:
        """The block's clients in one round."""
        when, secret = (self.block, number), self.key.fold("clients")
        chunk, blocks = self.settings.engine.chunk, self.work.blocks
        exchange = InProcess(self.client, blocks, secret.fold, chunk, kept=self.store)
        return ExchangeCohort(exchange, exchange.present(self.block), when, Ledger(), Journal())

    def train(self) -> None:
        """Train for a while."""
        for number in range(1, _WARM_ROUNDS + 1):
            items = self.round(number)
            self.state = replace(self.state, items=items, best=items)
        self.cohort(_WARM_ROUNDS + 1).ask(KEEP_BEST, None)

    def next_block(self) -> None:
        """Finish the base block and open the incremental block."""
        self.state = self.server.end_block(self.state, self.cohort(_WARM_ROUNDS + 2), self.key)
        self.block = 1
        self.state = self.server.start_block(self.state, 1, self.cohort(0), self.key)

    def down(self) -> ItemTable:
        """The message of a round."""
        return ItemTable(self.state.items)

    def round(self, number: int) -> Tensor:
        """Train all clients once, from the same table every time, ``(n_items, d)``."""
        replies = self.cohort(number).ask(UPDATE, self.down(), reduce=Sum())
        assert replies.total is not None
        return self.remember(self.state.items + replies.total.items.sum() / len(replies))

    def remember(self, items: Tensor) -> Tensor:
        """The server's part of a round: blend with the previous block's table."""
        old = self.state.old
        if old is None:
            return items
        shift = knowledge_shift(old, items[: old.shape[0]])
        weight = item_wise_weight(shift, self.settings.temporal_mean.beta)
        return temporal_mean(items, old, weight)

    def loop(self) -> ClientLoop:
        """The same clients for the plain loop."""
        data = self.work.blocks[self.block]
        mine = self.store.take(data.ids)
        remembered = None
        if bool((mine.blocks > 0).any()):
            old = (mine.blocks > 0).tolist()
            remembered = Remembered(mine.memory["items"], mine.memory["taught"], old)
        users, n_items = mine.params["user"].clone(), self.state.items.shape[0]
        seed = self.key.fold("loop").seed()
        return ClientLoop(self.settings, data.train, n_items, users, seed, remembered)


def largest_difference(engine: Engine) -> float:
    """Train once with the engine and once with the loop on the same draws; compare the tables."""
    data, down = engine.work.blocks[engine.block], engine.down()
    mine, n_items = engine.store.take(data.ids), down.items.shape[0]
    key = engine.key.fold("clients").fold(data.ids).fold("same draws")
    loop = engine.loop()
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
