"""Everything an experiment reads: the clients' data, the public part, and who is where."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import Dropped, Interactions
from coterie.core.metrics.ranking_report import Split
from coterie.core.tensors.device import CPU, computing_on
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.data.catalogue import Catalogue
from coterie.llm.data.examples import (
    Examples,
    GlobalSplit,
    OrganisationData,
    Period,
    Queries,
    evaluation_queries,
    global_split,
    training_examples,
)
from coterie.llm.data.partition import cluster_users, few_shot, genre_users, public_users
from coterie.llm.data.shops import open_accounts
from coterie.llm.settings import FederatedDataSettings

PUBLIC, NOBODY = -1, -2
_HELD_OUT = 0.1  # of the public users


@dataclass(frozen=True)
class PublicData:
    """Sequences of public users, to pre-train on.

    Attributes:
        train: examples to train on.
        held_out: examples of other public users, to know when to stop.
    """

    train: Examples
    held_out: Examples


@dataclass(frozen=True)
class FederatedData:
    """A data set shared out among clients.

    Attributes:
        interactions: of all users, after filters; has titles, brands and genres of the items.
            With the partition "shops" users are accounts, here and below, see
            `coterie.llm.data.shops.Accounts`.
        split: of all users.
        client_of: ``(n_users,)`` int64, client of every user, `PUBLIC`, or `NOBODY` for a user
            without an item before the test.
        public: what may be used before the federation begins.
        clients: K organisations.
    """

    interactions: Interactions
    split: GlobalSplit
    client_of: Tensor  # (n_users,) int64
    public: PublicData
    clients: OrganisationData

    @property
    def n_items(self) -> int:
        """Number of items that can be recommended."""
        return self.interactions.n_items

    @property
    def catalogue(self) -> Catalogue:
        """What everybody may know of the items."""
        items = Catalogue.of(self.interactions)
        popularity, newer = self.public_counts(), self.public_counts("newer")
        return replace(items, popularity=popularity.tolist(), newer=newer.tolist())

    def public_counts(self, period: Period = "train") -> Tensor:
        """Count the interactions of public users with every item in a period, ``(n_items,)``."""
        rows = self.split.train if period == "train" else self.split.valid
        with computing_on(CPU):  # where the data are
            public = torch.nonzero(self.client_of == PUBLIC).flatten()
            return torch.bincount(rows.take(public).values, minlength=self.n_items)

    def counts(self, whose: Literal["public", "everybody"], split: Split) -> Tensor:
        """Count the interactions that a rule knows when it is asked, ``(n_items,)`` int64.

        Those of the public users before validation; or everybody's, before validation or, of the
        test, before that.
        """
        if whose == "public":
            return self.public_counts()
        clients, found = self.clients, self.public_counts()
        parts = clients.had
        if split == "test":
            parts, found = [*parts, *clients.newer], found + self.public_counts("newer")
        return found + torch.bincount(torch.cat(parts), minlength=self.n_items)

    def left_out(self) -> list[Dropped]:
        """Count the rows that no client has: repeated items, and of users known too late."""
        split, rows = self.split, len(self.interactions)
        distinct = sum(part.values.numel() for part in (split.train, split.valid, split.test))
        nobody = self.client_of == NOBODY
        late = int(nobody[split.test.rows].sum())
        return [
            Dropped("of an item that the user had before", rows - distinct, rows),
            Dropped(
                "of users who have nothing before the test, and so no client",
                late,
                distinct,
                int((nobody & (split.test.lengths > 0)).sum()),
            ),
        ]

    def idle_clients(self) -> list[int]:
        """List the clients that have users but nothing to train on, in order to say so."""
        return [client for client, part in enumerate(self.clients.train) if not len(part)]

    def means(self, client: Tensor, values: Tensor) -> Tensor:
        """Average n values by ``client``, ``(n,)``: ``(K,)`` float64, NaN where there is none.

        A value that is NaN was not measured.
        """
        known = ~values.isnan()
        client, values = client[known], values[known].double()
        total = torch.zeros(len(self.clients), dtype=torch.float64)
        count = torch.zeros_like(total).index_add_(0, client, torch.ones_like(values))
        return total.index_add_(0, client, values) / count

    def describe_clients(self) -> list[dict[str, int]]:
        """Count each client: users, training examples, validation and test users and targets."""
        users = torch.bincount(self.client_of[self.client_of >= 0], minlength=len(self.clients))
        parts = zip(users, self.clients.train, self.clients.valid, self.clients.test, strict=True)
        return [
            {
                "client": client,
                "users": int(count),
                "examples": len(train),
                "valid_users": len(valid),
                "valid_targets": valid.targets.values.numel(),
                "test_users": len(test),
                "test_targets": test.targets.values.numel(),
            }
            for client, (count, train, valid, test) in enumerate(parts)
        ]


def build(interactions: Interactions, how: FederatedDataSettings, key: Key) -> FederatedData:
    """Split interactions by global time and share the users out among clients.

    Args:
        interactions: filtered.
        how: the users are shared out, and histories made of their items.
        key: of everything random; the split, the public users, the clients and the shots are each
            drawn under a key of their own. With one key the public part is the same for every
            partition.

    Raises:
        UserError: see the functions that do the parts.
    """
    whole = global_split(interactions, key.fold("split"))
    public = public_users(whole, how.public, key)
    interactions, split, client_of = _share_out(interactions, whole, public, how, key)
    examples, owner = _examples(split.train, how)
    ids = torch.arange(how.clients)
    of_client = [torch.nonzero(client_of[owner] == client).flatten() for client in ids]
    kept = few_shot([len(part) for part in of_client], how.shots, key)
    train = [examples.take(part[few]) for part, few in zip(of_client, kept, strict=True)]
    valid, test = (
        [part.take(torch.nonzero(client_of[part.user] == client).flatten()) for client in ids]
        for part in (evaluation_queries(split, name, how.max_history) for name in ("valid", "test"))
    )
    valid = [_some(part, how.valid_users, key.fold("valid users")) for part in valid]
    had, newer = (_items(part, client_of, ids) for part in (split.train, split.valid))
    return FederatedData(
        interactions,
        split,
        client_of,
        _public(whole, public, how, key),
        OrganisationData(ids, train, valid, test, had, newer),
    )


def _items(rows: Ragged, client_of: Tensor, ids: Tensor) -> list[Tensor]:
    """Items of each client's users, one entry an interaction."""
    client = client_of[rows.rows]
    return [rows.values[client == number] for number in ids]


def _some(queries: Queries, most: int | None, key: Key) -> Queries:
    """Draw users, each by a number of its own, so that a draw does not depend on who else is in."""
    if most is None or len(queries) <= most:
        return queries
    drawn = torch.argsort(key.bits(queries.user), stable=True)[:most]
    return queries.take(drawn.sort().values)


def _share_out(
    interactions: Interactions,
    split: GlobalSplit,
    public: Tensor,
    how: FederatedDataSettings,
    key: Key,
) -> tuple[Interactions, GlobalSplit, Tensor]:
    """Share out the users among clients; for "shops" they are accounts from here on.

    Returns:
        Interactions, split and ``client_of``, as `FederatedData` has them.
    """
    if how.partition == "shops":
        opened = open_accounts(interactions, split, public, how.clients, how.skew, key)
        known = opened.split.before_test().lengths > 0
        client_of = torch.where(opened.shop < 0, PUBLIC, opened.shop).where(known, NOBODY)
        return opened.interactions, opened.split, client_of
    client_of = torch.full((split.n_users,), NOBODY)
    client_of[public] = PUBLIC
    known = split.before_test().lengths > 0
    users = torch.nonzero(known & (client_of != PUBLIC)).flatten()
    if how.partition == "genres":
        client_of[users] = genre_users(split, users, how.clients, interactions, key)
    else:
        client_of[users] = cluster_users(split, users, how.clients, interactions.n_items, key)
    return interactions, split, client_of


def _examples(rows: Ragged, how: FederatedDataSettings) -> tuple[Examples, Tensor]:
    return training_examples(rows, how.max_history, how.stride, how.span, how.min_history)


def _public(split: GlobalSplit, public: Tensor, how: FederatedDataSettings, key: Key) -> PublicData:
    """Hold out the examples of some public users: at least of one, if there are two.

    They are the same however the others are shared out, and so is what is pre-trained on them.
    """
    examples, place = _examples(split.train.take(public), how)
    owner = public[place]
    users = owner.unique()
    order = torch.argsort(key.fold("held out").bits(users), stable=True)
    count = max(round(_HELD_OUT * users.numel()), min(users.numel() - 1, 1))
    held = torch.isin(owner, users[order[:count]])
    train, held_out = (torch.nonzero(part).flatten() for part in (~held, held))
    return PublicData(examples.take(train), examples.take(held_out))
