"""Everything an experiment reads: the clients' data, the public part, and who is where."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.llm.data.catalogue import Catalogue
from coterie.llm.data.examples import Examples, Queries
from coterie.llm.data.organisations import OrganisationData
from coterie.llm.data.partition import cluster_users, few_shot, public_users
from coterie.llm.data.sequences import evaluation_queries, training_examples
from coterie.llm.data.split import GlobalSplit, global_split

PUBLIC, NOBODY = -1, -2


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
        """What is known of the items."""
        return Catalogue.of(self.interactions)

    def idle_clients(self) -> list[int]:
        """List the clients that have users but nothing to train on, in order to say so."""
        return [client for client, part in enumerate(self.clients.train) if not len(part)]

    def describe(self) -> dict[str, int]:
        """Count the whole data set, for the data table.

        Returns:
            What `GlobalSplit.describe` gives, ``valid_users`` and ``test_users`` who are evaluated
            in some client, ``public_users``, and the examples to pre-train on and held out.
        """
        return {
            **self.split.describe(),
            "valid_users": sum(map(len, self.clients.valid)),
            "test_users": sum(map(len, self.clients.test)),
            "public_users": int((self.client_of == PUBLIC).sum()),
            "public_examples": len(self.public.train),
            "held_out_examples": len(self.public.held_out),
        }

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


def build(
    interactions: Interactions,
    n_clients: int,
    key: Key,
    *,
    max_history: int = 10,
    stride: int = 1,
    span: int | None = None,
    min_history: int | None = None,
    shots: int | None = None,
    valid_users: int | None = None,
    public_share: float = 0.2,
    held_out_share: float = 0.1,
    dim: int = 16,
    normalised: bool = True,
) -> FederatedData:
    """Split interactions by global time and share the users out among clients.

    Args:
        interactions: usually after `coterie.core.data.interactions.kcore.k_core`.
        n_clients: K.
        key: of everything random; the split, the public users, the clients and the shots are each
            drawn under a key of their own.
        max_history: longest history of examples and queries.
        stride: see `coterie.llm.data.sequences.training_examples`.
        span: see there.
        min_history: see there.
        shots: training examples of all clients together; None for all.
        valid_users: most users whom a client validates on; None for all.
        public_share: of the users with train items.
        held_out_share: of the public users with examples.
        dim: length of the matrix-factorisation vectors that are clustered.
        normalised: see `coterie.llm.data.partition.cluster_users`.

    Raises:
        UserError: see the functions that do the parts.
    """
    split = global_split(interactions, key.fold("split"))
    client_of = _share_out(
        split, n_clients, interactions.n_items, key, public_share, dim, normalised
    )
    examples, owner = training_examples(split.train, max_history, stride, span, min_history)
    queries = [evaluation_queries(split, part, max_history) for part in ("valid", "test")]
    ids = torch.arange(n_clients)
    of_client = [torch.nonzero(client_of[owner] == client).flatten() for client in ids]
    kept = few_shot([len(part) for part in of_client], shots, key)
    valid, test = (
        [part.take(torch.nonzero(client_of[part.user] == client).flatten()) for client in ids]
        for part in queries
    )
    valid = [_some(part, valid_users, key.fold("valid users")) for part in valid]
    train = [examples.take(part[few]) for part, few in zip(of_client, kept, strict=True)]
    public = _public(examples, owner, client_of, held_out_share, key)
    return FederatedData(
        interactions, split, client_of, public, OrganisationData(ids, train, valid, test)
    )


def _some(queries: Queries, most: int | None, key: Key) -> Queries:
    """Draw users, each by a number of its own, so that a draw does not depend on who else is in."""
    if most is None or len(queries) <= most:
        return queries
    drawn = torch.argsort(key.bits(queries.user), stable=True)[:most]
    return queries.take(drawn.sort().values)


def _share_out(
    split: GlobalSplit,
    n_clients: int,
    n_items: int,
    key: Key,
    public_share: float,
    dim: int,
    normalised: bool,
) -> Tensor:
    public = public_users(split, public_share, key)
    client_of = torch.full((split.n_users,), NOBODY)
    client_of[public] = PUBLIC
    known = split.before_test().lengths > 0
    users = torch.nonzero(known & (client_of != PUBLIC)).flatten()
    client_of[users] = cluster_users(split, users, n_clients, n_items, key, dim, normalised)
    return client_of


def _public(
    examples: Examples, owner: Tensor, client_of: Tensor, held_out_share: float, key: Key
) -> PublicData:
    """Hold out the examples of some public users: at least of one, if there are two."""
    if not 0 <= held_out_share < 1:
        raise UserError(f"held_out_share is {held_out_share:g}: choose 0 or more, below 1")
    users = owner[client_of[owner] == PUBLIC].unique()
    order = torch.argsort(key.fold("held out").bits(users), stable=True)
    count = round(held_out_share * users.numel())
    if held_out_share > 0 and users.numel() > 1:
        count = max(count, 1)
    held = torch.zeros_like(client_of, dtype=torch.bool)
    held[users[order[:count]]] = True
    public = client_of[owner] == PUBLIC
    train, held_out = public & ~held[owner], public & held[owner]
    return PublicData(
        examples.take(torch.nonzero(train).flatten()),
        examples.take(torch.nonzero(held_out).flatten()),
    )
