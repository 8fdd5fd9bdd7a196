"""The client half: an organisation trains its adapter on its users' histories."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.client import Client, step
from coterie.core.row_optimizer import RowAdam
from coterie.core.seeding import Key
from coterie.llm.adapter import Adapter
from coterie.llm.backbones.base import Backbone
from coterie.llm.data.client_data import OrganisationData
from coterie.llm.data.examples import Examples, Queries
from coterie.llm.data.sequences import thinned
from coterie.llm.messages import Adapters, Candidate, RankingReport, TrainedAdapter, Workshop
from coterie.llm.quality import measure_users
from coterie.llm.settings import Settings


class Organisation(Client[Workshop]):
    """A client of LLM-based federated recommendation, one at a time on the shared backbone.

    Args:
        settings: with the reading's choices resolved.
        backbone: frozen but for the adapter; shared by all clients, so nothing of it is private.
    """

    max_chunk = 1

    def __init__(self, settings: Settings, backbone: Backbone) -> None:
        self.settings, self.backbone = settings, backbone
        self.adapter = Adapter(backbone.named_parameters())
        self.optimizer = RowAdam()

    def enrol(self, data: OrganisationData, key: Key) -> Workshop:
        """Start without anything learnt; the common adapter comes from the server."""
        if not self.settings.train.keep_optimizer:
            return Workshop(None)
        return Workshop(self.optimizer.begin({"row": self.adapter.row()[None]}))

    @step
    def update(
        self, down: Adapters, mine: Workshop, data: OrganisationData, key: Key
    ) -> tuple[TrainedAdapter, Workshop]:
        """Train the adapter for E epochs on the local data (Algorithm 1, lines 4 to 9)."""
        examples, train = data.train[0], self.settings.train
        row = {"row": down.row}
        state = mine.optimizer or self.optimizer.begin(row)
        losses = []
        self.backbone.train()
        for number, batch in enumerate(self._batches(examples, key.take(torch.tensor([0])))):
            self.adapter.load(row["row"][0])
            with key.fold("dropout", number).torch_rng():
                loss = self.backbone.loss(batch)
                loss.backward()
            gradient = self.adapter.gradient()[None] + self._pull(row["row"], down.row)
            self.adapter.clear()
            row, state = self.optimizer.step(row, {"row": gradient}, state, train.lr)
            losses.append(float(loss.detach()) * len(batch))
        mean = sum(losses) / (len(examples) * train.epochs) if len(examples) else 0.0
        up = TrainedAdapter(row["row"], torch.tensor([mean]), torch.tensor([len(examples)]))
        return up, Workshop(state if train.keep_optimizer else None)

    @step
    def evaluate(
        self, down: Candidate, mine: Workshop, data: OrganisationData, key: Key
    ) -> tuple[RankingReport, None]:
        """Rank all items for the client's users, history left out (section 4.1.2)."""
        queries = data.test[0] if down.split == "test" else data.valid[0]
        values = self.measure(down.row, queries)
        means = {name.replace("@", ""): value.mean()[None] for name, value in values.items()}
        return RankingReport(**means, users=torch.tensor([len(queries)])), None

    def measure(self, row: Tensor, queries: Queries) -> dict[str, Tensor]:
        """Measure an adapter ``(1, d)`` on some users; see `measure_users`."""
        self.load(row)
        return measure_users(lambda part: self.backbone.scores(part.history), queries)

    def load(self, row: Tensor) -> None:
        """Make the backbone that of a client, ready to score; ``row`` is ``(1, d)``."""
        self.adapter.load(row[0])
        self.backbone.eval()
        self.backbone.prepare()

    def _batches(self, examples: Examples, key: Key) -> list[Examples]:
        """Shuffled batches of all local epochs."""
        train, found = self.settings.train, []
        for epoch in range(train.epochs if len(examples) else 0):
            of_epoch = key.fold("epoch", epoch)
            drawn = thinned(examples, self.settings.data.max_history, of_epoch.fold("history"))
            order = of_epoch.bits(torch.arange(len(examples))).argsort(stable=True)
            found += [drawn.take(index) for index in order.split(train.batch_size)]
        return found

    def _pull(self, row: Tensor, received: Tensor) -> Tensor:
        """Gradient of FedProx's μ/2 ‖R_c - R‖²; 0 for the other methods."""
        mu = self.settings.train.mu if self.settings.method == "fedprox" else 0.0
        return mu * (row - received)
