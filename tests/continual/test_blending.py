"""The item-wise temporal mean by a compiled loop: as by tensors, and as row by row."""

from dataclasses import replace

import pytest
import torch
from tests.continual import reference as naive
from tests.continual.stream import settings

from coterie.continual import compiling
from coterie.continual.algorithm import F3CRec, ServerState
from coterie.core.kernels import switch
from coterie.core.settings.sections import EngineSettings
from coterie.core.tensors.keys import Key

BETA = 0.6


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(compiling, "MANY_ITEMS", 0)


def tables(n_old, n, dtype, dim=5):
    """A table, and what its old rows were: some of them did not move, one moved far."""
    old, new = (
        Key.from_seed(seed).fold(torch.arange(n)).normal(dim, dtype=dtype) for seed in (1, 2)
    )
    new[: n_old // 2] = old[: n_old // 2]
    new[n_old - 1 :] *= 1e3
    return new, old[:n_old]


def blended(method, table, old, kernels, **changes):
    server = F3CRec(settings(method, **changes), (len(old), len(table)))
    chosen = replace(server.settings.temporal_mean, beta=BETA)
    server.settings = replace(server.settings, temporal_mean=chosen)
    with switch.kernels(kernels):
        return server.blended(ServerState(table, table, old, block=1), table)


@pytest.mark.parametrize("method", ["f3crec", "f3crec-wo-cc", "f3crec-wo-arm", "f3crec-wo-itm"])
@pytest.mark.parametrize(("n_old", "n"), [(20, 20), (20, 27), (1, 1)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_with_and_without(method, n_old, n, dtype, tolerance):
    table, old = tables(n_old, n, dtype)
    before = table.clone()
    compiled, plain = (blended(method, table, old, on) for on in (True, False))
    assert compiled.dtype == plain.dtype == dtype
    torch.testing.assert_close(compiled, plain, rtol=tolerance, atol=tolerance)
    expected = naive.blend(table, old, BETA, item_wise=method != "f3crec-wo-itm")
    torch.testing.assert_close(compiled, expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(compiled[n_old:], table[n_old:])
    assert torch.equal(table, before)


def test_columns_of_another_table():
    """Strides are no matter."""
    table, old = tables(6, 9, torch.float64, 8)
    some = table[:, ::2], old[:, ::2]
    found = blended("f3crec", *some, True)
    torch.testing.assert_close(found, blended("f3crec", *some, False), rtol=0, atol=1e-14)


def test_when_it_pays(monkeypatch):
    """By what all parties know alike: a setting, the number of items, the device."""
    chosen = settings()
    off = settings(engine=EngineSettings(kernels="off"))
    table = torch.zeros(7, 2)
    assert compiling.pays(chosen, table)
    assert not compiling.pays(off, table)
    assert not compiling.pays(chosen, table.to("meta"))
    with switch.kernels(False):
        assert not compiling.pays(chosen, table)
    monkeypatch.setattr(compiling, "MANY_ITEMS", 8)
    assert not compiling.pays(chosen, table)
    assert compiling.pays(chosen, torch.zeros(8, 2))
