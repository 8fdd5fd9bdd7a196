"""Numbers below 1e-38 are zero inside a block, and only there."""

import pytest
import torch

from coterie.core.tensors.device import tiny_as_zero


def quarter() -> float:
    return float(torch.full((64,), 2e-38).mul(0.25)[5])


def test_what_was_before_is_so_again() -> None:
    assert quarter() > 0
    with tiny_as_zero():
        assert quarter() == 0
        with tiny_as_zero():
            assert quarter() == 0
        assert quarter() == 0
    assert quarter() > 0


def test_an_error_ends_it_too() -> None:
    with pytest.raises(ZeroDivisionError), tiny_as_zero():
        _ = 1 / 0
    assert quarter() > 0


def test_gradients_are_computed_so_too() -> None:
    given = torch.full((64,), 2e-38, requires_grad=True)
    with tiny_as_zero():
        (grad,) = torch.autograd.grad(given.square().sum() * 0.5, given)
        assert not (grad * 0.25).any()
