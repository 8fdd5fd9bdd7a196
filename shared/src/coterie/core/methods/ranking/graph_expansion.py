"""Who has items in common: found by a third party that never learns which items."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from coterie.core.protocol.common_secret import CommonSecret
from coterie.core.protocol.expected import Number
from coterie.core.protocol.messages import Down, Reveals, Up, carries, leaves
from coterie.core.tensors.ragged import Ragged

_CHUNK = 1024


@dataclass(frozen=True)
class Announcement(Up):
    """What a user tells the third party; the server that trains does not read it."""

    tokens: Ragged = leaves(  # C rows of int64
        "a token of each item, ascending: equal for equal items, meaningless without the clients' "
        "secret",
        reveals=Reveals.OVERLAP,
    )
    vector: Tensor = leaves(  # (C, d)
        "the user's vector, for its neighbours",
        reveals=Reveals.PARAMETERS,
        depends_on={"params"},
        expected=Number(axes=1),
    )


@dataclass(frozen=True)
class Neighbours(Down):
    """Other users with items in common, anonymous; stacked over C clients."""

    vectors: Tensor = carries("their vectors, 0 where there is none")  # (C, N, d)
    known: Tensor = carries("where there is one")  # (C, N) bool


def item_tokens(secret: CommonSecret, items: Ragged, n_items: int) -> Ragged:
    """Replace items by keyed tokens: 63 bits of HMAC-SHA256, in ascending order for each user.

    Tokens must be equal for equal items, so encryption with fresh randomness would not do, and
    keyed, or else whoever sees them could try all item numbers.

    Args:
        secret: shared by the clients, unknown to both servers.
        items: C rows of item numbers.
        n_items: number of items.
    """
    key = secret.derive("tokens")
    used = torch.unique(items.values)
    table = torch.zeros(n_items, dtype=torch.int64)
    table[used] = torch.tensor([_token(key, item) for item in used.tolist()], dtype=torch.int64)
    tokens = table[items.values]
    order = torch.argsort(tokens, stable=True)
    order = order[torch.argsort(items.rows[order], stable=True)]
    return Ragged(tokens[order], items.offsets)


class ThirdParty:
    """Connects users by equal tokens; gets no item number and no user number.

    Args:
        limit: N, most neighbours of a user: those with the most tokens in common, of equals those
            who announced themselves first.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def match(self, announced: Announcement) -> Neighbours:
        """Give each user the vectors of others with whom it shares a token."""
        tokens, vectors = announced.tokens, announced.vector
        n_users = len(tokens)
        found = torch.zeros(n_users, self.limit, dtype=torch.int64)
        known = torch.zeros(n_users, self.limit, dtype=torch.bool)
        width = min(self.limit, n_users)
        for start, shared in _shared_tokens(tokens) if width else ():
            best = torch.argsort(shared, dim=1, descending=True, stable=True)[:, :width]
            rows = slice(start, start + shared.shape[0])
            found[rows, :width] = best
            known[rows, :width] = shared.gather(1, best) > 0
        return Neighbours(vectors[found] * known[:, :, None], known)


def _token(key: bytes, item: int) -> int:
    digest = hmac.digest(key, item.to_bytes(8, "little"), "sha256")
    return int.from_bytes(digest[:8], "little") >> 1


def _shared_tokens(tokens: Ragged) -> Iterator[tuple[int, Tensor]]:
    """Numbers of tokens in common, ``(K, C)`` for K users at a time; 0 with oneself."""
    column = torch.unique(tokens.values, return_inverse=True)[1]
    ones = np.ones(column.numel(), dtype=np.float32)
    n_users = len(tokens)
    shape = (n_users, int(column.max()) + 1 if column.numel() else 1)
    matrix = sparse.csr_matrix((ones, column.cpu().numpy(), tokens.offsets.cpu().numpy()), shape)
    for start in range(0, n_users, _CHUNK):
        shared = torch.as_tensor((matrix[start : start + _CHUNK] @ matrix.T).toarray())
        rows = torch.arange(shared.shape[0])
        shared[rows, rows + start] = 0.0
        yield start, shared
