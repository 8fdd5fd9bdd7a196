"""Negative items for implicit feedback, drawn for a whole chunk of clients at once."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.kernels import switch
from coterie.core.tensors.keys import Key
from coterie.core.tensors.masks import where_true
from coterie.core.tensors.ragged import Ragged

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
