"""Dropout from 16 bits a unit: the share that is dropped, and the exact scale."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.tensors.keys import Key
from coterie.msmt.models.fast.hidden import Dropout


@given(st.floats(0, 0.999999))
def test_the_mean_stays(rate: float) -> None:
    # Over all values that 16 bits can have, not a sample of them.
    dropout = Dropout(rate)
    bits = torch.arange(-(1 << 15), 1 << 15)
    kept = (bits > dropout.bound).double()
    assert (kept.mean() * dropout.scale).item() == pytest.approx(1, rel=1e-15)
    assert 1 - kept.mean().item() == pytest.approx(rate, abs=0.5 / 65536 + 1e-5)


def test_a_rate_of_0_keeps_everything() -> None:
    assert Dropout(0.0).dropped == 0
    assert Dropout(0.0).scale == 1
    assert Dropout(0.0).bound < -(1 << 15)


def test_bits_are_uniform_in_every_lane() -> None:
    # Words of 64 bits hold four lanes; `random_` without bounds leaves one of their signs out.
    with Key.from_seed(5).torch_rng():
        lanes = Dropout.bits(torch.empty(400, 1000)).reshape(-1, 4)
    n = len(lanes)
    for lane in lanes.T.double():
        assert lane.mean().abs() < 5 * 65536 / (12 * n) ** 0.5
        assert abs((lane < 0).double().mean() - 0.5) < 5 * 0.5 / n**0.5
        share = (lane > Dropout(0.2).bound).double().mean().item()
        assert abs(share - 0.8) < 5 * (0.16 / n) ** 0.5
    together = torch.corrcoef(lanes.T.double()) - torch.eye(4)
    assert together.abs().max() < 5 / n**0.5


def test_bits_follow_the_generator() -> None:
    def under(seed: int) -> torch.Tensor:
        with Key.from_seed(seed).torch_rng():
            return torch.cat([Dropout.bits(torch.empty(3, 7)), Dropout.bits(torch.empty(3, 7))])

    assert torch.equal(under(1), under(1))
    assert not torch.equal(under(1), under(2))
    first, second = under(1).split(3)
    assert not torch.equal(first, second)


def test_any_shape() -> None:
    for rows, columns in ((1, 1), (1, 5), (3, 3), (2, 8)):
        bits = Dropout.bits(torch.empty(rows, columns))
        assert bits.shape == (rows, columns)
        assert bits.dtype == torch.int16
