"""Clipping and noise: norms, distributions, independence of chunks, and what the ledger counts."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.privacy import noise as draws
from coterie.core.privacy.noise import Clip, GaussianNoise, LaplaceNoise, pad_rows
from coterie.core.protocol.messages import Report, Reveals, Up, leaves
from coterie.core.tensors.keys import Key
from coterie.core.tensors.rows import DenseRows, FactoredRows, Rows, TouchedRows
from coterie.core.tensors.stacked import Ragged

N, D = 40, 6


@dataclasses.dataclass(frozen=True)
class Upload(Up):
    items: Rows = leaves("item rows", reveals=Reveals.ITEMS_TOUCHED)
    head: dict[str, Tensor] = leaves("head", reveals=Reveals.PARAMETERS)
    loss: Tensor = leaves("loss", reveals=Reveals.MEASUREMENT)
    bias: Tensor | None = leaves("bias", reveals=Reveals.PARAMETERS)


@dataclasses.dataclass(frozen=True)
class Metrics(Report):
    ndcg: Tensor = leaves("NDCG", reveals=Reveals.MEASUREMENT)


def keys(count: int) -> Key:
    return Key.from_seed(3).fold(torch.arange(count))


def factored(clients: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> FactoredRows:
    """Two terms a client, the last client only one; about a third of the rows touched."""
    draw = torch.Generator().manual_seed(seed)
    owner = torch.cat([torch.arange(clients), torch.arange(clients - 1)])
    left = torch.randn(owner.numel(), N, generator=draw, dtype=dtype)
    left = left * (torch.rand(left.shape, generator=draw) < 0.2)
    right = torch.randn(owner.numel(), D, generator=draw, dtype=dtype)
    return FactoredRows(owner, left, right, clients)


def upload(clients: int, seed: int = 0) -> Upload:
    draw = torch.Generator().manual_seed(seed + 100)
    weight = torch.randn(clients, 2, 3, generator=draw, dtype=torch.float64)
    return Upload(factored(clients, seed), {"w": weight}, torch.ones(clients), None)


def forms(rows: FactoredRows) -> list[Rows]:
    return [rows, rows.wire(), DenseRows(rows.dense())]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("form", [0, 1, 2])
def test_clip_bounds_the_norm_of_all_parameters_together(order: int, form: int) -> None:
    up = upload(5)
    flat = torch.cat([up.items.dense().flatten(1), up.head["w"].flatten(1)], 1).numpy()
    norms = np.array([np.linalg.norm(row, order) for row in flat])
    limit = float(np.median(norms))
    clipped = Clip(limit, order)(dataclasses.replace(up, items=forms(up.items)[form]), keys(5))
    got = torch.cat([clipped.items.dense().flatten(1), clipped.head["w"].flatten(1)], 1).numpy()
    expected = flat * np.minimum(1.0, limit / norms)[:, None]
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert torch.equal(clipped.loss, up.loss)
    again = Clip(limit, order)(clipped, keys(5))
    np.testing.assert_allclose(again.items.dense(), clipped.items.dense(), rtol=1e-12)


def test_clip_of_a_zero_upload_and_of_no_parameters() -> None:
    zero = TouchedRows(Ragged.from_lists([[], [1]]), torch.zeros(1, D), N)
    up = Upload(zero, {"w": torch.zeros(2, 1)}, torch.ones(2), None)
    assert Clip(1.0)(up, keys(2)).items.dense().abs().sum() == 0
    report = Metrics(torch.tensor([float("nan"), 9.0]))
    assert Clip(1.0)(report, keys(2)) is report
    assert LaplaceNoise(1.0)(report, keys(2)) is report


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_clip_and_scale_must_be_positive_numbers(bad: float) -> None:
    with pytest.raises(UserError, match=r"privacy\.clip"):
        Clip(bad)
    with pytest.raises(UserError, match=r"privacy\.scale"):
        GaussianNoise(bad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_have_their_distributions(dtype: torch.dtype) -> None:
    for draw, law in ((draws.laplace, stats.laplace), (draws.normal, stats.norm)):
        sample = draw(keys(20), 5001, dtype)
        assert sample.dtype == dtype
        assert sample.shape == (20, 5001)
        assert stats.kstest(sample.double().numpy().ravel(), law.cdf).pvalue > 1e-3
        tail = law.isf(1e-4)  # 10 of 100,020 expected on this side
        assert 1 <= int((sample > tail).sum()) <= 25
        assert abs(np.corrcoef(sample.double().numpy())[np.triu_indices(20, 1)]).max() < 0.06
        halves = sample[:, :2500].double().flatten(), sample[:, 2501:].double().flatten()[:50_000]
        assert abs(stats.spearmanr(*halves).statistic) < 0.02


def test_draws_agree_between_precisions_and_with_empty_shapes() -> None:
    for draw in (draws.laplace, draws.normal):
        assert torch.allclose(
            draw(keys(3), 999, torch.float32).double(), draw(keys(3), 999, torch.float64), atol=2e-5
        )
        assert draw(keys(0), 5).shape == (0, 5)
        assert draw(keys(4), 0).shape == (4, 0)


@pytest.mark.parametrize("kind", [LaplaceNoise, GaussianNoise])
def test_noise_is_added_to_every_row_and_parameter_with_its_variance(kind: type) -> None:
    up = upload(200)
    noisy = kind(0.3)(up, keys(200))
    assert isinstance(noisy.items, DenseRows)
    noise = noisy.items.dense() - up.items.dense()
    variance = 2 * 0.3**2 if kind is LaplaceNoise else 0.3**2
    assert noise.var().item() == pytest.approx(variance, rel=0.05)
    assert (noise != 0).all()
    untouched = noise[up.items.dense() == 0]
    assert untouched.var().item() == pytest.approx(variance, rel=0.05)
    head = noisy.head["w"] - up.head["w"]
    assert head.var().item() == pytest.approx(variance, rel=0.2)
    assert torch.equal(noisy.loss, up.loss)
    assert noisy.bias is None


@pytest.mark.parametrize("kind", [LaplaceNoise, GaussianNoise])
@pytest.mark.parametrize("options", [{}, {"uploads": "padded", "padded_rows": 25}])
def test_noise_does_not_depend_on_chunks_order_or_form(kind: type, options: dict) -> None:
    up, layer = upload(9), kind(0.5, **options)
    whole = layer(up, keys(9))
    for form in forms(up.items)[: 2 if options else 3]:
        got = layer(dataclasses.replace(up, items=form), keys(9)).items.dense()
        assert torch.allclose(got, whole.items.dense(), atol=1e-12)
    for clients in ([0], [3, 4], [8, 2, 5]):
        index = torch.tensor(clients)
        rows = up.items.wire().take(index)
        part = Upload(rows, {"w": up.head["w"][index]}, up.loss[index], None)
        alone = layer(part, keys(9).take(index))
        assert torch.allclose(alone.items.dense(), whole.items.dense()[index], atol=1e-12)
        torch.testing.assert_close(alone.head["w"], whole.head["w"][index])


def test_fields_rounds_and_clients_get_different_noise() -> None:
    layer = LaplaceNoise(1.0)
    flat = DenseRows(torch.zeros(2, 4, 3))
    up = Upload(flat, {"w": torch.zeros(2, 4, 3)}, torch.zeros(2), torch.zeros(2, 4, 3))
    one, two = layer(up, keys(2)), layer(up, keys(2).fold("round", 1))
    tables = [one.items.values, one.head["w"], one.bias, two.items.values]
    tables = [t for table in tables for t in table]
    for i, a in enumerate(tables):
        assert all(not torch.allclose(a, b) for b in tables[:i])


def test_noise_on_touched_rows_only_is_refused() -> None:
    with pytest.raises(UserError, match="would still show which rows"):
        LaplaceNoise(0.1, "touched")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="padded_rows"):
        LaplaceNoise(0.1, "padded")
    with pytest.raises(UserError, match="padded_rows"):
        LaplaceNoise(0.1, padded_rows=3)


@pytest.mark.parametrize("layer", [Clip(1.0), Clip(1.0, 1), LaplaceNoise(1.0), GaussianNoise(1.0)])
@pytest.mark.parametrize(
    "ids", [torch.ones(2, 3, dtype=torch.int64), Ragged.from_lists([[7], [8, 9]])]
)
def test_ids_are_neither_clipped_nor_hidden_by_noise(layer: Any, ids: Any) -> None:
    up = Upload(factored(2), {"w": ids}, torch.zeros(2), None)
    with pytest.raises(UserError, match=r"'head.w' holds no real numbers"):
        layer(up, keys(2))


def test_noise_names_the_chunk_that_fits() -> None:
    # 100,000 whole tables of 1152 x 32 would be 13.7 GiB; nothing may be allocated before.
    big = TouchedRows(Ragged.from_lists([[]] * 100_000), torch.zeros(0, 32), 1152)
    with pytest.raises(UserError, match=r"13\.7 GiB: set engine\.chunk to 1820 or less"):
        LaplaceNoise(1.0).rows(big, keys(100_000))


def test_padding_hides_the_number_of_touched_rows() -> None:
    up = factored(30).wire()
    padded = pad_rows(up, 25, keys(30))
    assert padded.touched().tolist() == [25] * 30
    assert torch.equal(padded.dense(), up.dense())
    for mine, all_rows in zip(up.index.tolists(), padded.index.tolists(), strict=True):
        assert set(mine) <= set(all_rows)
        assert all_rows == sorted(set(all_rows))
    assert len({tuple(rows) for rows in padded.index.tolists()}) == 30
    noisy = LaplaceNoise(0.1, "padded", 25).rows(up, keys(30))
    assert isinstance(noisy, TouchedRows)
    assert (noisy.values != 0).all()
    most = int(up.touched().max())
    with pytest.raises(UserError, match=f"a client changed {most} of {N} rows"):
        pad_rows(up, most - 1, keys(30))
    with pytest.raises(UserError, match="choose"):
        pad_rows(up, N + 1, keys(30))


def test_dense_rows_keep_the_protocol_of_rows() -> None:
    other = factored(5)
    rows = DenseRows(other.dense())
    assert (rows.n_clients, rows.width, rows.element_size) == (5, D, 8)
    factor = torch.rand(5, dtype=torch.float64)
    index = torch.tensor([1, 4])
    assert torch.allclose(rows.sum(), other.sum())
    assert torch.allclose(rows.squared_norm(), other.squared_norm())
    assert torch.allclose(rows.scaled(factor).dense(), other.scaled(factor).dense())
    assert torch.allclose(rows.take(index).dense(), other.take(index).dense())
    assert rows.wire() is rows
    assert rows.nbytes().tolist() == [N * D * 8] * 5  # no row numbers
    values = rows.values.clone()
    values[3, 0, 0] = float("nan")
    assert DenseRows(values).finite().tolist() == [True, True, True, False, True]


def test_one_client_and_none() -> None:
    one = upload(1)
    assert LaplaceNoise(0.1)(one, keys(1)).items.dense().shape == (1, N, D)
    none = TouchedRows(Ragged.from_lists([]), torch.zeros(0, D), N)
    up = Upload(none, {"w": torch.zeros(0, 2)}, torch.zeros(0), None)
    noisy = LaplaceNoise(0.1)(Clip(1.0)(up, keys(0)), keys(0))
    assert noisy.items.dense().shape == (0, N, D)
    assert noisy.head["w"].shape == (0, 2)
