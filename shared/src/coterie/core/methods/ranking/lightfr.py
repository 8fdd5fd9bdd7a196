"""LightFR: binary codes by exact coordinate descent (Zhang et al., TOIS 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.data.interactions.splits import UserRows
from coterie.core.methods.kit.uploads import measured
from coterie.core.methods.ranking.client import RankingClient, UserState, draw_samples, known_items
from coterie.core.methods.ranking.server import RankingServer, RankingState
from coterie.core.methods.settings.ranking import LightFRSettings
from coterie.core.metrics.ranking_report import RankingReport, Split
from coterie.core.protocol.client import Factors
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.messages import Down, Reveals, Step, Up, carries, leaves
from coterie.core.protocol.uploads import Count, Fold
from coterie.core.tensors.keys import Key
from coterie.core.tensors.rows import TouchedRows
from coterie.core.tensors.stacked import Ragged

_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, dtype=np.float32)


def pack(codes: Tensor) -> Tensor:
    """Pack codes ``(n, f)`` of -1 and +1 into bits: ``(n, f / 8)`` uint8.

    Example:
        >>> pack(torch.tensor([[1, -1, -1, -1, -1, -1, 1, 1]])).tolist()
        [[131]]
    """
    return torch.as_tensor(np.packbits((codes > 0).cpu().numpy(), axis=-1))


def unpack(packed: Tensor) -> Tensor:
    """Undo `pack`: ``(n, f)`` float32."""
    return torch.as_tensor(np.unpackbits(packed.cpu().numpy(), axis=-1)).float().mul_(2.0).sub_(1.0)


def hamming_similarity(users: Tensor, items: Tensor) -> Tensor:
    """Compare packed codes: 1 - Hamming distance / f, which is 1/2 + <b, d> / 2f.

    Args:
        users: ``(C, f / 8)`` uint8.
        items: ``(n, f / 8)`` uint8.

    Returns:
        ``(C, n)`` float32 in [0, 1].
    """
    distance = np.zeros((users.shape[0], items.shape[0]), dtype=np.float32)
    for user, item in zip(users.cpu().numpy().T, items.cpu().numpy().T, strict=True):
        distance += _ONES[user[:, None] ^ item[None, :]]
    return 1.0 - torch.as_tensor(distance) / (8 * users.shape[1])


def descend_users(codes: Tensor, items: Tensor, samples: Ragged, target: Tensor) -> Tensor:
    """Sweep once over the bits of the users' codes; return what is left to explain.

    Bit k becomes sign(Σ_i (x_i - <b, d_i>) d_ik + m b_k) over the user's m samples, which is the
    better of the two for Σ_i (x_i - <b, d_i>)², the other bits as they are; on a tie it stays.

    Args:
        codes: ``(C, f)`` of -1 and +1; changed in place.
        items: ``(n, f)``.
        samples: C rows of items, S in all.
        target: ``(S,)`` x, integers, so that sums are exact.

    Returns:
        ``(S,)`` x - <b, d> after the sweep.
    """
    columns = items.T[:, samples.values].contiguous()
    residual = target - (codes.T[:, samples.rows] * columns).sum(0)
    count = samples.lengths
    for k, column in enumerate(columns):
        bit = codes[:, k]
        vote = _row_sums(residual * column, samples) + count * bit
        flipped = vote * bit < 0
        if bool(flipped.any()):
            bit[flipped] *= -1.0
            change = torch.where(flipped, 2.0 * bit, 0.0)
            residual -= change[samples.rows] * column
    return residual


def best_column(vote: Tensor, column: Tensor, balance: float) -> Tensor:
    """Minimise -2 Σ_i v_i d_i + c (Σ_i d_i)² over a column of item bits, exactly.

    For any number of positive bits those of the highest votes are best, so that trying all numbers
    finds the minimum.

    Args:
        vote: ``(n,)`` v.
        column: ``(n,)`` the bits so far, which stay on a tie of votes.
        balance: c; 0 leaves sign(v).

    Example:
        >>> best_column(torch.tensor([3.0, 2.0, 1.0, 0.5]), torch.ones(4), 9.0).tolist()
        [1.0, 1.0, -1.0, -1.0]
    """
    if not balance:
        return torch.where(vote == 0, column, vote.sign().to(column.dtype))
    order = torch.argsort(column, descending=True, stable=True)
    order = order[torch.argsort(vote[order], descending=True, stable=True)]
    n = vote.numel()
    positive = torch.arange(n + 1, dtype=torch.float64)
    won = torch.cat([positive[:1], vote[order].double().cumsum(0)])
    cost = -4.0 * won + balance * (2.0 * positive - n).square()
    found = torch.full_like(column, -1.0)
    found[order[: int(cost.argmin())]] = 1.0
    return found


def _row_sums(values: Tensor, rows: Ragged) -> Tensor:
    """Sums of integers over each row, ``(C,)`` float64: exact by differences of running sums."""
    running = torch.nn.functional.pad(values.cumsum(0, dtype=torch.float64), (1, 0))
    return running[rows.offsets].diff()


# LightFR: binary codes by exact coordinate descent (Zhang et al., TOIS 2023).
#
# Objective: Σ_(u,i) (r_ui - sim(b_u, d_i))² + λ Σ_k (Σ_i d_ik)² with sim = 1/2 + <b, d> / 2f, on
# r = 1 for the items a user has and 0 for sampled others; with ``weighted`` user u's share of the
# first sum counts |I_u| / N, for the I_u items it has and the N that all users of the round have.
# Times 4f² it is Σ (x_ui - <b_u, d_i>)² +
# 4f²λ Σ_k (Σ_i d_ik)² with x = 2f r - f. The balance of the user codes is left out: it would need
# the codes of all users.
#
# What a client sends for a bit of an item is (x - <b, d>) b_k + d_k. Who knows d reads from it
# whether the item was a positive, and b_k up to a common sign: plain votes do not hide the code.
# The other form of the public code, in which clients send codes of their own for every item, would
# on labels 0 and 1 send ±b_u itself.


@dataclass(frozen=True)
class ItemCodes(Down):
    """The public item codes."""

    codes: Tensor = carries("item codes, packed")  # (n_items, f / 8) uint8
    first_bit: int = carries("the first of the bits to vote on", default=0)
    split: Split = carries("what is evaluated, valid or test", default="valid")


@dataclass(frozen=True)
class BitVotes(Up):
    """What a client wants some bits of its items to be."""

    votes: TouchedRows = leaves(
        "votes on bits of the sampled items, int16, which give away the private code up to a sign",
        reveals=Reveals.ITEMS_TOUCHED,
        depends_on={"params"},
    )
    loss: Tensor = measured("mean squared error of training", {"params"})  # (C,)
    weight: Tensor | None = leaves(  # (C,) int64
        "number |I_u| of its items, by which its votes count",
        reveals=Reveals.STEPS,
        expected=Count(),
    )


UPDATE = Step("update", ItemCodes, BitVotes)
EVALUATE = Step("evaluate", ItemCodes, RankingReport)
FOLD_IN = Step("fold_in", ItemCodes, None)


class LightFRClient(RankingClient):
    """A user: a private binary code b_u."""

    settings: LightFRSettings

    def start(self, key: Key) -> dict[str, Tensor]:
        """Draw b_u."""
        return {"code": random_codes(key, self.settings.bits)}

    def footprint(self, data: UserRows, down: Any) -> Tensor:
        """Bytes of a user's tables of samples, and of the bits of its sampled items."""
        samples = data.train.lengths * (1 + self.settings.negatives)
        return 16 * self.n_items + 8 * self.settings.bits * samples.clamp(max=self.n_items)

    @UPDATE
    def update(
        self, down: ItemCodes, mine: UserState, data: UserRows, key: Key
    ) -> tuple[BitVotes, UserState]:
        """Sweep over the bits of b_u, then vote on the round's bits of the items."""
        items = unpack(down.codes)
        code, residual, samples = self._descend(
            mine.params["code"], items, data.train, key, self.settings.sweeps
        )
        bits = slice(down.first_bit, down.first_bit + self.settings.bits_per_round)
        votes = residual[:, None] * code[samples.rows, bits] + items[samples.values, bits]
        rows = TouchedRows(samples, votes.to(torch.int16), self.n_items)
        total = torch.zeros(len(samples)).index_add_(0, samples.rows, residual.square())
        loss = total / (2.0 * self.settings.bits) ** 2 / samples.lengths.clamp_min(1)
        weight = data.train.lengths if self.settings.weighted else None
        return BitVotes(rows, loss, weight), replace(mine, params={"code": pack(code)})

    @EVALUATE
    def evaluate(
        self, down: ItemCodes, mine: UserState, data: UserRows, key: Key
    ) -> tuple[RankingReport, None]:
        """Rank all items the user does not have by Hamming distance."""
        return self.ranked(down, mine, data), None

    @FOLD_IN
    def fold_in(
        self, down: ItemCodes, mine: UserState, data: UserRows, key: Key
    ) -> tuple[None, UserState]:
        """Fit b_u of the best round to train and validation items, the item codes fixed."""
        sweeps = self.settings.fold_in
        return None, replace(
            mine, best=self._swept(mine.best, down, known_items(data), key, sweeps)
        )

    def scores(
        self, params: dict[str, Tensor], down: ItemCodes, history: Ragged | None = None
    ) -> Tensor:
        """Hamming similarities to all items, ``(C, n_items)``."""
        return hamming_similarity(params["code"], down.codes)

    def factors(self, down: ItemCodes, mine: UserState) -> Factors:
        """Give the codes of items, -1 and 1, and those of users over 2f: 1/2 + <b, d> / 2f."""
        items, users = unpack(down.codes), unpack(mine.best["code"])
        vectors = users.float() / (2 * self.settings.bits)
        return Factors(items.float(), vectors, torch.full((len(users),), 0.5))

    def fitted(
        self, params: dict[str, Tensor], down: ItemCodes, history: Ragged, key: Key
    ) -> dict[str, Tensor]:
        """Fit b_u to items by one sweep at least, the item codes fixed."""
        return self._swept(params, down, history, key, max(self.settings.fold_in, 1))

    def _swept(
        self, params: dict[str, Tensor], down: ItemCodes, history: Ragged, key: Key, sweeps: int
    ) -> dict[str, Tensor]:
        items = unpack(down.codes)
        return {"code": pack(self._descend(params["code"], items, history, key, sweeps)[0])}

    def _descend(
        self, packed: Tensor, items: Tensor, positives: Ragged, key: Key, sweeps: int
    ) -> tuple[Tensor, Tensor, Ragged]:
        """Codes, residuals and samples after some sweeps on fresh samples.

        Every sampled item counts once: that bounds a vote by 2f + 1, which int16 holds.
        """
        settings = self.settings
        drawn = draw_samples(key.fold("negatives"), positives, self.n_items, settings.negatives)
        chosen = drawn.weight > 0
        samples = Ragged.from_lengths(chosen.nonzero()[:, 1], chosen.sum(1))
        target = settings.bits * (2.0 * drawn.label[chosen] - 1.0)
        code = unpack(packed)
        residual = torch.empty(0)
        for _ in range(sweeps):
            residual = descend_users(code, items, samples, target)
        return code, residual, samples


def random_codes(key: Key, bits: int) -> Tensor:
    """Draw packed codes, ``(C, f / 8)`` uint8."""
    return pack(key.uniform(bits) - 0.5)


@dataclass(frozen=True)
class Votes:
    """Votes summed over the clients.

    Attributes:
        votes: ``(n_items, bits)`` int64, those of a client as often as it has items, if weighted.
        loss: ``()``.
        weight: ``()`` int64, N; None where all clients count the same.
    """

    votes: Tensor
    loss: Tensor
    weight: Tensor | None = None


class VoteSum(Fold):
    """Sum votes over the clients in int64: those of int16 would overflow."""

    def of(self, up: BitVotes) -> Votes:
        """Sum the votes of some clients."""
        values = up.votes.values.long()
        if up.weight is not None:
            values = values * up.weight[up.votes.index.rows, None]
        votes = TouchedRows(up.votes.index, values, up.votes.n_rows).sum()
        return Votes(votes, up.loss.sum(), None if up.weight is None else up.weight.sum())


class LightFRServer(RankingServer[ItemCodes]):
    """Rounds of coordinate descent on the bits of the item codes, some bits a round in turn."""

    settings: LightFRSettings
    evaluate, fold_in = EVALUATE, FOLD_IN

    def start(self, key: Key) -> dict[str, Tensor]:
        """Draw the item codes."""
        keys = key.fold("items").fold(torch.arange(self.n_items))
        return {"codes": random_codes(keys, self.settings.bits)}

    def train(self, state: RankingState, cohort: Cohort, key: Key) -> dict[str, Tensor]:
        """Ask for votes on this round's bits, and set them to what lowers the objective."""
        settings, packed = self.settings, state.public["codes"]
        first = state.round * settings.bits_per_round % settings.bits
        total = self.trained(cohort, UPDATE, ItemCodes(packed, first), VoteSum()).total
        if total is None:
            return state.public
        codes = unpack(packed)
        # Votes are sums over |I_u|, not over |I_u| / N, so that they stay whole numbers.
        shared = 1 if total.weight is None else int(total.weight)
        balance = 4.0 * settings.bits**2 * settings.lam * shared
        for place, vote in enumerate(total.votes.T):
            column = codes[:, first + place]
            codes[:, first + place] = best_column(vote, column, balance)
        return {"codes": pack(codes)}

    def table(self, public: dict[str, Tensor], split: Split = "valid") -> ItemCodes:
        """Send the item codes."""
        return ItemCodes(public["codes"], split=split)
