"""Per-client numbers as W&B gets them: histograms, and rows under names that identify nobody."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.tensors.keys import Key

BINS = 64
Measured = Mapping[str, tuple[Tensor, Tensor]]  # name -> ids, values, both (R,)


def histogram(values: Tensor) -> tuple[np.ndarray, np.ndarray] | None:
    """Count finite values, ``(R,)``, in `BINS` equal bins: counts and edges; None for none.

    Raises:
        ValueError: more than one number a client; that is no measurement and may be private.
    """
    if values.ndim != 1:
        raise ValueError(f"one number a client is logged, not a tensor {tuple(values.shape)}")
    known = values.detach().cpu().double()
    known = known[known.isfinite()]
    return np.histogram(known.numpy(), bins=BINS) if known.numel() else None


@dataclass
class ClientRows:
    """Rows ``round, client, measures`` of a fixed sample of clients.

    A client is called by a hash keyed with the run's own random salt, so that a curve of one
    client can be drawn, but neither its id nor its identity across runs be found without the salt.
    The salt stays in the checkpoint, beside the private state, and never goes to W&B.

    Attributes:
        measures: columns after round and client.
        limit: most rows of the whole run.
        panel: most clients of a round; always the same ones, as far as they take part.
        salt: hexadecimal, new for every run.
        written: rows so far.

    Example:
        >>> rows = ClientRows(("fed/loss",), limit=3, panel=2)
        >>> one_round = {"fed/loss": (torch.arange(5), torch.ones(5))}
        >>> len(rows.take(1, one_round)), len(rows.take(2, one_round)), len(rows.take(3, one_round))
        (2, 1, 0)
    """

    measures: Sequence[str]
    limit: int
    panel: int = 50
    salt: str = field(default_factory=lambda: secrets.token_hex(16))
    written: int = 0

    def take(self, round_: int, measured: Measured) -> list[list[Any]]:
        """Make the rows of one round; None stands for "not measured"."""
        present = [measured[name][0] for name in self.measures if name in measured]
        present = [ids for ids in present if ids.numel()]
        room = min(self.panel, self.limit - self.written)
        if not present or room <= 0:
            return []
        ids = self._sample(torch.cat(present).unique(), room)
        columns = [_aligned(ids, measured.get(name)) for name in self.measures]
        rows = [
            [round_, self.pseudonym(client), *values]
            for client, *values in zip(ids.tolist(), *columns, strict=True)
        ]
        self.written += len(rows)
        return rows

    def pseudonym(self, client: int) -> str:
        """Name a client for the log."""
        key = bytes.fromhex(self.salt)
        return hashlib.blake2b(str(client).encode(), key=key, digest_size=6).hexdigest()

    def _sample(self, ids: Tensor, count: int) -> Tensor:
        """Bottom-k by hash: the sample keeps its members as the cohort changes. Ascending ids."""
        if ids.numel() <= count:
            return ids
        draws = Key.from_seed(int(self.salt[:15], 16)).fold(ids).uniform(dtype=torch.float64)
        return ids[torch.topk(draws, count, largest=False).indices.sort().values]


def _aligned(ids: Tensor, measured: tuple[Tensor, Tensor] | None) -> list[float | None]:
    """Values of the clients ``ids``; None for those that were not measured, or are NaN."""
    known = (
        {} if measured is None else dict(zip(*(part.tolist() for part in measured), strict=True))
    )
    found = (known.get(client, math.nan) for client in ids.tolist())
    return [None if math.isnan(value) else value for value in found]
