"""Keys: a key alone, which folds in plain numbers, draws what it draws among others."""

import zlib

import pytest
import torch

from coterie.core.tensors.keys import Key


@pytest.mark.parametrize("parts", [("name",), (3, -1), ("update", 0, 2**62, -(2**63))])
@pytest.mark.parametrize("seed", [0, -7, 2**63 - 1])
def test_a_key_alone_folds_as_among_others(seed: int, parts: tuple[str | int, ...]) -> None:
    ids = torch.tensor([4, 0, 2**40])
    of_all = Key.from_seed(seed).fold(ids)
    together = of_all.fold(*parts)
    for place in range(len(ids)):
        alone = of_all.take(torch.tensor([place])).fold(*parts)
        assert alone.state.tolist() == [int(together.state[place])]
        scalar = Key(of_all.state[place]).fold(*parts)
        assert scalar.state.shape == ()
        assert int(scalar.state) == int(together.state[place])


def mixed(state: int) -> int:
    """SplitMix64 in Python's own numbers."""
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


@pytest.mark.parametrize("of_each", [False, True])
def test_folding_is_mixing_the_state_with_the_mixed_part(of_each: bool) -> None:
    ids, more = torch.tensor([4, 0, -9]), torch.tensor([7, 2**40, 7])
    key = Key.from_seed(5)
    found = (key.fold(ids) if of_each else key).fold("batches", more, 3).state.tolist()
    for place, state in enumerate(found):
        expected = mixed(5)
        first = [int(ids[place])] if of_each else []
        for part in (*first, zlib.crc32(b"batches"), int(more[place]), 3):
            expected = mixed(expected ^ mixed(part % 2**64))
        assert state % 2**64 == expected
