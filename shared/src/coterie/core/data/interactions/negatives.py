"""Draws for implicit feedback, a whole chunk of clients at once: negatives, places, pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from coterie.core.kernels import switch
from coterie.core.models.recommender import Pairs, RankingBatch, Triples
from coterie.core.tensors.keys import Key, shuffle_rows
from coterie.core.tensors.ordering import where_true
from coterie.core.tensors.stacked import Ragged

# After so many rejected draws a client picks from the list of its free items instead. The number
# is fixed, so that no draw depends on what other clients need.
NEGATIVE_ATTEMPTS = 6
_ATTEMPT_STRIDE = 1 << 32
NO_NEGATIVE = -1


def sample_negatives(
    key: Key,
    positives: Ragged,
    n_items: int,
    per_positive: int,
    known: Tensor | None = None,
) -> Tensor:
    """Draw negatives uniformly, with replacement, from the items a client does not have.

    Every draw is a function of the client's key, its place in the client's row and the client's
    own items, so neither chunk nor order of clients can change it. Rejected draws are repeated
    with an attempt counter; a client with few free items picks one of them by number, which has
    the same distribution.

    Args:
        key: one key a client, ``state`` of shape ``(C,)``.
        positives: C rows of item numbers below ``n_items``.
        n_items: items are drawn from [0, n_items).
        per_positive: negatives for each positive, r.
        known: ``(C, n_items)`` bool, the items that must not be drawn; default the positives.
            Give it to reuse one mask for several rounds.

    Returns:
        ``(n * r,)`` int64 for n positives, ordered by (client, position of the positive,
        repetition). A client without a free item gets -1 (`NO_NEGATIVE`) in all places.

    Example:
        >>> positives = Ragged.from_lists([[0, 1], [0, 1, 2]])
        >>> key = Key.from_seed(0).fold(torch.tensor([7, 9]))
        >>> sample_negatives(key, positives, n_items=3, per_positive=2).tolist()
        [2, 2, 2, 2, -1, -1, -1, -1, -1, -1]
    """
    on_cpu = key.state.device.type == "cpu"
    if on_cpu and switch.worthwhile(positives.values.numel() * per_positive):
        return _negatives_by_kernel(key, positives, n_items, per_positive, known)
    if known is None:
        known = positives.mask(n_items)
    flat = known.reshape(-1)
    drawn = _first_draws(key, positives, n_items, per_positive)
    cell = (positives.rows * n_items)[:, None] + drawn
    rejected = where_true(flat.index_select(0, cell.reshape(-1)))
    drawn = drawn.reshape(-1)
    for attempt in range(1, NEGATIVE_ATTEMPTS + 1):
        if not rejected.numel():
            break
        client = positives.rows.index_select(0, rejected // per_positive)
        first = positives.offsets.index_select(0, client) * per_positive
        number = rejected - first + attempt * _ATTEMPT_STRIDE
        if attempt == NEGATIVE_ATTEMPTS:
            drawn[rejected] = _pick_free(key, known, client, number)
            break
        candidate = key.take(client).integers(n_items, number)
        drawn.scatter_(0, rejected, candidate)
        rejected = rejected.masked_select(flat.index_select(0, client * n_items + candidate))
    return drawn


def _negatives_by_kernel(
    key: Key, positives: Ragged, n_items: int, per_positive: int, known: Tensor | None
) -> Tensor:
    """The same draws by a compiled loop."""
    from coterie.core.kernels.drawing import negatives  # loads numba

    mask = torch.empty(0, 0, dtype=torch.bool) if known is None else known.contiguous()
    drawn = negatives(
        key.unsigned(),
        positives.values.numpy(),
        positives.offsets.numpy(),
        mask.numpy(),
        n_items,
        per_positive,
        NEGATIVE_ATTEMPTS,
    )
    return torch.from_numpy(drawn)


def _first_draws(key: Key, positives: Ragged, n_items: int, per_positive: int) -> Tensor:
    """Draw from all items, ``(n, r)``: each half of a 64-bit hash is one draw."""
    hashes = (per_positive + 1) // 2
    counter = positives.positions[:, None] * hashes + torch.arange(hashes)
    bits = Key(key.take(positives.rows).state[:, None]).bits(counter)
    halves = bits.flatten().view(torch.uint32).to(torch.int64).reshape(counter.shape[0], 2 * hashes)
    return halves[:, :per_positive].mul_(n_items).bitwise_right_shift_(32)


def _pick_free(key: Key, known: Tensor, client: Tensor, counter: Tensor) -> Tensor:
    """Draw by number from the list of free items, ``(m,)``; ``client`` is ascending."""
    rows, row = torch.unique_consecutive(client, return_inverse=True)
    free_row, free_item = (~known[rows]).nonzero(as_tuple=True)
    count = torch.bincount(free_row, minlength=rows.numel())
    start = count.cumsum(0) - count
    place = start[row] + key.take(client).integers(count[row], counter)
    # One entry more, so that the place of a client without free items exists.
    padded = torch.cat([free_item, free_item.new_full((1,), NO_NEGATIVE)])
    return torch.where(count[row] > 0, padded[place], NO_NEGATIVE)


# Random distinct places for some elements of every client, for a whole chunk at once.

# After so many lost draws the elements of a client are dealt the places left over instead. The
# number is fixed, so that no draw depends on what other clients need.
PLACE_ATTEMPTS = 8
_FREE = torch.iinfo(torch.int64).max


def distinct_places(key: Key, elements: Ragged, n_places: Tensor) -> Tensor:
    """Draw where the elements of each client stand, uniformly over all ways to place them.

    Elements draw a place; where several draw the same one, the first keeps it and the others draw
    again. No step looks at the number of a place, so all outcomes are equally likely. This takes
    time by the number of elements, where a shuffle would sort all places.

    Args:
        key: one key a client, ``state`` of shape ``(C,)``.
        elements: of C clients; only their numbers matter.
        n_places: ``(C,)`` int64, at least the number of elements.

    Returns:
        ``(n,)`` int64 for n elements, ordered by client: places, all different; those of client c
        are numbered after those of the clients before it.

    Example:
        >>> key = Key.from_seed(0).fold(torch.tensor([7, 9]))
        >>> elements = Ragged.from_lists([[30, 10], [20]])
        >>> distinct_places(key, elements, torch.tensor([2, 1])).sort().values.tolist()
        [0, 1, 2]
    """
    if key.state.device.type == "cpu" and switch.worthwhile(elements.values.shape[0]):
        return _places_by_kernel(key, elements, n_places)
    places = Ragged.from_lengths(torch.full((int(n_places.sum()),), _FREE), n_places)
    holder, first = places.values, places.offsets
    client, number = elements.rows, elements.positions
    waiting = torch.arange(client.numel())
    place = torch.empty_like(waiting)
    for attempt in range(PLACE_ATTEMPTS):
        drawn = key.take(client).integers(n_places.index_select(0, client), number)
        drawn += first.index_select(0, client)
        place.scatter_(0, waiting, drawn)
        claim = waiting + attempt * place.numel()  # above those of earlier attempts, which stand
        holder.scatter_reduce_(0, drawn, claim, "amin")
        lost = where_true(holder.index_select(0, drawn) != claim)
        if not lost.numel():
            return place
        client, waiting = client.index_select(0, lost), waiting.index_select(0, lost)
        number = number.index_select(0, lost) + _ATTEMPT_STRIDE
    place[waiting] = _deal(deal_key(key), places, client)
    return place


def deal_key(key: Key) -> Key:
    """The keys by which places left over are dealt."""
    return key.fold("deal")


def _places_by_kernel(key: Key, elements: Ragged, n_places: Tensor) -> Tensor:
    """The same places by a compiled loop."""
    from coterie.core.kernels.drawing import places  # loads numba

    starts = Ragged.from_lengths(n_places, n_places).offsets
    deals, offsets = deal_key(key).unsigned(), elements.offsets
    found = places(key.unsigned(), deals, offsets.numpy(), starts.numpy(), PLACE_ATTEMPTS)
    return torch.from_numpy(found)


def _deal(key: Key, places: Ragged, client: Tensor) -> Tensor:
    """Deal free places to elements in random order; ``client``, ascending, is theirs."""
    some, n_waiting = torch.unique_consecutive(client, return_counts=True)
    own = Ragged(torch.arange(places.values.numel()), places.offsets).take(some)
    free = places.values[own.values] == _FREE
    row, position = own.rows[free], own.positions[free]
    order = shuffle_rows(key.take(some[row]), row, position)
    rank = Ragged.from_lengths(order, torch.bincount(row, minlength=some.numel())).positions
    return own.values[free][order[rank < n_waiting[row]]]


# Training pairs with negatives drawn anew in every epoch, and chunks of users to evaluate.

Objective = Literal["pointwise", "pairwise"]

_CHUNK = 1024


class EpochBatches(IterableDataset[Pairs | Triples]):
    """Whole batches of one epoch: pairs drawn and shuffled at once, then cut.

    What an epoch holds is a function of (key, epoch, users, rows), so a resumed run sees the same
    pairs. A user who has every item has no negatives: their positives stay in "pointwise" batches
    and drop out of "pairwise" ones.

    Args:
        users: ``(C,)`` int64, the user of every row.
        train: C rows of positive items, n in all.
        n_items: number of items.
        key: of all draws.
        negatives: negatives for each positive.
        batch_size: pairs a batch (pointwise: positives and negatives are a pair each).
        objective: "pointwise" yields `Pairs`, "pairwise" yields `Triples`.
        epoch: asked at the start of each iteration for the number of the epoch.

    Raises:
        ValueError: there is no pair to train on, or a number is out of range.
    """

    def __init__(
        self,
        users: Tensor,
        train: Ragged,
        n_items: int,
        key: Key,
        negatives: int = 4,
        batch_size: int = 512,
        objective: Objective = "pointwise",
        epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        _check_rows(users, train=train)
        items = train.values
        if items.numel() and not 0 <= int(items.min()) <= int(items.max()) < n_items:
            raise ValueError(f"train has an item outside 0..{n_items - 1}")
        least = 0 if objective == "pointwise" else 1
        if negatives < least or batch_size < 1:
            raise ValueError(
                f"{objective} training needs negatives >= {least} and batch_size >= 1, "
                f"got {negatives} and {batch_size}"
            )
        self.users, self.train, self.n_items, self.key = users, train, n_items, key
        self.negatives, self.batch_size, self.objective = negatives, batch_size, objective
        self.epoch = epoch
        self.open_rows = _rows_with_free_items(train, n_items)
        self.n_pairs = int(train.lengths[self.open_rows].sum()) * negatives
        self.n_pairs += train.values.numel() if objective == "pointwise" else 0
        if not self.n_pairs:
            raise ValueError("there is no pair to train on: no interaction, or no free item")

    def __len__(self) -> int:
        return -(-self.n_pairs // self.batch_size)

    def __iter__(self) -> Iterator[Pairs | Triples]:
        pairs = self.draw(self.epoch())
        for index in torch.arange(self.n_pairs).split(self.batch_size):
            yield type(pairs)(*(part[index] for part in pairs))

    def draw(self, epoch: int) -> Pairs | Triples:
        """All pairs of an epoch, shuffled."""
        key = self.key.fold("epoch", epoch)
        order = torch.argsort(key.fold("shuffle").bits(torch.arange(self.n_pairs)))
        negative = self._negatives(key.fold("negatives"))
        drawn = self.train.take(self.open_rows)
        user = self.users[self.open_rows][drawn.rows].repeat_interleave(self.negatives)
        if self.objective == "pairwise":
            positive = drawn.values.repeat_interleave(self.negatives)
            return Triples(user[order], positive[order], negative[order])
        label = torch.zeros(self.n_pairs)
        label[: self.train.values.numel()] = 1.0
        users = torch.cat([self.users[self.train.rows], user])
        items = torch.cat([self.train.values, negative])
        return Pairs(users[order], items[order], label[order])

    def _negatives(self, key: Key) -> Tensor:
        if not self.negatives:
            return torch.empty(0, dtype=torch.int64)
        # The mask of items to leave out is dense, so it is made for a chunk of rows at a time.
        chunks = [
            (key.fold(self.users[r]), self.train.take(r)) for r in self.open_rows.split(_CHUNK)
        ]
        return torch.cat([sample_negatives(*rows, self.n_items, self.negatives) for rows in chunks])


class RankingChunks:
    """Chunks of the users who have a target, to rank all items for.

    Args:
        users: ``(C,)`` int64, the user of every row.
        excluded: C rows of items left out of the ranking.
        targets: C rows of items to find.
        chunk_size: users a chunk; bounds the memory of a score table.

    Raises:
        ValueError: the numbers of rows differ, or ``chunk_size`` is below 1.
    """

    def __init__(self, users: Tensor, excluded: Ragged, targets: Ragged, chunk_size: int) -> None:
        _check_rows(users, excluded=excluded, targets=targets)
        if chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
        self.users, self.excluded, self.targets = users, excluded, targets
        chunks = (targets.lengths > 0).nonzero()[:, 0].split(chunk_size)
        self.chunks = [rows for rows in chunks if rows.numel()]  # no users split into one chunk

    def __len__(self) -> int:
        return len(self.chunks)

    def __iter__(self) -> Iterator[RankingBatch]:
        for rows in self.chunks:
            yield RankingBatch(self.users[rows], self.excluded.take(rows), self.targets.take(rows))


def _check_rows(users: Tensor, **parts: Ragged) -> None:
    for name, part in parts.items():
        if len(part) != users.numel():
            raise ValueError(f"{name} has {len(part)} rows for {users.numel()} users")


def _rows_with_free_items(train: Ragged, n_items: int) -> Tensor:
    """Rows that do not hold every item, ``(K,)`` int64 ascending; repeated items count once."""
    distinct = torch.unique(train.rows * n_items + train.values)
    count = torch.bincount(distinct // n_items, minlength=len(train))
    return (count < n_items).nonzero()[:, 0]
