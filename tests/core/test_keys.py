"""Keys: a key alone, which folds in plain numbers, draws what it draws among others."""

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
