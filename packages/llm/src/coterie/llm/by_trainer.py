"""The language models, MF and LightGCN without a federation, trained by any Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer

from coterie.core.data.interactions.splits import UserRows
from coterie.core.errors import UserError
from coterie.core.methods.ranking.by_trainer import PairwiseTraining, Wanted, wanted
from coterie.core.methods.ranking.client import known_items, measure_split
from coterie.core.metrics.clients import mean_of_known
from coterie.core.metrics.monitor import Monitor
from coterie.core.metrics.ranking_report import Split
from coterie.core.models.lightgcn import LightGCN
from coterie.core.models.mf import MF
from coterie.core.models.recommender import Recommender
from coterie.core.protocol.run_keys import RunKeys
from coterie.core.standalone import PREFIX, Standalone
from coterie.core.tensors.keys import Key
from coterie.llm.backbones.base import Backbone
from coterie.llm.client import shuffled
from coterie.llm.data.examples import Examples, Queries
from coterie.llm.item_counts import counts_together
from coterie.llm.quality import LENGTHS, MEASURES, blocks, measure_users
from coterie.llm.settings import Settings

MONITOR = Monitor("eval/recall@10")
Measured = dict[str, Tensor]


@dataclass(frozen=True)
class Drawn:
    """A training batch.

    Attributes:
        examples: of it.
        dropout: ``()`` int64, state of the key that dropout draws by.
    """

    examples: Examples
    dropout: Tensor


class BackboneTraining(Standalone[Drawn, Queries, Measured]):
    """Train the adapter of a backbone, or all of it, as the settings say.

    Args:
        settings: with the reading's choices resolved.
        backbone: is trained in place.
        client: number of the client whose batches these are.
        train: examples.
        valid: queries of validation.
        test: queries of the test.

    Raises:
        UserError: there is nothing to train on, or settings need others than the client.
    """

    network: Backbone

    def __init__(
        self,
        settings: Settings,
        backbone: Backbone,
        client: int,
        train: Examples,
        valid: Sequence[Queries],
        test: Sequence[Queries],
    ) -> None:
        _check(settings)
        if not len(train):
            raise UserError(f"client {client} has no example to train on")
        self.network, self._settings, self._train = backbone, settings, train
        self._held = {"valid": valid, "test": test}
        self._keys, self._id = RunKeys(settings.seed), torch.tensor([client])
        self.monitor = MONITOR
        self.per_epoch = -(-len(train) // settings.train.batch_size)
        self._made: tuple[int, list[Examples]] | None = None

    def batch(self, number: int) -> Drawn:
        """Give a batch of an epoch, whose histories are drawn and shuffled at once."""
        whole, part = divmod(number, self.per_epoch)
        round_, epoch = divmod(whole, self._settings.train.epochs)
        own = Key(self._keys.step(self._id, "update", 0, round_ + 1).state[0])
        if self._made is None or self._made[0] != whole:
            self._made = whole, shuffled(self._train, self._settings, own, epoch)
        in_round = epoch * self.per_epoch + part
        return Drawn(self._made[1][part], own.fold("dropout", in_round).state)

    def loss(self, batch: Drawn) -> Tensor:
        """The backbone's loss; dropout follows from the batch."""
        with Key(batch.dropout).torch_rng():
            return self.network.loss(batch.examples)

    def optimizer(self) -> Optimizer:
        """Adam."""
        return Adam(self.trained(), lr=self._settings.train.lr)

    def ready(self, split: Split) -> None:
        """Embed the items anew, where the backbone does."""
        self.network.prepare()

    def questions(self, split: Split) -> Sequence[Queries]:
        """Ask for the users of all clients, or of the one."""
        return [part for queries in self._held[split] for part in blocks(queries)]

    def outcome(self, question: Queries) -> Measured:
        """Rank all items for users."""
        return measure_users(lambda part: self.network.scores(part.history), question)

    def measures(self, split: Split, outcomes: Sequence[Measured]) -> dict[str, float]:
        """Average over users."""
        return {
            f"{PREFIX[split]}/{name}": mean_of_known(torch.cat([one[name] for one in outcomes]))
            for name in MEASURES
        }


class PairwiseModel(PairwiseTraining[Recommender]):
    """MF or LightGCN by BPR, as Table 1 has them.

    Args:
        name: ``mf`` or ``lightgcn``.
        settings: of the run.
        rows: items of users.
        n_items: number of items.
    """

    def __init__(self, name: str, settings: Settings, rows: UserRows, n_items: int) -> None:
        key, how = Key.from_seed(settings.seed).fold("reference"), getattr(settings, name)
        users, start = torch.arange(rows.ids.numel()), key.fold("start")
        network: Recommender
        if name == "mf":
            network = MF(users.numel(), n_items, how.dim, start, l2=how.l2)
        else:
            network = LightGCN(rows.train, n_items, how.dim, start, how.layers, how.l2)
        self._rows, self._linked = rows, "valid"
        self.monitor = MONITOR
        super().__init__(network, how, users, rows.train, key.fold("batches"))

    def loss(self, batch: Any) -> Tensor:
        """BPR on the graph of train."""
        self._link("valid")
        return super().loss(batch)

    def ready(self, split: Split) -> None:
        """Let validation items join the graph of a test."""
        self._link(split)

    def questions(self, split: Split) -> Sequence[Wanted]:
        """Ask for all users."""
        return wanted(torch.arange(self._rows.ids.numel()), self._rows, split)

    def outcome(self, question: Wanted) -> Measured:
        """Rank all items for users, recall and NDCG by name."""
        user = question.user
        found = measure_split(
            lambda rows: self.network.item_scores(user[rows.to(user.device)]).cpu(),
            question.data,
            question.split,
            LENGTHS,
        )
        return dict(zip(MEASURES, found.movedim(1, 2).flatten(0, 1), strict=True))

    def measures(self, split: Split, outcomes: Sequence[Measured]) -> dict[str, float]:
        """Average over the users who had something."""
        return {
            f"{PREFIX[split]}/{name}": mean_of_known(torch.cat([one[name] for one in outcomes]))
            for name in MEASURES
        }

    def _link(self, split: Split) -> None:
        if split != self._linked and isinstance(self.network, LightGCN):
            self.network.link(self._rows.train if split == "valid" else known_items(self._rows))
        self._linked = split


def _check(settings: Settings) -> None:
    """Refuse settings of a backbone that need others.

    Raises:
        UserError: naming one.
    """
    if settings.split.k is not None:
        raise UserError(
            "'split.k' parts a model between client and server, and here is one place: leave it out"
        )
    expert = settings.expert
    if counts_together(settings) or expert.counts_own:
        raise UserError(
            f"'expert.counts' {expert.counts} is of clients: by itself a network has those of the "
            "public users, so say public"
        )
