"""SPP's lists: downloaded once a block, kept on the device, drawn from every few rounds."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from tests.continual import reference as naive
from tests.continual.stream import N_ITEMS, block_data, make_stream, settings, simulate

from coterie.continual.client import ContinualClient
from coterie.continual.messages import ItemTable, LookBack
from coterie.continual.settings import SPPSettings
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

N_OLD, N_NEW, N_USERS = 25, 30, 40
KEY = Key.from_seed(4)
# Up to all items, some of them new; the last user has none.
DATA = block_data(
    {u: ([(7 * k + u) % N_NEW for k in range(N_USERS - 1 - u)][:N_NEW], [], []) for u in range(40)}
)


def table(name, n_items=N_OLD):
    return KEY.fold(name).fold(torch.arange(n_items)).normal(4, dtype=torch.float64)


def in_a_block(spp, **changes):
    """A client half, and users who have finished 0 to 3 blocks, at the start of the next one."""
    client = ContinualClient(settings("spp", spp=spp, **changes))
    mine = client.enrol(DATA, KEY.fold("now").fold(DATA.ids))
    past = client.enrol(DATA, KEY.fold("past").fold(DATA.ids)).memory
    mine = replace(mine, memory=past, blocks=DATA.ids % 4)
    past = LookBack(1, slow=table("slow"), fast=table("fast"))
    return client, client.start_block(past, mine, DATA, KEY.fold(DATA.ids))[1]


def drawn(memory):
    """{item: label} of each user."""
    return [
        {i: y for i, y, taken in zip(*row, strict=True) if taken}
        for row in zip(*(memory[k].tolist() for k in ("items", "taught", "drawn")), strict=True)
    ]


def by_full_rankings(spp, mine, items, key):
    """The same from rankings of all old items, user by user."""
    found = []
    for user, own in enumerate(DATA.train.tolists()):
        proxies = []
        for name, size in (("slow", spp.n_slow), ("fast", spp.n_fast)):
            uniform = Key(key.state[user]).fold("draw", name).uniform(N_OLD, dtype=torch.float64)
            past = table(name) @ mine.memory[name]["params"]["user"][user]
            proxies.append((past.tolist(), size, uniform.tolist()))
        student = (items[:N_OLD] @ mine.params["user"][user]).tolist()
        finished = int(mine.blocks[user])  # 0: no past self; 1: `fast` is the same as `slow`
        found.append(naive.proxy_draw(spp, student, proxies[:finished], set(own)))
    return found


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 50.0])
@pytest.mark.parametrize("horizon", [1, 3, 10, 60])
def test_the_lists_give_what_full_rankings_give(horizon, epsilon):
    """Also where the horizon is longer than the list of old items, or shorter than the draw."""
    spp = SPPSettings(n_slow=5, n_fast=4, horizon=horizon, epsilon=epsilon)
    client, mine = in_a_block(spp)
    key, items = KEY.fold("round").fold(DATA.ids), table("now", N_NEW)
    memory = client.retention.before_training(mine, ItemTable(items), DATA, key)
    found, expected = drawn(memory), by_full_rankings(spp, mine, items, key)
    for user in range(N_USERS):
        assert found[user] == pytest.approx(expected[user], rel=0, abs=1e-14)
    assert {len(one) for one in found} >= {0, 1}
    assert all(
        not set(one) & set(own) for one, own in zip(found, DATA.train.tolists(), strict=True)
    )


def test_the_lists_hold_the_best_items_in_order():
    spp = SPPSettings(horizon=6)
    _, mine = in_a_block(spp)
    for name, finished in (("slow", 1), ("fast", 2)):
        kept = mine.memory[name]
        for user, own in enumerate(DATA.train.tolists()):
            scores = (table(name) @ kept["params"]["user"][user]).tolist()
            best = sorted(set(range(N_OLD)) - set(own), key=lambda i: -scores[i])[:6]
            best = best if mine.blocks[user] >= finished else []
            assert int(kept["listed"][user]) == len(best)
            assert kept["items"][user].tolist() == best + [0] * (6 - len(best))
            labels = [1 / (1 + math.exp(-scores[i])) for i in best] + [0.0] * (6 - len(best))
            assert kept["taught"][user].tolist() == pytest.approx(labels, rel=0, abs=1e-14)


def test_a_draw_lasts_until_the_next_one():
    """With refresh = 3 the draw of round 3 serves 4 and 5; lists and proxies stay all along."""
    client, mine = in_a_block(SPPSettings(horizon=10, epsilon=0.2, refresh=3))
    before, draws = tree.clone(mine.memory), []
    for round_ in range(7):
        key = KEY.fold("round", round_).fold(DATA.ids)
        _, mine = client.update(ItemTable(table("now", N_NEW), round=round_), mine, DATA, key)
        draws.append(drawn(mine.memory))
    assert [a == b for a, b in itertools.pairwise(draws)] == [True, True, False] * 2
    for name in ("slow", "fast", "n_old"):
        kept = dict(tree.tensors({name: mine.memory[name]}))
        for path, value in tree.tensors({name: before[name]}):
            assert torch.equal(value, kept[path]), path


def test_a_user_alone_draws_the_same():
    client, mine = in_a_block(SPPSettings(horizon=10, epsilon=0.2))
    key, down = KEY.fold("round").fold(DATA.ids), ItemTable(table("now", N_NEW))
    together = client.retention.before_training(mine, down, DATA, key)
    for user in range(N_USERS):
        one = torch.tensor([user])
        alone = client.retention.before_training(
            tree.take(mine, one), down, DATA.take(one), key.take(one)
        )
        for (path, a), (_, b) in zip(
            tree.tensors(tree.take(together, one)), tree.tensors(alone), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-14, msg=path)


def rows(run):
    """(step, field) -> messages, bytes of what was sent to clients."""
    down = [row for row in run.ledger.rows() if row["direction"] == "down"]
    return {(row["step"], row["field"]): (row["messages"], row["bytes"]) for row in down}


@pytest.mark.parametrize("refresh", [1, 2])
def test_the_proxies_are_downloaded_once_a_block(refresh):
    """SPP downloads what FT does, and both proxies once by each user of a later block.

    Newcomers get them too, as one message goes to all.
    """
    blocks, same = make_stream(40), {"rounds": 5, "patience": 5}
    spp = SPPSettings(horizon=10, refresh=refresh)
    found, plain = (rows(simulate(settings(m, spp=spp, **same), blocks)) for m in ("spp", "ft"))
    users = [len(block.ids) for block in blocks[1:]]
    table_bytes = [n_old * 4 * 8 for n_old in N_ITEMS]  # d = 4, float64
    one = sum(count * size for count, size in zip(users, table_bytes, strict=False))
    once = {("start_block", name): (sum(users), one) for name in ("slow", "fast")}
    assert found == plain | once
