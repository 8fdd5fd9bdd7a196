"""Training by a compiled loop with what is practised again: as without it, and as a plain loop."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from tests.continual import reference as naive
from tests.continual.stream import BACKBONES
from tests.continual.test_local_update import (  # noqa: F401  here they run by compiled loops
    BLOCKS,
    DATA,
    KEY,
    N_ITEMS,
    make,
    test_distillation,
    test_proxies,
    test_users_do_not_depend_on_their_company,
)

from coterie.continual import client as module
from coterie.continual import compiling
from coterie.continual.client import ContinualClient
from coterie.continual.rehearsal import Rehearsal, Shrinking
from coterie.continual.settings import ReplaySettings, SPPSettings
from coterie.continual.touched_kernels import choose
from coterie.core.kernels import switch
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.tensors.sparse_rows import SparseFactoredRows

METHODS = ("f3crec", "f3crec-wo-arm", "kd", "spp")
OLD = BLOCKS > 0


@pytest.fixture(autouse=True)
def _compiled(monkeypatch):
    """Kernels at any size; what would go without fails, unless kernels are off."""
    monkeypatch.setattr(compiling, "MANY_ITEMS", 0)
    plain = module.LocalTraining

    def guarded(*args):
        assert not switch.available()
        return plain(*args)

    monkeypatch.setattr(module, "LocalTraining", guarded)


def update(made, kernels=True, users=None):
    """What a round of users gives: changes of the table, parameters, losses, practised items."""
    client, down, mine = made
    users = torch.arange(len(DATA.ids)) if users is None else users
    with switch.kernels(kernels):
        up, after = client.update(down, tree.take(mine, users), DATA.take(users), KEY.take(users))
    return up, after.params


def assert_close(found, other, tolerance):
    (up, params), (other_up, other_params) = found, other
    close = {"rtol": 0, "atol": tolerance}
    torch.testing.assert_close(up.items.dense(), other_up.items.dense(), **close)
    torch.testing.assert_close(up.loss, other_up.loss, rtol=tolerance, atol=tolerance)
    assert torch.equal(up.replayed, other_up.replayed)
    assert torch.equal(up.items.touched(), other_up.items.touched())
    for name, value in params.items():
        torch.testing.assert_close(value, other_params[name], **close)


def assert_same_bits(found, other, users):
    """The first is of all users, the other one of some."""
    (up, params), (other_up, other_params) = found, other
    assert torch.equal(up.items.dense()[users], other_up.items.dense())
    assert torch.equal(up.loss[users], other_up.loss)
    assert torch.equal(up.replayed[users], other_up.replayed)
    for name, value in params.items():
        assert torch.equal(value[users], other_params[name])


def drawn(made):
    """The same, in the round in which SPP draws."""
    client, down, mine = made
    return client, replace(down, round=4), mine


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-12)])
def test_with_and_without(method, backbone, dtype, tolerance):
    """Several batches, two epochs, two newcomers, and one user with all items."""
    small = replace(ReplaySettings(5, 0.02, 0.3), reduction="mean", sign="minus")
    spp = SPPSettings(n_slow=3, n_fast=2, horizon=10, epsilon=0.3, refresh=2)
    made = in_dtype(dtype, drawn(make(method, backbone, replay=small, spp=spp)))
    compiled = update(made)
    assert isinstance(compiled[0].items, SparseFactoredRows)
    has_all = (method == "spp") & (DATA.train.lengths == N_ITEMS)  # nothing is left to draw
    assert torch.equal(compiled[0].replayed > 0, OLD & ~has_all)
    assert_close(compiled, update(made, kernels=False), tolerance)


def in_dtype(dtype, made):
    """The same in numbers of another width."""
    kind, settings = getattr(torch, dtype), made[0].settings
    client = ContinualClient(replace(settings, engine=replace(settings.engine, dtype=dtype)))

    def narrow(value):
        return value.to(kind) if value.is_floating_point() else value

    return client, *(tree.map_tensors(narrow, part) for part in made[1:])


def memory(made, **changes):
    """The same clients with other memories."""
    client, down, mine = made
    return client, down, replace(mine, memory=mine.memory | changes)


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize(
    ("top_n", "epsilon", "fewest", "most"),
    [
        (17, 0.0, 17, 17),  # all old items, and nobody's memory shrinks
        (17, 9.0, 0, 17),  # nothing is left of most memories
        (1, 0.05, 0, 1),
    ],
)
def test_sizes_of_a_memory(backbone, top_n, epsilon, fewest, most):
    small = ReplaySettings(top_n, epsilon, 0.3, "mean", "minus")
    made = make("f3crec", backbone, replay=small, model={"batch_size": 6})
    compiled = update(made)
    assert bool((compiled[0].replayed[OLD] >= fewest).all())
    assert bool((compiled[0].replayed <= most).all())
    assert_close(compiled, update(made, kernels=False), 1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_to_practise(method):
    """Newcomers alone, memories without room, or a weight of 0: as fine-tuning, to the bits."""
    new = torch.where(~OLD)[0]
    for change in ({}, {"replay": ReplaySettings(5, 0.02, 0.0, "mean", "minus")}):
        made = drawn(make(method, "fedmf", **change))
        if method in ("kd", "spp") and change:  # whose weight is another setting
            continue
        plain = drawn(make("ft", "fedmf"))
        everyone = torch.arange(len(DATA.ids))
        users = everyone if change else new
        found, fine_tuned = update(made, users=users), update(plain, users=users)
        assert found[0].replayed.count_nonzero() == 0
        assert_same_bits(fine_tuned, found, torch.arange(len(users)))
    if method != "spp":
        empty = memory(made, items=torch.zeros(6, 0).int(), taught=torch.zeros(6, 0).double())
        found = update(empty)
        assert found[0].replayed.count_nonzero() == 0
        assert_same_bits(update(plain), found, everyone)
        assert_close(found, update(empty, kernels=False), 1e-12)


def test_one_item_by_hand():
    """One batch, one listed item that no sample is of: its row moves by η|I|λ (y_old - y) p."""
    small = ReplaySettings(1, 0.0, 0.5, "mean", "minus")
    client, down, mine = make(
        "f3crec-wo-arm", "fedmf", replay=small, model={"batch_size": 99, "epochs": 1}
    )
    items = torch.full((6, 1), 6, dtype=torch.int32)
    taught = torch.tensor([0.9, 0.1, 0.5, 0.7, 1.0, 0.0]).double()[:, None]
    made = memory((client, down, mine), items=items, taught=taught)
    up, params = update(made)
    plain = make("ft", "fedmf", model={"batch_size": 99, "epochs": 1})
    fine_tuned, other = update(plain)
    user = mine.params["user"]
    error = 0.5 * OLD * (torch.sigmoid(user @ down.items[6]) - taught[:, 0])
    moved = up.items.dense() - fine_tuned.items.dense()
    expected = torch.zeros_like(moved)
    expected[:, 6] = -client.item_lr(N_ITEMS) * error[:, None] * user
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-14)
    step = -client.backbone.rates["user"] * error[:, None] * down.items[6]
    torch.testing.assert_close(params["user"] - other["user"], step, rtol=0, atol=1e-14)
    assert up.replayed.tolist() == OLD.long().tolist()


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("method", METHODS)
def test_chunks_and_threads_and_order_change_no_bit(method, backbone):
    made = drawn(make(method, backbone))
    whole, order = update(made), torch.tensor([4, 0, 5, 2, 3, 1])
    assert_same_bits(whole, update(made, users=order), order)
    parts = [torch.tensor(part) for part in ([0], [3], [1, 2], [4, 5])] * 3
    with ThreadPoolExecutor(4) as threads:
        answers = threads.map(lambda part: update(made, users=part), parts)
        for part, found in zip(parts, answers, strict=True):
            assert_same_bits(whole, found, part)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_who_diverges_spoils_nobody(dtype):
    client, down, mine = in_dtype(dtype, make("f3crec", "fedmf"))
    sound, params = update((client, down, mine))
    broken = {"user": mine.params["user"].clone()}
    broken["user"][3] = torch.inf
    up, after = update((client, down, replace(mine, params=broken)))
    others = torch.tensor([0, 1, 2, 4, 5])
    assert not bool(up.items.finite()[3])
    assert torch.equal(up.items.take(others).dense(), sound.items.dense()[others])
    assert torch.equal(after["user"][others], params["user"][others])


# What is chosen, alone.

KINDS = {"float32": torch.float32, "float64": torch.float64}


def chosen(rehearsal, vectors, table, done):
    """By the compiled loop: items, soft labels and weights of each user."""
    shrinking, n_listed = rehearsal.shrinking, rehearsal.items.shape[1]
    rule = (shrinking.mean, True, float(shrinking.epsilon))
    parts = (rehearsal.who, rehearsal.items.int(), rehearsal.targets, rehearsal.weights)
    lists = (*(part.numpy() for part in parts), shrinking.key.unsigned(), rule)
    room = (vectors.new_empty(n_listed), vectors.new_empty(n_listed))
    places = torch.empty(n_listed, dtype=torch.int64)
    memory = tuple(part.numpy() for part in (*room, places, vectors.new_empty(len(table))))
    for user in range(len(vectors)):
        packed = torch.full((n_listed,), -9, dtype=torch.int32)
        count = choose(user, done, table.numpy(), vectors.numpy(), lists, memory, packed.numpy())
        assert packed[count:].count_nonzero() == 0
        found = packed[:count] >> 1, room[0][:count].clone(), room[1][:count].clone()
        yield [part.tolist() for part in found]


def lists_of(vectors, table, n_listed, epsilon, mean):
    """Lists of the highest items of a table that was, shuffled a little."""
    n_users, kind = len(vectors), vectors.dtype
    key = Key.from_seed(8).fold(torch.arange(n_users))
    then = vectors @ table.T + key.fold("then").normal(len(table), dtype=kind)
    items = then.argsort(1, descending=True)[:, :n_listed].int()
    weights = torch.full((n_users, n_listed), 0.7, dtype=kind)
    weights[::5] = 0.0  # newcomers
    targets = key.fold("taught").uniform(n_listed, dtype=kind)
    return Rehearsal(items, targets, weights, Shrinking(epsilon, key.fold("replay"), mean))


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(
    ("n_items", "n_listed", "epsilon", "mean"),
    [(90, 30, 0.006, True), (90, 7, 0.02, False), (33, 33, 0.001, True), (5, 1, 0.3, True)],
)
def test_what_is_chosen(dtype, n_items, n_listed, epsilon, mean):
    """The tensors' choice, and that of a loop over ranks counted one by one."""
    key = Key.from_seed(5)
    # Small whole numbers: scores are exact whoever adds them up, and many of them are equal.
    vectors = key.fold("v").fold(torch.arange(60)).normal(6, dtype=KINDS[dtype]).round()
    table = key.fold("q").fold(torch.arange(n_items)).normal(6, dtype=KINDS[dtype]).round()
    lists, scores = lists_of(vectors, table, n_listed, epsilon, mean), vectors @ table.T
    assert any(len(set(row)) < n_items for row in scores.tolist())
    sizes, everyone = set(), torch.arange(60)
    for done in (0, 1, 5):
        replay = lists.beside(torch.full((60,), done), everyone, scores)
        weights = torch.zeros_like(lists.weights)
        weights[replay.users] = replay.weights
        for user, (items, soft, shares) in enumerate(chosen(lists, vectors, table, done)):
            taken = weights[user] != 0
            assert items == lists.items[user][taken].tolist()
            assert soft == lists.targets[user][taken].tolist()
            assert shares == pytest.approx(weights[user][taken].tolist(), rel=1e-6)
            listed = lists.items[user].tolist() if user % 5 else []
            _, size = naive.adaptive_size(scores[user].tolist(), listed, epsilon)
            assert len(items) == size
            sizes.add(size)
    assert len(sizes) > min(n_listed, 4) / 2


def test_draws_of_batches_differ_and_are_fair():
    """Every place is drawn as often, and batches draw on their own."""
    n_users, n_listed = 3000, 10
    vectors = torch.ones(n_users, 1).double()
    table = torch.arange(20.0, 0, -1).double()[:, None]
    # A shift of 2 · 25 and e^(-.0139 · 50) = .5: half of the list.
    items = torch.tensor([[5, 6, 7, 8, 9, 0, 1, 2, 3, 4]]).int().repeat(n_users, 1)
    weights = torch.ones(n_users, n_listed).double()
    key = Key.from_seed(2).fold(torch.arange(n_users))
    lists = Rehearsal(items, weights, weights, Shrinking(0.0138, key, True))
    first, second = ([row[0] for row in chosen(lists, vectors, table, done)] for done in (0, 1))
    assert all(len(row) == len(set(row)) == 5 for row in first + second)
    counts = torch.tensor(first).flatten().bincount(minlength=10)
    assert float((counts - n_users / 2).abs().max()) < 4.5 * (n_users / 4) ** 0.5
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 50  # 12 of 252 are expected
