"""The hidden layer in one piece: beside torch's layers, and beside finite differences."""

import pytest
import torch
from torch import Tensor, nn

from coterie.core.tensors.keys import Key
from coterie.msmt.models.fast import hidden as chunks
from coterie.msmt.models.fast.hidden import Dropout, hidden
from coterie.msmt.models.fast.layers import mixed
from coterie.msmt.models.fast.norm import Norm, variance_of

KEY = Key.from_seed(11)
NONE, HALF = Dropout(0.0), Dropout(0.5)


def draw(name: str, *shape: int) -> Tensor:
    return KEY.fold(name).normal(*shape, dtype=torch.float64).requires_grad_()


def layer(groups: int, weights: int, shared: bool, n_in: int = 4, n_out: int = 5, batch: int = 7):
    x = draw("x", n_in, batch) if shared else draw("x", groups, n_in, batch)
    return (
        x,
        draw("weight", weights, n_out, n_in),
        draw("gain", groups, n_out),
        draw("shift", groups, n_out),
    )


each_shape = pytest.mark.parametrize(
    ("groups", "weights", "shared"), [(2, 2, False), (2, 2, True), (6, 2, False), (1, 1, False)]
)


def by_torch(x: Tensor, weight: Tensor, gain: Tensor, shift: Tensor, norm: bool) -> Tensor:
    outputs = []
    for g in range(len(shift)):
        seen = x if x.dim() == 2 else x[g]
        z = seen.T @ weight[g % len(weight)].T
        if norm:
            part = nn.BatchNorm1d(z.shape[1], dtype=z.dtype)
            z = nn.functional.batch_norm(z, None, None, gain[g], shift[g], True, 0.1, part.eps)
        else:
            z = z + shift[g]
        outputs.append(nn.functional.relu(z).T)
    return torch.stack(outputs)


@each_shape
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("bytes_", [1 << 20, 112, 8])  # all rows of 56 bytes at once, two, one
def test_it_is_torchs_layers(groups, weights, shared, norm, bytes_, monkeypatch) -> None:
    monkeypatch.setattr(chunks, "BYTES", bytes_)
    x, weight, gain, shift = layer(groups, weights, shared)
    expected = by_torch(x, weight, gain, shift, norm)
    found, mean, rstd = hidden(x, weight, gain if norm else None, shift, NONE)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
    probe = torch.linspace(-1, 2, found.numel()).double().view_as(found)
    of = (x, weight, gain, shift) if norm else (x, weight, shift)
    theirs = torch.autograd.grad((expected.sin() * probe).sum(), of)
    ours = torch.autograd.grad((found.sin() * probe).sum(), of)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, other, rtol=1e-10, atol=1e-12)
    assert mean.shape == rstd.shape == (groups, 5)


@each_shape
@pytest.mark.parametrize("norm", [True, False])
def test_gradients_are_those_of_finite_differences(groups, weights, shared, norm) -> None:
    x, weight, gain, shift = layer(groups, weights, shared, n_in=3, n_out=2, batch=5)
    given = (x, weight, gain, shift) if norm else (x, weight, shift)
    assert torch.autograd.gradcheck(_Again.apply, given)


class _Again(torch.autograd.Function):
    """The layer, run again for each backward, since it allows one."""

    @staticmethod
    def forward(ctx, *given: Tensor) -> Tensor:
        ctx.save_for_backward(*given)
        return _run(given)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, ...]:
        given = [each.detach().requires_grad_() for each in ctx.saved_tensors]
        with torch.enable_grad():
            return torch.autograd.grad(_run(given), given, grad)


def _run(given) -> Tensor:
    gain = given[2] if len(given) == 4 else None
    return hidden(given[0], given[1], gain, given[-1], NONE)[0]


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("dropout", [HALF, Dropout(0.2), Dropout(0.9)])
def test_dropout_is_a_mask_with_a_scale(norm: bool, dropout: Dropout) -> None:
    x, weight, gain, shift = layer(6, 2, False, n_out=50, batch=40)
    given = gain if norm else None
    whole = by_torch(x, weight, gain, shift, norm)
    with KEY.torch_rng():
        found = hidden(x, weight, given, shift, dropout)[0]
    with KEY.torch_rng():
        mask = torch.stack([Dropout.bits(torch.empty(50, 40)) > dropout.bound for _ in range(6)])
    expected = whole * mask * dropout.scale
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
    n = mask.numel()
    spread = (dropout.rate * (1 - dropout.rate) / n) ** 0.5
    assert abs((~mask).double().mean() - dropout.rate) < 4 * spread
    of = (x, weight, gain, shift) if norm else (x, weight, shift)
    theirs = torch.autograd.grad(expected.sin().sum(), of)
    ours = torch.autograd.grad(found.sin().sum(), of)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, other, rtol=1e-9, atol=1e-10)


def test_networks_and_calls_drop_different_units() -> None:
    x, weight, _, shift = layer(2, 2, True, n_out=20, batch=30)
    ones = torch.ones_like(shift)
    with KEY.torch_rng():
        first, second = (hidden(0 * x, weight, None, ones, HALF)[0] > 0 for _ in range(2))
    for one, other in ((first[0], first[1]), (first, second)):
        assert abs((one == other).double().mean() - 0.5) < 0.1


def test_rows_without_a_gradient() -> None:
    x, weight, gain, shift = layer(3, 3, True)
    whole = torch.autograd.grad(hidden(x, weight, gain, shift, NONE)[0].sin().sum(), x)[0]
    found = torch.autograd.grad(
        hidden(x, weight, gain, shift, NONE, fixed=3)[0].sin().sum(), (x, weight)
    )[0]
    assert torch.equal(found[:3], torch.zeros_like(found[:3]))
    assert torch.allclose(found[3:], whole[3:], atol=1e-12)


def test_running_statistics_are_torchs() -> None:
    x, weight, gain, shift = layer(2, 2, False)
    norm = Norm(2, 5).double()
    others = [nn.BatchNorm1d(5, dtype=torch.float64) for _ in range(2)]
    for step in range(3):
        seen = x * (step + 1)
        _, mean, rstd = hidden(seen, weight, gain, shift, NONE, norm.eps)
        norm.track(mean, variance_of(rstd, norm.eps), seen.shape[-1])
        for g, other in enumerate(others):
            other(seen[g].T @ weight[g].T)
    for g, other in enumerate(others):
        assert torch.allclose(norm.running_mean[g], other.running_mean, rtol=1e-12, atol=1e-13)
        assert torch.allclose(norm.running_var[g], other.running_var, rtol=1e-12, atol=1e-13)
        assert norm.num_batches_tracked == other.num_batches_tracked
        z = draw("z", 4, 5)
        slope, offset = norm.affine()
        expected = nn.functional.batch_norm(
            z, other.running_mean, other.running_var, other.weight, other.bias
        )
        assert torch.allclose(z * slope[g] + offset[g], expected, atol=1e-12)


def test_one_sample_is_refused_as_by_torch() -> None:
    x, weight, gain, shift = layer(2, 2, False, batch=1)
    with pytest.raises(ValueError, match="more than 1 value"):
        nn.BatchNorm1d(5)(torch.ones(1, 5))
    with pytest.raises(ValueError, match="2 samples or more in training, not 1"):
        hidden(x, weight, gain, shift, NONE)
    assert hidden(x, weight, None, shift, NONE)[0].shape == (2, 5, 1)


def test_a_second_backward_is_refused() -> None:
    x, weight, gain, shift = layer(2, 2, False)
    value = hidden(x, weight, gain, shift, NONE)[0].sum()
    value.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_float32_is_as_good_as_torchs() -> None:
    x, weight, gain, shift = layer(1, 1, False, n_in=32, n_out=16, batch=512)
    with torch.no_grad():
        weight += 3.0  # means that are large beside the spread
    given = [each.detach().float().requires_grad_() for each in (x, weight, gain, shift)]
    exact = torch.autograd.grad(by_torch(x, weight, gain, shift, True).sin().sum(), (x, weight))
    errors = []
    for value in (hidden(*given, NONE)[0], by_torch(*given, True)):
        found = torch.autograd.grad(value.sin().sum(), given[:2])
        errors.append([(f - e).norm() / e.norm() for f, e in zip(found, exact, strict=True)])
    for ours, theirs in zip(*errors, strict=True):
        assert ours < 4 * theirs + 1e-6


@pytest.mark.parametrize("common", [True, False])
def test_the_gated_sum(common: bool) -> None:
    shares = draw("shares", 2, 3, 5)
    experts = draw("experts", 3, 4, 5) if common else draw("experts", 2, 3, 4, 5)
    expected = (shares[:, :, None] * experts).sum(1)
    assert torch.allclose(mixed(shares, experts), expected, atol=1e-13)
    assert torch.autograd.gradcheck(mixed, (shares, experts))
