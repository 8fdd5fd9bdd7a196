"""What the methods are to each other: switched off they are FT, ablations are what they say."""

import functools
from dataclasses import replace

import pytest
import torch
from tests.continual import reference as naive
from tests.continual.stream import (
    ABLATIONS,
    BACKBONES,
    METHODS,
    make_stream,
    settings,
    simulate,
)

from coterie.continual.settings import (
    KDSettings,
    RegSettings,
    ReplaySettings,
    RLP2Settings,
    SPPSettings,
    TemporalMeanSettings,
)

BLOCKS = make_stream(60)[:2]
REPLAY = ReplaySettings(6, 0.01, 0.3)
NO_BLEND = TemporalMeanSettings(beta=0.0)
NO_KD = replace(REPLAY, lambda_kd=0.0)
SWITCHED_OFF = {
    "reg": {"reg": RegSettings(strength=0.0)},
    "kd": {"kd": KDSettings(strength=0.0)},
    "rlp2": {"rlp2": RLP2Settings(strength=0.0, capacity=12)},
    "rlp2 without memory": {"rlp2": RLP2Settings(threshold=1.0, capacity=12)},
    "spp": {"spp": SPPSettings(strength=0.0, refresh=2)},
    "spp without items": {"spp": SPPSettings(n_slow=0, n_fast=0, refresh=2)},
    "f3crec": {"replay": NO_KD, "temporal_mean": NO_BLEND},
    "f3crec-wo-cc": {"temporal_mean": NO_BLEND},
    "f3crec-wo-arm": {"replay": NO_KD, "temporal_mean": NO_BLEND},
    "f3crec-wo-sc": {"replay": NO_KD},
    "f3crec-wo-itm": {"replay": NO_KD, "temporal_mean": NO_BLEND},
}


def run(method, backbone="fedmf", blocks=BLOCKS, **changes):
    chosen = settings(method.split()[0], backbone, **{"rounds": 3} | changes)
    return simulate(chosen, blocks, n_items=(30, 36))


@functools.cache
def fine_tuned(backbone="fedmf", blocks=2):
    """The run that others are compared with, once; nobody writes into it."""
    return run("ft", backbone, BLOCKS[:blocks])


def assert_equal(a, b, *, results=True):
    """Bit for bit: tables, private parameters, and what was measured."""
    assert torch.equal(a.state.items, b.state.items)
    assert torch.equal(a.state.best, b.state.best)
    (ids, mine), (other_ids, other) = a.private(), b.private()
    assert torch.equal(ids, other_ids)
    for name in mine.params:
        assert torch.equal(mine.params[name], other.params[name])
        assert torch.equal(mine.best[name], other.best[name])
    for x, y in zip(a.scalars, b.scalars, strict=True):
        measured = ("test/", "valid/")
        names = {
            n for n in x if n != "f3crec/replay_size" and (results or not n.startswith(measured))
        }
        assert {n: x[n] for n in names} == pytest.approx({n: y[n] for n in names}, abs=0)


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("method", SWITCHED_OFF)
def test_switched_off_every_method_is_fine_tuning(method, backbone):
    assert_equal(run(method, backbone, **SWITCHED_OFF[method]), fine_tuned(backbone))


@pytest.mark.parametrize("method", [m for m in (*METHODS, *ABLATIONS) if m not in ("ft", "rlp2")])
def test_switched_on_it_is_not(method):
    a, b = run(method), fine_tuned()
    assert float((a.state.items - b.state.items).abs().max()) > 1e-4


@pytest.mark.parametrize("method", [*METHODS, *ABLATIONS])
def test_the_base_block_is_the_same_for_all(method):
    """Only what RLP2 tests differs: the block's own training samples correct it."""
    a, b = run(method, blocks=BLOCKS[:1]), fine_tuned(blocks=1)
    assert_equal(a, b, results=method != "rlp2")


@pytest.mark.parametrize("epsilon", [1e6])
def test_a_shift_beyond_all_bounds_empties_the_memory(epsilon):
    """Once a list has moved at all, ε → ∞ replays nothing of it."""
    chosen = replace(REPLAY, epsilon=epsilon, top_n=20)
    a, b = run("f3crec-wo-sc", replay=chosen), fine_tuned()
    assert a.scalars[-1]["f3crec/replay_size"] == 0.0
    full = run("f3crec-wo-sc", replay=replace(chosen, epsilon=0.0))
    near = float((a.state.items - b.state.items).abs().max())
    far = float((full.state.items - b.state.items).abs().max())
    assert near < 0.2 * far


class TestAblations:
    def test_without_client_side(self):
        """W/o c.c = no replay: F³CRec at λ = 0."""
        assert_equal(run("f3crec-wo-cc"), run("f3crec", replay=NO_KD))

    def test_without_adaptive_memory(self):
        """W/o a.r.m = the whole list: F³CRec at ε = 0."""
        assert_equal(run("f3crec-wo-arm"), run("f3crec", replay=replace(REPLAY, epsilon=0.0)))

    def test_without_server_side(self):
        """W/o s.c = pre-aggregation only: F³CRec at β = 0."""
        assert_equal(run("f3crec-wo-sc"), run("f3crec", temporal_mean=NO_BLEND))

    def test_kd_is_without_adaptive_memory_and_server_side(self):
        assert_equal(run("kd"), run("f3crec-wo-arm", temporal_mean=NO_BLEND))

    @pytest.mark.parametrize(
        ("method", "plain", "item_wise"),
        [
            ("f3crec", "f3crec-wo-sc", True),
            ("f3crec-wo-itm", "f3crec-wo-sc", False),
            ("f3crec-wo-cc", "ft", True),
            ("f3crec-wo-arm", "kd", True),
        ],
    )
    def test_the_server_blends_what_the_plain_mean_gives(self, method, plain, item_wise):
        """First round of block 1: Eq. 8 to 13 over the pre-aggregated table."""
        once = {"rounds": 1, "patience": 1}
        blended, mean = run(method, **once), run(plain, **once)
        old = mean.tables[0]
        expected = naive.blend(mean.state.items, old, 0.9, item_wise)
        assert torch.equal(mean.tables[0], blended.tables[0])
        torch.testing.assert_close(blended.state.items, expected, rtol=0, atol=1e-14)
        assert torch.equal(blended.state.items[30:], mean.state.items[30:])


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("reading", ["literal", "released"])
def test_the_other_readings_run(backbone, reading):
    open_choices = {"carry": None, "restart_private": None, "replay": REPLAY}
    a = run("f3crec", backbone, reading=reading, **open_choices)
    assert a.refused == []
    best, last = a.state.best, a.state.items
    assert bool(best.isfinite().all())
    assert bool(last.isfinite().all())
