"""What is replayed: Eq. 2 to 4, distillation, and the draws of the proxies, by hand."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from tests.continual import reference as naive
from tests.continual.stream import BACKBONES, block_data, private, settings

from coterie.continual.client import ContinualClient
from coterie.continual.messages import EndedBlock, ItemTable, LookBack
from coterie.continual.rehearsal import (
    draw_without_replacement,
    preference_shift,
    replay_count,
)
from coterie.continual.settings import KDSettings, ReplaySettings, SPPSettings
from coterie.core.tensors.keys import Key

MANY = 4000


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


class TestAdaptiveMemory:
    def test_shift_by_hand(self):
        """Order 0, 3, 2, 1: the list (3, 0, 1) has ranks 2, 1, 4 instead of 1, 2, 3."""
        scores = f64(0.9, 0.1, 0.5, 0.7)[None]
        assert preference_shift(torch.tensor([[3, 0, 1]]), scores).tolist() == [3]
        assert preference_shift(torch.tensor([[0, 3, 2]]), scores).tolist() == [0]
        assert preference_shift(torch.tensor([[1, 2]]), scores).tolist() == [4]

    def test_shift_of_a_hundred_users(self):
        key = Key.from_seed(0).fold(torch.arange(100))
        scores = key.normal(40, dtype=torch.float64)
        listed = key.fold("old").normal(40).topk(10, dim=1).indices
        expected = [
            naive.adaptive_size(row, items, 0.01)
            for row, items in zip(scores.tolist(), listed.tolist(), strict=True)
        ]
        shift = preference_shift(listed, scores)
        assert shift.tolist() == [delta for delta, _ in expected]
        assert replay_count(shift, 0.01, 10).tolist() == [m for _, m in expected]

    def test_count_by_hand(self):
        """δ N = e^(-.3) 3 = 2.22; the README's e^(-.6) 30 = 16.46; and no shift keeps all."""
        assert replay_count(torch.tensor([3]), 0.1, 3).tolist() == [2]
        assert replay_count(torch.tensor([0, 100, 567, 568]), 0.006, 30).tolist() == [30, 16, 0, 0]
        half = math.log(2)
        assert replay_count(torch.tensor([0, 1, 2, 3]), half, 4).tolist()[::3] == [4, 0]

    def test_the_draw_is_uniform_without_replacement(self):
        key = Key.from_seed(3).fold(torch.arange(6 * MANY))
        drawn = draw_without_replacement(key, torch.full((6 * MANY,), 2), 4)
        assert bool((drawn.sum(1) == 2).all())
        pairs = [
            int((drawn[:, a] & drawn[:, b]).sum()) for a, b in itertools.combinations(range(4), 2)
        ]
        assert sum(pairs) == 6 * MANY
        spread = 4.5 * math.sqrt(6 * MANY * 1 / 6 * 5 / 6)
        assert all(abs(count - MANY) < spread for count in pairs)

    def test_counts_of_none_and_all(self):
        key = Key.from_seed(3).fold(torch.arange(2))
        assert draw_without_replacement(key, torch.tensor([0, 5]), 5).sum(1).tolist() == [0, 5]


DATA = block_data({1: ([0, 3], [1], [2]), 2: ([5], [], []), 6: ([1, 2, 4], [3], [6])})
KEY = Key.from_seed(7).fold(DATA.ids)


def distil(backbone, items, taught=None, method="kd"):
    """An update in which all users are old and replay ``items``; taught: default their own."""
    replay = ReplaySettings(items.shape[1], 0.0, 0.5, "mean", "minus", "block-start")
    kd = KDSettings(strength=0.5)
    client = ContinualClient(
        settings(method, backbone, replay=replay, kd=kd, model={"batch_size": 64})
    )
    mine = client.enrol(DATA, KEY)
    table = Key.from_seed(2).fold(torch.arange(8)).normal(4, dtype=torch.float64)
    own = torch.sigmoid(client.predict(ItemTable(table), mine))
    memory = {"items": items, "taught": own.gather(1, items) if taught is None else taught}
    mine = replace(mine, memory=memory if method == "kd" else {}, blocks=torch.ones(3).long())
    up, after = client.update(ItemTable(table), mine, DATA, KEY)
    return up.items.dense(), after.params, own


@pytest.mark.parametrize("backbone", ["fedmf", "fedncf"])
def test_the_teacher_itself_learns_nothing(backbone):
    """dL_KD/ds = (y - y_old) / N is 0 at θ = θ_old, though the loss, an entropy, is not."""
    items = torch.arange(8).expand(3, 8)
    rows, params, _ = distil(backbone, items)
    plain_rows, plain, _ = distil(backbone, items, method="ft")
    torch.testing.assert_close(rows, plain_rows, rtol=0, atol=1e-14)
    for name, value in plain.items():
        torch.testing.assert_close(params[name], value, rtol=0, atol=1e-14)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_order_of_the_list_is_irrelevant(backbone):
    items = torch.tensor([[0, 5, 7, 2], [1, 2, 3, 4], [6, 5, 1, 0]])
    taught = KEY.fold("taught").uniform(4, dtype=torch.float64)
    order = torch.tensor([2, 0, 3, 1])
    a, _, _ = distil(backbone, items, taught)
    b, _, _ = distil(backbone, items[:, order], taught[:, order])
    torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


def test_distillation_over_the_whole_catalogue():
    """N = |I|: every row of the table moves by η|I| λ/N (y_old - y) p beyond FT."""
    items = torch.arange(8).expand(3, 8)
    taught = KEY.fold("taught").uniform(8, dtype=torch.float64)
    rows, _, own = distil("fedmf", items, taught)
    plain, _, _ = distil("fedmf", items, method="ft")
    client = ContinualClient(settings("ft"))
    user = client.enrol(DATA, KEY).params["user"]
    expected = 0.1 * 8 * 0.5 / 8 * (taught - own)[:, :, None] * user[:, None, :]
    torch.testing.assert_close(rows - plain, expected, rtol=0, atol=1e-14)


def draw(client, mine, data, key, proxies, table):
    """The memory after the proxies' lists were made and drawn from, in round 0."""
    _, mine = client.start_block(LookBack(1, None, *proxies), mine, data, key)
    return client.retention.before_training(mine, ItemTable(table), data, key)


class TestProxyDraws:
    """Ranks of the proxy (0, 1, 2), of the student (2, 1, 0), many identical users."""

    def drawn(self, spp, student=(1.0, 2.0, 3.0), train=(), count=MANY):
        """Items drawn for each user, -1 = a free place."""
        data = block_data({u: (list(train), [], []) for u in range(count)})
        chosen = settings("spp", spp=spp, model={"dim": 1})
        client = ContinualClient(chosen)
        one = {"user": torch.ones(count, 1, dtype=torch.float64)}
        memory = client.retention.empty(one)
        mine = private(one, one, memory, torch.full((count,), 2))
        table, key = f64(3, 2, 1)[:, None], Key.from_seed(5).fold(data.ids)
        memory = draw(client, mine, data, key, (table, table), f64(*student)[:, None])
        taken = memory["drawn"] > 0
        labels = torch.sigmoid(f64(3, 2, 1))[memory["items"]]
        torch.testing.assert_close(memory["taught"][taken], labels[taken])
        return memory["items"].masked_fill(~taken, -1)

    def test_probability_by_hand(self):
        """A = 2, ε = 1/2: (e^(2ε), 1, 0) / (1 + e^(2ε))."""
        items = self.drawn(SPPSettings(epsilon=0.5, horizon=2, n_slow=1, n_fast=0))
        share = float((items == 0).double().mean())
        expected = math.e / (1 + math.e)
        assert abs(share - expected) < 4.5 * math.sqrt(expected * (1 - expected) / MANY)
        assert set(items.flatten().tolist()) == {0, 1}

    def test_equal_ranks_are_uniform_over_the_horizon(self):
        spp = SPPSettings(epsilon=9.0, horizon=2, n_slow=1, n_fast=0)
        items = self.drawn(spp, student=(3.0, 2.0, 1.0))
        assert set(items.flatten().tolist()) == {0, 1}
        assert abs(float((items == 0).double().mean()) - 0.5) < 4.5 * 0.5 / math.sqrt(MANY)

    def test_a_sharp_draw_takes_the_largest_discrepancy(self):
        items = self.drawn(SPPSettings(epsilon=1e3, horizon=3, n_slow=1, n_fast=0))
        assert set(items.flatten().tolist()) == {0}

    def test_nothing_is_drawn_twice_or_beyond_the_horizon(self):
        """Three are asked of each, two are within the horizon; the other holds the same ones."""
        items = self.drawn(SPPSettings(epsilon=0.1, horizon=2, n_slow=3, n_fast=3), count=50)
        assert all(sorted(row) == [-1, -1, 0, 1] for row in items.tolist())

    def test_own_items_are_never_drawn(self):
        spp = SPPSettings(epsilon=0.1, horizon=3, n_slow=2, n_fast=0)
        items = self.drawn(spp, train=[1], count=50)
        assert all(sorted(row) == [0, 2] for row in items.tolist())

    @pytest.mark.parametrize(("blocks", "places"), [(0, 0), (1, 2), (2, 4)])
    def test_newcomers_and_the_first_update(self, blocks, places):
        """A newcomer has no past self; after one block both proxies are one: only S is used."""
        data = block_data({u: ([0], [], []) for u in range(9)})
        client = ContinualClient(
            settings("spp", spp=SPPSettings(horizon=9, n_slow=2, n_fast=2, epsilon=0.0))
        )
        mine = client.enrol(data, Key.from_seed(0).fold(data.ids))
        mine = replace(mine, blocks=torch.full((9,), blocks))
        table = Key.from_seed(2).fold(torch.arange(400)).normal(4, dtype=torch.float64)
        other = Key.from_seed(9).fold(torch.arange(400)).normal(4, dtype=torch.float64)
        key = Key.from_seed(1).fold(data.ids)
        memory = draw(client, mine, data, key, (table, other), table)
        assert int(memory["drawn"].sum(1).max()) == places

    def test_moving_averages_of_private_parameters(self):
        """W = 0, 1, 1 with w_s = .9 gives 0, .1, .19; who misses a block keeps its proxies."""
        client = ContinualClient(settings("spp", spp=SPPSettings(slow=0.9, fast=0.0)))
        data = block_data({0: ([0], [], [])})
        mine = client.enrol(data, Key.from_seed(0).fold(data.ids))
        table, found = torch.zeros(3, 4, dtype=torch.float64), []
        for value in (0.0, 1.0, 1.0):
            best = {"user": torch.full((1, 4), value, dtype=torch.float64)}
            mine = replace(mine, best=best)
            _, mine = client.end_block(EndedBlock(table, 0), mine, data, Key.from_seed(0))
            slow, fast = (mine.memory[name]["params"]["user"] for name in ("slow", "fast"))
            found.append(float(slow[0, 0]))
            assert float(fast[0, 0]) == value
        assert found == pytest.approx([0, 0.1, 0.19])


@pytest.mark.parametrize("missed", [False, True])
def test_who_missed_a_block_is_taught_by_what_it_carries(missed):
    """The public code: U_best Q_bestᵀ, with rows of absent users from the last round."""
    kept = ReplaySettings(top_n=6, remember="last-seen", reduction="mean", sign="minus")
    client = ContinualClient(settings("kd", replay=kept, carry="last"))
    data = block_data({0: ([0, 1], [], []), 1: ([2], [], [])})
    key = Key.from_seed(6).fold(data.ids)
    table = Key.from_seed(7).fold(torch.arange(20)).normal(4, dtype=torch.float64)
    mine = client.enrol(data, key)
    mine = replace(mine, params={"user": 2 * mine.params["user"]})  # last round; best: as drawn
    _, mine = client.end_block(EndedBlock(table, 0), mine, data, key)
    _, started = client.start_block(LookBack(1 + missed, -table), mine, data, key)
    listed = (mine.best["user"] @ table.T).argsort(1, descending=True)[:, :6]
    assert torch.equal(started.memory["items"], listed)
    teacher = mine.params["user"] if missed else mine.best["user"]
    expected = torch.sigmoid(teacher @ -table.T).gather(1, listed)
    torch.testing.assert_close(started.memory["taught"], expected)
