"""All data of a stream in one place, and how the reference there is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import SGD, Optimizer

from coterie.continual.algorithm import F3CRec
from coterie.continual.backbones import Backbone, Params
from coterie.continual.batches import Batches, draw_batches
from coterie.continual.client import ContinualClient, without
from coterie.continual.settings import Settings
from coterie.core.data.interactions.splits import UserRows
from coterie.core.errors import UserError
from coterie.core.methods.ranking.by_trainer import PairwiseTraining, Wanted, wanted
from coterie.core.methods.settings.ranking import MFSettings
from coterie.core.metrics.clients import mean_of_known, worst_decile
from coterie.core.metrics.monitor import Monitor
from coterie.core.metrics.ranking_report import Split, rank_all
from coterie.core.models.mf import MF
from coterie.core.protocol.run_keys import RunKeys
from coterie.core.standalone import Standalone
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

CENTRAL = MFSettings(l2=3e-3, epochs=60, patience=5)
"""Of the centralised matrix factorisation, chosen on validation of ML-100K for all data sets."""


def joined(blocks: Sequence[UserRows], n_users: int) -> tuple[Tensor, Ragged]:
    """Training items of all users over several blocks, each item once.

    Args:
        blocks: what users had in each.
        n_users: number of users.

    Returns:
        The users ``(n_users,)``, and as many rows of items.
    """
    pairs = torch.cat(
        [torch.stack([data.ids[data.train.rows], data.train.values]) for data in blocks], dim=1
    )
    user, item = torch.unique(pairs, dim=1)
    return torch.arange(n_users), Ragged.from_pairs(user, item, n_users)


# The backbones without a federation: an ordinary module, trained by any Trainer.
#
# All users' data in one place, or one user's alone, with the objective of the federation: the mean
# over users of the mean loss of each one's own batch, by plain gradient descent at its rates. So an
# epoch of all users is a round of the method ``ft`` in which everybody takes part and makes one
# step.


class Scores(nn.Module):
    """A backbone of C users with their private parameters and the item table.

    Args:
        backbone: what the scores are made of.
        items: ``(n, d)`` first item table.
        private: first private parameters, each ``(C, ...)``.

    Attributes:
        items: the item table.
        private: the private parameters, by name.
    """

    def __init__(self, backbone: Backbone, items: Tensor, private: Params) -> None:
        super().__init__()
        self.backbone, self.items = backbone, nn.Parameter(items.clone())
        self.private = nn.ParameterDict({name: value.clone() for name, value in private.items()})

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Logits of pairs, ``(n,)``."""
        vector, offset = self.backbone.query(dict(self.private.items()))
        return (vector[user] * self.items[item]).sum(1) + offset[user]

    def item_scores(self, user: Tensor) -> Tensor:
        """Logits of all items for some users, ``(C,) -> (C, n)``."""
        vector, offset = self.backbone.query(dict(self.private.items()))
        return vector[user] @ self.items.T + offset[user, None]


@dataclass(frozen=True)
class UserBatch:
    """A batch of every user who has one more.

    Attributes:
        user: ``(n,)`` int64 number of each sample's user.
        item: ``(n,)`` int64.
        label: ``(n,)`` 1 for a positive, 0 for a negative.
        weight: ``(n,)`` of each sample in the mean over users.
    """

    user: Tensor
    item: Tensor
    label: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Told:
    """What users of a block had and are asked for.

    Attributes:
        settings: of the run.
        block: t, the newest block.
        user: ``(C,)`` int64 numbers of its users in the network.
        data: of these users, in the block alone.
    """

    settings: Settings
    block: int
    user: Tensor
    data: UserRows

    @property
    def monitor(self) -> Monitor:
        """NDCG@k in validation."""
        return Monitor(f"eval/ndcg@{self.settings.top_k}", digits=5)

    def questions(self, split: Split) -> list[Wanted]:
        """Ask for the block's users who have something to be found."""
        return wanted(self.user, self.data, split)

    def outcome(self, question: Wanted, scores: Tensor) -> dict[str, Tensor]:
        """Rank the items that users did not have in the block, or not in any, ``(C,)`` each."""
        data, k = question.data, (self.settings.top_k,)
        if question.split == "valid":
            return rank_all(scores, data.valid, k, (data.train,)).by_name(k)
        seen = (data.train, data.valid)
        found = rank_all(scores, data.test, k, seen).by_name(k)
        if data.earlier is None:
            return found
        new = without(data.test, data.earlier, scores.shape[1])
        unseen = rank_all(scores, new, k, (*seen, data.earlier)).by_name(k)
        return found | {f"{name}_unseen": values for name, values in unseen.items()}

    def measures(self, split: Split, outcomes: Sequence[dict[str, Tensor]]) -> dict[str, float]:
        """Average over users."""
        where = "eval" if split == "valid" else f"test/block{self.block}"
        found = {name: torch.cat([one[name] for one in outcomes]) for name in outcomes[0]}
        means = {f"{where}/{name}": mean_of_known(values) for name, values in found.items()}
        if split == "valid":
            ndcg = f"ndcg@{self.settings.top_k}"
            means[f"eval/{ndcg}_worst10"] = worst_decile(found[ndcg])
        return means


class BackboneTraining(Standalone[UserBatch, Wanted, dict[str, Tensor]]):
    """Train a backbone.

    Args:
        client: of the federation, whose backbone, batches and rates these are.
        told: who is measured, on what.
        users: ``(C,)`` int64, who is trained.
        positives: their items.
        n_items: number of items.
    """

    network: Scores

    def __init__(
        self, client: ContinualClient, told: Told, users: Tensor, positives: Ragged, n_items: int
    ) -> None:
        settings, self._keys = client.settings, RunKeys(client.settings.seed)
        self._settings, self._client, self._told = settings, client, told
        self._users, self._positives, self._n_items = users, positives, n_items
        items = F3CRec(settings, [n_items]).begin(self._keys.begin).items
        key = self._keys.clients.fold(users).fold("enrol")
        private = client.backbone.start(key, settings.model.dim, client.dtype)
        self.network = Scores(client.backbone, items, private)
        self._drawn: tuple[int, Batches] | None = None
        self.per_epoch = len(self._batches(0)) // settings.model.epochs
        if not self.per_epoch:
            raise UserError("there is nothing to train on: no user has an item")
        self.monitor = told.monitor

    def batch(self, number: int) -> UserBatch:
        """Give the users' batches of a number, from those of a round, which are drawn at once."""
        round_, part = divmod(number, self.per_epoch * self._settings.model.epochs)
        batches = self._batches(round_)
        found, owner = batches.samples(part), batches.owner[batches.terms(part)]
        place = found.cell // self._n_items
        weight = 1.0 / (self._users.numel() * found.size[place])
        return UserBatch(owner[place], found.cell % self._n_items, found.label, weight)

    def loss(self, batch: UserBatch) -> Tensor:
        """Mean over all users of the mean cross entropy of each one's samples."""
        logits = self.network(batch.user, batch.item)
        loss = binary_cross_entropy_with_logits(logits, batch.label, reduction="none")
        return (batch.weight * loss).sum()

    def optimizer(self) -> Optimizer:
        """Gradient descent: of items on the mean over users, of private parameters on the sum."""
        backbone, item_lr = self._client.backbone, self._client.item_lr(self._n_items)
        own = [
            {"params": [value], "lr": backbone.rates[name] * self._users.numel()}
            for name, value in self.network.private.items()
        ]
        items = {"params": [self.network.items], "lr": item_lr}
        if backbone.head_first:
            return InTurn(own, items)
        return SGD([*own, items], lr=item_lr)

    def questions(self, split: Split) -> list[Wanted]:
        """Ask for the users of the newest block."""
        return self._told.questions(split)

    def outcome(self, question: Wanted) -> dict[str, Tensor]:
        """Measure users."""
        return self._told.outcome(question, self.network.item_scores(question.user))

    def measures(self, split: Split, outcomes: Sequence[dict[str, Tensor]]) -> dict[str, float]:
        """Average over users."""
        return self._told.measures(split, outcomes)

    def _batches(self, round_: int) -> Batches:
        if self._drawn is None or self._drawn[0] != round_:
            model, client = self._settings.model, self._client
            key = self._keys.step(self._users, "update", self._told.block, round_ + 1)
            drawn = draw_batches(
                key.fold("batches"),
                self._positives,
                self._n_items,
                negatives=model.negatives,
                batch_size=model.batch_size,
                epochs=model.epochs,
                dtype=client.dtype,
            )
            self._drawn = round_, drawn
        return self._drawn[1]


class InTurn(SGD):
    """Gradient descent on private parameters, then, by a fresh gradient, on items (PFedRec).

    Args:
        own: groups of the private parameters.
        items: group of the items.
    """

    def __init__(self, own: Sequence[dict[str, Any]], items: dict[str, Any]) -> None:
        super().__init__([*own, items], lr=items["lr"])

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make both steps; the closure computes the loss and its gradients anew for each.

        Raises:
            UserError: there is no closure, as under a scaled precision.
        """
        if closure is None:
            raise UserError(
                "pfedrec steps twice in a batch, which a scaled precision does not let it: choose "
                "another precision than 16-mixed"
            )
        *own, items = self.param_groups
        values = [value for group in self.param_groups for value in group["params"]]
        if any(value.grad is not None for value in values):
            raise UserError(
                "pfedrec steps twice in a batch, so no gradients of batches add up: leave "
                "accumulate_grad_batches at 1"
            )
        loss = None
        for groups in (own, [items]):
            with torch.enable_grad():
                found = closure()
            loss = found if loss is None else loss
            for group in groups:
                for value in group["params"]:
                    if value.grad is not None:
                        value.data.sub_(group["lr"] * value.grad)
        self.zero_grad()
        return loss


class PairwiseMF(PairwiseTraining[MF]):
    """The tables' reference with all data in one place: BPR-MF.

    Args:
        told: who is measured, on what.
        args: of `PairwiseTraining`.
    """

    def __init__(self, told: Told, *args: Any) -> None:
        super().__init__(*args)
        self._told, self.monitor = told, told.monitor

    def questions(self, split: Split) -> list[Wanted]:
        """Ask for the users of the newest block."""
        return self._told.questions(split)

    def outcome(self, question: Wanted) -> dict[str, Tensor]:
        """Measure users."""
        return self._told.outcome(question, self.network.item_scores(question.user))

    def measures(self, split: Split, outcomes: Sequence[dict[str, Tensor]]) -> dict[str, float]:
        """Average over users."""
        return self._told.measures(split, outcomes)


def standalone(
    settings: Settings,
    blocks: Sequence[UserRows],
    sizes: tuple[int, int],
    client: int | None,
    network: str | None,
) -> Standalone[Any, Wanted, dict[str, Tensor]]:
    """Make what is trained on the training items of several blocks, and measured on the last one.

    Args:
        settings: with the reading's choices resolved.
        blocks: what users had in each.
        sizes: numbers of users and of items known by the last one.
        client: a user; None = all.
        network: ``mf`` for the tables' reference; None = the backbone of the settings.
    """
    n_users, n_items = sizes
    users, train = joined(blocks, n_users)
    last, places = blocks[-1], blocks[-1].ids
    if client is not None:
        users, train = users[client : client + 1], train.take(users[client : client + 1])
        last = last.take((places == client).nonzero().flatten())
        places = torch.zeros_like(last.ids)
    told = Told(settings, len(blocks) - 1, places, last)
    if network is None:
        return BackboneTraining(ContinualClient(settings), told, users, train, n_items)
    key = Key.from_seed(settings.seed)
    start = key.fold("central", told.block)
    model = MF(users.numel(), n_items, settings.model.dim, start, l2=CENTRAL.l2)
    numbers = torch.arange(users.numel())
    return PairwiseMF(told, model, CENTRAL, numbers, train, key.fold("central draws", told.block))
