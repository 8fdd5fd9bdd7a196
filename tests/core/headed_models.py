"""Score functions of the federated backbones: from a user vector and item vectors to logits.

A head is the part of a backbone that maps vectors to scores; where the vectors live (a private
p_u on the device, a public item table Q) is the federation's business. Under `torch.func.vmap` a
head takes one client's ``(d,)`` and ``(n, d)`` at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.core.models.recommender import Recommender, table
from coterie.core.tensors.keys import Key


class Head(nn.Module, ABC):
    """Logits of items for a user.

    Attributes:
        uses_user: whether the score depends on the user vector p_u at all.
    """

    uses_user = True

    @abstractmethod
    def forward(self, user: Tensor, items: Tensor) -> Tensor:
        """Score items.

        Args:
            user: ``(..., d)`` user vectors p_u.
            items: ``(..., n, d)`` item vectors q_i, or ``(n, d)`` for all users.

        Returns:
            ``(..., n)`` logits.
        """


class FedMFHead(Head):
    """FedMF: s = <p_u, q_i>; no parameters (Chai et al., IEEE Intelligent Systems 2021)."""

    def forward(self, user: Tensor, items: Tensor) -> Tensor:
        """Score items; shapes as in `Head.forward`."""
        return (user.unsqueeze(-2) @ items.mT).squeeze(-2)


class FedNCFHead(Head):
    """FedNCF: a network on [p_u; q_i] (Perifanis and Efraimidis, KBS 242:108441, 2022).

    Without a hidden layer, as F3CRec uses it, s = w^T [p_u; q_i] + b is additive: p_u shifts all
    items of a user alike, and **cannot change their order**. A hidden layer makes it a true NCF.

    Args:
        dim: length d of the vectors.
        key: for the start (torch's default for linear layers).
        hidden: width of a hidden ReLU layer, d / 2 in [2d, d/2, 1]; 0 for none.
    """

    def __init__(self, dim: int, key: Key, hidden: int = 0) -> None:
        super().__init__()
        self.dim = dim
        with key.torch_rng():
            self.input = nn.Linear(2 * dim, hidden or 1)
            self.out = nn.Linear(hidden, 1) if hidden else None

    def forward(self, user: Tensor, items: Tensor) -> Tensor:
        """Score items; shapes as in `Head.forward`."""
        # W [p; q] = W_p p + W_q q: no copy of p for each item.
        weight = self.input.weight
        of_user = F.linear(user, weight[:, : self.dim], self.input.bias)
        z = of_user.unsqueeze(-2) + F.linear(items, weight[:, self.dim :])
        if self.out is not None:
            z = self.out(z.relu())
        return z.squeeze(-1)


class PFedRecHead(Head):
    """PFedRec: s = w^T q_i + b with a private (w, b) and no p_u (Zhang et al., IJCAI 2023).

    Args:
        dim: length d of the vectors.
        key: for the start (torch's default for linear layers).
    """

    uses_user = False

    def __init__(self, dim: int, key: Key) -> None:
        super().__init__()
        with key.torch_rng():
            self.out = nn.Linear(dim, 1)

    def forward(self, user: Tensor, items: Tensor) -> Tensor:
        """Score items; only the leading shape of ``user`` matters, see `Head.forward`."""
        return self.out(items).squeeze(-1).expand(*user.shape[:-1], items.shape[-2])


class HeadedModel(Recommender):
    """A head on tables of its own, all in one place.

    With one user it is a client's local model; with all users it is the backbone trained
    centrally, with one head for everybody.

    Args:
        head: the score function.
        n_users: number of users.
        n_items: number of items.
        dim: length d of the vectors.
        key: for the start of the tables, N(0, 0.01²). A head that uses no user vector gets a
            table of width 0.
    """

    def __init__(self, head: Head, n_users: int, n_items: int, dim: int, key: Key) -> None:
        super().__init__(n_users, n_items)
        self.head = head
        with key.torch_rng():
            self.items = table(n_items, dim)
            self.users = table(n_users, dim if head.uses_user else 0)

    def score(self, user: Tensor, item: Tensor) -> Tensor:
        """Logits of pairs; ``user`` and ``item`` broadcast."""
        user, item = torch.broadcast_tensors(user, item)
        return self.head(self.users(user), self.items(item).unsqueeze(-2)).squeeze(-1)

    def item_scores(self, user: Tensor) -> Tensor:
        """Logits of all items: ``(C,)`` int64 -> ``(C, n_items)``."""
        return self.head(self.users(user), self.items.weight)
