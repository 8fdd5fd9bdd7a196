"""Training on touched items by a compiled loop: the same as with the scores of all items."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tests.continual.stream import BACKBONES, METHODS, F3CRec, block_data, make_stream, settings
from tests.continual.stream import simulate as run
from tests.continual.test_chunks import assert_same, cohort_of
from tests.continual.test_local_update import compare, make

from coterie.continual import compiling
from coterie.continual.batches import draw_batches, draw_samples, plan_of
from coterie.continual.client import ContinualClient
from coterie.continual.messages import UPDATE, ItemTable
from coterie.core.kernels import switch
from coterie.core.privacy.build import middleware
from coterie.core.protocol.uploads import Bounds, Sum
from coterie.core.settings.sections import EngineSettings, PrivacySettings
from coterie.core.tensors.keys import Key
from coterie.core.tensors.rows import FactoredRows
from coterie.core.tensors.sparse_rows import SparseFactoredRows
from coterie.core.tensors.stacked import Ragged

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = make_stream()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """Kernels at any size."""
    monkeypatch.setattr(compiling, "MANY_ITEMS", 0)
    monkeypatch.setattr(switch, "ENOUGH", 0)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_against_users_with_tables_of_their_own(backbone):
    """Several batches, two epochs, one user with all items; autograd in float64."""
    up = compare(*make("ft", backbone))
    assert isinstance(up.items, SparseFactoredRows)


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
def test_a_round_with_and_without(backbone, dtype, tolerance):
    """Table, private parameters, loss, and every byte that is counted."""
    chosen = settings("ft", backbone, dtype=dtype, model={"epochs": 2})
    (compiled, mine), (plain, others) = (one_round(chosen, on) for on in (True, False))
    torch.testing.assert_close(compiled[0], plain[0], rtol=0, atol=tolerance)
    torch.testing.assert_close(compiled[1], plain[1], rtol=tolerance, atol=0)
    assert compiled[2] == plain[2]
    for name, value in mine.params.items():
        torch.testing.assert_close(value, others.params[name], rtol=0, atol=tolerance)


def one_round(chosen, kernels, chunk=None, layers=(), asked=UPDATE):
    """Mean change of items, losses and ledger of a round, and the private state after it."""
    data = BLOCKS[0]
    cohort = cohort_of(chosen, data, chunk)
    cohort.enrol()
    cohort.exchange.middleware = layers
    items = F3CRec(chosen, (30,)).begin(Key.from_seed(0)).items * 3
    with switch.kernels(kernels):
        replies = cohort.ask(asked, ItemTable(items), reduce=Sum())
    assert replies.ids.numel() == len(data.ids)
    mean = replies.total.items.sum() / len(replies)
    return (mean, replies.total.loss, cohort.ledger.rows()), cohort.store.take(data.ids)


@pytest.mark.parametrize("method", METHODS)
def test_whole_runs(method):
    """With replay, and with a pull in later blocks, which moves all items."""
    chosen = settings(method, rounds=2)  # SPP draws in the second
    with switch.kernels(False):
        plain = run(chosen, BLOCKS)
    assert_same(run(chosen, BLOCKS), plain, 1e-12)


def test_chunks():
    (whole, _), (cut, _) = (one_round(settings("ft"), True, chunk) for chunk in (None, 7))
    torch.testing.assert_close(whole[0], cut[0], rtol=0, atol=1e-13)
    assert whole[2] == cut[2]


def test_clipped_and_noisy_uploads():
    """Middleware has each client's upload of its own."""
    private = PrivacySettings(clip=0.5, noise="laplace", scale=0.01)
    layers = middleware(private, ContinualClient(settings("ft")).steps())
    (compiled, _), (plain, _) = (one_round(settings("ft"), on, None, layers) for on in (1, 0))
    torch.testing.assert_close(compiled[0], plain[0], rtol=0, atol=1e-12)
    assert compiled[2] == plain[2]


def test_who_diverges_is_left_out_alone():
    chosen, data = settings("ft"), BLOCKS[0]
    items = F3CRec(chosen, (30,)).begin(Key.from_seed(0)).items
    ids, totals = [], []
    for kernels in (True, False):
        cohort = cohort_of(chosen, data)
        cohort.enrol()
        cohort.store.take(data.ids)
        broken = cohort.store.take(data.ids[3:4])
        params = {"user": torch.full_like(broken.params["user"], float("inf"))}
        cohort.store.commit(data.ids[3:4], replace(broken, params=params))
        with switch.kernels(kernels):
            replies = cohort.ask(UPDATE, ItemTable(items), reduce=Sum())
        ids.append(replies.ids.tolist())
        totals.append(replies.total.items.sum())
    assert ids[0] == ids[1] == [u for u in data.ids.tolist() if u != int(data.ids[3])]
    torch.testing.assert_close(*totals, rtol=0, atol=1e-12)
    assert bool(totals[0].isfinite().all())


@pytest.mark.parametrize("kernels", [True, False])
def test_norms_are_judged_exactly(kernels):
    """Not by the quick bound, which is higher: who is just within the bound stays."""
    cohort = cohort_of(settings("ft"), BLOCKS[0])
    cohort.enrol()
    items = 3 * F3CRec(settings("ft"), (30,)).begin(Key.from_seed(0)).items
    with switch.kernels(kernels):
        up = cohort.ask(UPDATE, ItemTable(items)).up
        norm = up.items.dense().square().sum((1, 2)).sqrt()
        assert bool((up.items.norm_bound() > 1.01 * norm.max()).any())
        refused = []
        for most in (1.001, 0.999):
            again = cohort_of(settings("ft"), BLOCKS[0])
            again.enrol()
            again.exchange.bounds = Bounds(norm=most * float(norm.max()))
            replies = again.ask(UPDATE, ItemTable(items), reduce=Sum())
            refused.append(len(BLOCKS[0].ids) - len(replies))
    assert refused == [0, 1]


@pytest.mark.parametrize("far", [20.0, 60.0, 90.0, 120.0, 2.0**100])
def test_rows_that_do_not_change_are_not_counted(far):
    """Where a sigmoid is 0 or 1, nothing is sent: the same rows with and without."""
    chosen = settings("ft", dtype="float32", model={"batch_size": 512, "negatives": 4})
    data = block_data({u: (list(range(u % 7, 30, 5 + u % 3)), [], []) for u in range(40)})
    client = ContinualClient(chosen)
    key = Key.from_seed(2).fold(data.ids)
    mine = client.enrol(data, key)
    items = far * Key.from_seed(3).fold(torch.arange(30)).normal(4).sign()
    params = {"user": torch.where(mine.params["user"] > 0, 0.25, -0.125)}
    counts, losses = [], []
    for kernels in (True, False):
        with switch.kernels(kernels):
            up, _ = client.update(ItemTable(items), replace(mine, params=params), data, key)
        counts.append(up.items.touched())
        losses.append(up.loss)
    assert torch.equal(*counts)
    torch.testing.assert_close(*losses, rtol=2e-6, atol=0)


@pytest.mark.parametrize("room", [None, [0, 4, 4, 0, 1, 0, 4, 4, 0, 4, 4]])
@pytest.mark.parametrize("n_items", [1, 3, 40])
@pytest.mark.parametrize(("negatives", "epochs"), [(0, 1), (1, 2), (3, 3), (4, 1)])
def test_samples_of_batches(n_items, negatives, epochs, room):
    """Bit for bit; out of order, single batches have the same samples, with room behind them."""
    draw = torch.Generator().manual_seed(n_items)
    rows = [torch.randperm(n_items, generator=draw)[: 5 * c].tolist() for c in range(9)]
    train = Ragged.from_lists([*rows, list(range(n_items)), []])
    key = Key.from_seed(9).fold(torch.arange(len(train)))
    size = {"negatives": negatives, "batch_size": 16, "epochs": epochs, "dtype": torch.float32}
    compiled = draw_batches(key, train, n_items, **size)
    with switch.kernels(False):
        plain = draw_batches(key, train, n_items, **size)
    assert torch.equal(compiled.cell, plain.cell)
    assert torch.equal(compiled.label, plain.label)
    assert torch.equal(compiled.offsets, plain.offsets)
    free = None if room is None else torch.tensor(room)
    plan = plan_of(train, n_items, negatives, 16)
    loose = draw_samples(key, plan, epochs, in_order=False, room=free)
    packed = 2 * plain.item + plain.label.long()
    assert torch.equal(loose.ends - loose.offsets[:-1], plain.offsets.diff())
    behind = torch.zeros(len(train)).long() if free is None else free
    assert torch.equal(loose.offsets[1:] - loose.ends, behind[plain.owner])
    assert loose.packed.numel() == loose.offsets[-1]
    for term, (first, last) in enumerate(pairwise(plain.offsets.tolist())):
        own = loose.packed[loose.offsets[term] : loose.ends[term]]
        assert torch.equal(packed[first:last].sort().values, own.sort().values.long())


def test_nobody_has_samples():
    data = block_data({1: ([], [], [0]), 2: ([], [], [])})
    client = ContinualClient(settings("ft"))
    key = Key.from_seed(0).fold(data.ids)
    mine = client.enrol(data, key)
    up, after = client.update(ItemTable(torch.ones(5, 4, dtype=torch.float64)), mine, data, key)
    assert up.items.sum().count_nonzero() == 0
    assert up.items.touched().tolist() == [0, 0]
    assert up.loss.tolist() == [0, 0]
    assert torch.equal(after.params["user"], mine.params["user"])


def test_what_goes_without(monkeypatch):
    """Few items, kernels that are off, a pull in later blocks; chunks are cut accordingly."""
    items = torch.zeros(5, 4, dtype=torch.float64)
    fast, off = (
        settings("ft"),
        settings("ft", engine=EngineSettings(dtype="float64", kernels="off")),
    )
    down = ItemTable(items)
    assert form(fast, down) is SparseFactoredRows
    assert form(off, down) is FactoredRows
    later = replace(down, old=items, block=1)
    for method in METHODS:
        assert form(settings(method), down) is SparseFactoredRows
        found = form(settings(method), later)
        assert found is (FactoredRows if method == "reg" else SparseFactoredRows)
    monkeypatch.setattr(compiling, "MANY_ITEMS", 6)
    assert form(fast, down) is FactoredRows
    assert form(settings("f3crec"), later) is FactoredRows


def test_chunks_are_cut_by_what_is_touched():
    """Not by the catalogue, but where all items move; lists of a later block count."""
    data, few = BLOCKS[0], ItemTable(torch.zeros(10, 4))
    many = ItemTable(torch.zeros(100_000, 4))

    def footprint(method, down, block=0):
        return ContinualClient(settings(method)).footprint(data, replace(down, block=block))

    small = footprint("f3crec", many)
    assert torch.equal(small, footprint("f3crec", few))
    assert bool((footprint("reg", many, 1) > 10 * small).all())
    # Three samples of a positive, eight in a batch, and at most six items practised beside it.
    batches = (3 * data.train.lengths + 7) // 8
    assert torch.equal(footprint("ft", many, 1), small)
    for block, method in ((1, "f3crec"), (1, "kd"), (1, "spp")):
        listed = 5 if method == "spp" else 6
        more = footprint(method, many, block) - small
        assert torch.equal(more, footprint(method, few, block) - small)
        assert bool((more >= 16 * batches * listed).all())


def form(chosen, down):
    data = block_data({1: ([1, 2], [], [])})
    client, key = ContinualClient(chosen), Key.from_seed(0).fold(data.ids)
    up, _ = client.update(down, client.enrol(data, key), data, key)
    return type(up.items)


def test_the_first_round_has_the_bits_of_later_ones():
    """In a process of its own: what is loaded by now may not matter."""
    code = (
        "from benchmarks.continual.rounds import random_engine\n"
        "made = [random_engine(60, 2_000, 60).round(0) for _ in range(2)]\n"
        "assert made[0].equal(made[1])"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
