"""Random distinct places for some elements of every client, for a whole chunk at once."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.kernels import switch
from coterie.core.tensors.keys import Key, shuffle_rows
from coterie.core.tensors.masks import where_true
from coterie.core.tensors.ragged import Ragged

# After so many lost draws the elements of a client are dealt the places left over instead. The
# number is fixed, so that no draw depends on what other clients need.
PLACE_ATTEMPTS = 8
_ATTEMPT_STRIDE = 1 << 32
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
