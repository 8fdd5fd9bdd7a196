"""A round of every method with three users, computed by hand.

Three items with q = (L, -L, 0), L = ln 3, so that all probabilities are quarters; d = 1, η = 1 and
item rate η|I| = 3. Each user has two positives, so its two negatives are the third item; a batch
has four samples and residual (drawn * σ(s) - positive) / 4:

    A: p =  1, positives 0, 1: residual (-1/16, -3/16,  1/4),   dL/dp =  L/8
    B: p = -1, positives 1, 2: residual ( 1/8,  -1/16, -1/8),   dL/dp =  3L/16
    C: p =  0, positives 0, 2: residual (-1/8,   1/4,  -1/8),   dL/dp = -3L/8

and the mean table moves by -3/3 * sum of residual * p = (3/16, 1/8, -3/8).
"""

import math

import pytest
import torch
from tests.continual.stream import block_data, private, settings
from tests.continual.test_chunks import cohort_of

from coterie.continual.algorithm import (
    F3CRec,
    ServerState,
    item_wise_weight,
    knowledge_shift,
    temporal_mean,
)
from coterie.continual.client import ContinualClient
from coterie.continual.messages import START_BLOCK, ItemTable, LookBack
from coterie.continual.settings import (
    KDSettings,
    RegSettings,
    ReplaySettings,
    SPPSettings,
    TemporalMeanSettings,
)
from coterie.core.tensors.keys import Key

L = math.log(3)
DATA = block_data({0: ([0, 1], [2], []), 1: ([1, 2], [0], []), 2: ([0, 2], [1], [])})
FT_USERS = (1 - L / 8, -1 - 3 * L / 16, 3 * L / 8)
FT_ITEMS = (L + 3 / 16, -L + 1 / 8, -3 / 8)


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def play(method, memory=None, blocks=(0, 0, 0), old=None, **changes):
    """One round of block 1: the items' rows, the users' vectors, the journal's scalars."""
    model = {"dim": 1, "lr": 1.0, "negatives": 1, "batch_size": 8}
    chosen = settings(method, model=model, **changes)
    cohort = cohort_of(chosen, DATA, when=(1, 1))
    user = {"user": f64(1, -1, 0)[:, None]}
    memory = cohort.client.retention.empty(user) | (memory or {})
    best = {"user": f64(9, 9, 9)[:, None]}
    cohort.store.enrol(DATA.ids, private(user, best, memory, torch.tensor(blocks)))
    items = f64(L, -L, 0)[:, None]
    rows = None if old is None else f64(*old)[:, None]
    if method == "spp":
        cohort.ask(START_BLOCK, LookBack(1, slow=rows, fast=rows))
    state = ServerState(items, items, rows, rows, rows, block=1)
    state = F3CRec(chosen, (2, 3)).round(state, cohort, Key.from_seed(0))
    users = cohort.store.take(DATA.ids).params["user"]
    assert cohort.journal.refused == []
    return state.items[:, 0].tolist(), users[:, 0].tolist(), cohort.journal.scalars


def close(*values):
    return pytest.approx(values, abs=1e-14)


@pytest.mark.parametrize("method", ["ft", "rlp2"])
def test_fine_tuning(method):
    """RLP2 trains as FT does."""
    items, users, scalars = play(method, old=(5.0, 5.0))
    assert items == close(*FT_ITEMS)
    assert users == close(*FT_USERS)
    # BCE: A's samples ln(4/3), ln 4 and twice ln 2; B's twice ln(4/3), ln(4/3), ln 2; C's ln 2.
    ln2, ln4, ln43 = math.log(2), math.log(4), math.log(4 / 3)
    loss = ((ln43 + ln4 + 2 * ln2) / 4 + (3 * ln43 + ln2) / 4 + ln2) / 3
    assert scalars["fed/loss"] == pytest.approx(loss, abs=1e-14)


def test_regularisation():
    """λ = .1, mean of two old entries: a step covers 3 * .2 / 2 = .3 of Q - O; .2 of p - p_old.

    A is pulled to 1/2, B already is where it was, C is new.
    """
    memory = {"start": {"user": f64(0.5, -1, 7)[:, None]}}
    items, users, _ = play("reg", memory, (1, 2, 0), (L - 0.3, -L), reg=RegSettings(0.1, "mean"))
    assert items == close(FT_ITEMS[0] - 0.09, *FT_ITEMS[1:])
    assert users == close(FT_USERS[0] - 0.1, *FT_USERS[1:])


def test_regularisation_by_the_sum():
    """λ = .1, sum: .6 of Q - O for items, .2 of the one entry p - p_old."""
    memory = {"start": {"user": f64(0.5, -1, 7)[:, None]}}
    items, users, _ = play("reg", memory, (1, 2, 0), (L - 0.3, -L), reg=RegSettings(0.1, "sum"))
    assert items == close(FT_ITEMS[0] - 0.18, *FT_ITEMS[1:])
    assert users == close(FT_USERS[0] - 0.1, *FT_USERS[1:])


KD_MEMORY = {
    "items": torch.tensor([[0, 1], [1, 0], [2, 0]]),
    "taught": f64(0.5, 0.5, 0.9, 0.9, 0.5, 0.75).reshape(3, 2),
}


def test_distillation():
    """λ = .4 over N = 2: residuals gain .2 (σ - taught), for A (.05, -.05, 0), C (-.05, 0, 0)."""
    replay = ReplaySettings(2, 0.0, 0.4, "mean", "minus", "block-start")
    changes = {"replay": replay, "kd": KDSettings(strength=0.4)}
    items, users, scalars = play("kd", KD_MEMORY, (1, 0, 3), (0.0, 0.0), **changes)
    assert items == close(L + 0.1375, -L + 0.175, -0.375)
    assert users == close(1 - 0.225 * L, FT_USERS[1], 0.425 * L)
    assert scalars["f3crec/replay_size"] == pytest.approx(4 / 3)


def test_distillation_as_printed():
    """Eq. 5 as printed: a sum, so twice as much, and without its minus sign, so away."""
    replay = ReplaySettings(2, 0.0, 0.4, "sum", "printed", "block-start")
    changes = {"replay": replay, "kd": KDSettings(strength=0.4)}
    items, users, _ = play("kd", KD_MEMORY, (1, 0, 3), (0.0, 0.0), **changes)
    assert items == close(FT_ITEMS[0] + 0.1, FT_ITEMS[1] - 0.1, FT_ITEMS[2])
    assert users == close(FT_USERS[0] + 0.2 * L, FT_USERS[1], FT_USERS[2] - 0.1 * L)


ARM_MEMORY = {
    "items": torch.tensor([[0, 2], [0, 1], [2, 0]]),
    "taught": f64(0.25, 0.5, 0.9, 0.9, 0.9, 0.9).reshape(3, 2),
}
ARM_REPLAY = ReplaySettings(2, math.log(2), 0.4, "mean", "minus", "block-start")


def test_adaptive_replay_and_item_wise_temporal_mean():
    """A's list (0, 2) still has ranks 1, 2: Δ = 0, all is replayed, its residual gains (.1, 0, 0).

    B's (0, 1) has ranks 3, 1: Δ = 2 + 1, δ = 1/8, floor(2/8) = 0 items. C is new. The mean table
    is then (L + .0875, -L + .125, -.375). Item 0 is 1 away from the old table: φ = 1, γ = .8 / 2;
    item 1 has not moved; item 2 is new.
    """
    items, users, scalars = play(
        "f3crec",
        ARM_MEMORY,
        (1, 1, 0),
        (L + 1.0875, -L + 0.125),
        replay=ARM_REPLAY,
        temporal_mean=TemporalMeanSettings(0.8),
    )
    assert items == close(L + 0.4875, -L + 0.125, -0.375)
    assert users == close(1 - 0.225 * L, *FT_USERS[1:])
    assert scalars["f3crec/replay_size"] == pytest.approx(2 / 3)


def test_ablations():
    """The same round without one of its parts."""
    old = (L + 1.0875, -L + 0.125)
    shared = {"replay": ARM_REPLAY, "temporal_mean": TemporalMeanSettings(0.8)}
    arguments = (ARM_MEMORY, (1, 1, 0), old)
    plain = (L + 0.0875, -L + 0.125, -0.375)
    items, users, _ = play("f3crec-wo-sc", *arguments, **shared)
    assert items == close(*plain)
    assert users == close(1 - 0.225 * L, *FT_USERS[1:])
    items, _, _ = play("f3crec-wo-itm", *arguments, **shared)
    assert items == close(L + 0.0875 + 0.8, *plain[1:])
    items, users, _ = play("f3crec-wo-cc", *arguments, **shared)
    gamma = 0.8 / (1 + 0.9**2)  # FT's item 0 is .9 away
    assert items == close(FT_ITEMS[0] + 0.9 * gamma, *FT_ITEMS[1:])
    assert users == close(*FT_USERS)
    # w/o a.r.m also replays B's list: its residual gains .2 (1/4 - .9) and .2 (3/4 - .9).
    _, users, scalars = play("f3crec-wo-arm", *arguments, **shared)
    assert users == close(1 - 0.225 * L, FT_USERS[1] + (0.13 - 0.03) * L, FT_USERS[2])
    assert scalars["f3crec/replay_size"] == pytest.approx(4 / 3)


def test_proxies():
    """B may replay item 0 only (old, not its own), with its slow self's label σ(L) = 3/4.

    λ_r = .5 in round 0, so its residual gains .5 (1/4 - 3/4). A has no old item that is not its
    own, C is new.
    """
    spp = SPPSettings(horizon=2, n_slow=1, n_fast=1, strength=0.5)
    client = ContinualClient(settings("spp", spp=spp))
    memory = client.retention.empty({"user": f64(0, 1, 0)[:, None]})
    items, users, scalars = play("spp", memory, (1, 1, 0), (L, 0.0), spp=spp)
    assert items == close(L - 1 / 16, -L + 1 / 8, -3 / 8)
    assert users == close(FT_USERS[0], -1 + L / 16, FT_USERS[2])
    assert scalars["f3crec/replay_size"] == pytest.approx(1 / 3)


def test_pfedrec_takes_the_new_head_in_its_second_step():
    """q = 1, w = b = 0, y = 1: the head goes to w = b = 1/2, then dL/dq = -(1 - σ(1)) / 2."""
    data = block_data({4: ([0], [], [])})  # one item: no negatives
    chosen = settings("ft", "pfedrec", model={"dim": 1, "lr": 1.0, "lr_eta": 1.0})
    head = {"weight": f64(0)[:, None], "bias": f64(0)}
    mine = private(head, head, {}, torch.tensor([0]))
    key = Key.from_seed(0).fold(data.ids)
    up, after = ContinualClient(chosen).update(ItemTable(f64(1)[:, None]), mine, data, key)
    assert float(after.params["weight"]) == pytest.approx(0.5)
    assert float(after.params["bias"]) == pytest.approx(0.5)
    change = (1 - 1 / (1 + math.exp(-1))) / 2
    assert float(up.items.dense()) == pytest.approx(change, abs=1e-15)


def test_fedncf_never_ranks_by_the_user_vector():
    """s = <w_p, p_u> + <w_q, q_i> + b: p_u shifts all items of a user alike."""
    data = block_data({u: ([0], [], []) for u in range(5)})
    client = ContinualClient(settings("ft", "fedncf"))
    mine = client.enrol(data, Key.from_seed(1).fold(data.ids))
    other = private(mine.params, mine.best | {"user": 3 - mine.best["user"]}, {}, mine.blocks)
    down = ItemTable(Key.from_seed(2).fold(torch.arange(30)).normal(4, dtype=torch.float64))
    a, b = client.predict(down, mine), client.predict(down, other)
    assert torch.equal(a.argsort(1), b.argsort(1))
    shift = a - b
    torch.testing.assert_close(shift, shift[:, :1].expand_as(shift), rtol=0, atol=1e-14)
    assert bool((shift[:, 0].abs() > 1e-3).all())


def test_equations_8_to_13():
    """d = 4: row 0 moved by 1 in every entry, φ = 4 / 2 = 2; row 1 not at all; row 2 is new."""
    old = torch.stack([torch.zeros(4), torch.ones(4)]).double()
    table = torch.stack([torch.ones(4), torch.ones(4), 5 * torch.ones(4)]).double()
    phi = knowledge_shift(old, table[:2])
    assert phi.tolist() == [2.0, 0.0]
    gamma = item_wise_weight(phi, 0.9)
    assert gamma.tolist() == pytest.approx([0.3, 0.9])
    assert temporal_mean(table, old, gamma)[:, 0].tolist() == pytest.approx([0.7, 1.0, 5.0])
    assert temporal_mean(table, old, 0.9)[:, 0].tolist() == pytest.approx([0.1, 1.0, 5.0])
    # Far rows keep nothing of the old table: γ -> 0 as φ -> ∞, and γ <= β always.
    assert float(item_wise_weight(torch.tensor(1e12), 0.9)) < 1e-11


def test_moving_averages_of_the_item_table():
    """w = .9 and W = 0, 1, 1 give S = 0, .1, .19; w = 0 gives W, w = 1 the first W for ever."""
    for slow, expected in ((0.9, (0, 0.1, 0.19)), (0.0, (0, 1, 1)), (1.0, (0, 0, 0))):
        chosen = settings("spp", spp=SPPSettings(slow=slow, fast=0.5, n_slow=1, n_fast=1))
        server, state, found = F3CRec(chosen, (1, 1, 1)), None, []
        cohort = cohort_of(chosen, block_data({0: ([0], [], [])}))
        cohort.enrol()
        for block, value in enumerate((0.0, 1.0, 1.0)):
            table = torch.full((1, 4), value, dtype=torch.float64)
            kept = (None, None) if state is None else (state.slow, state.fast)
            state = ServerState(table, table, None, *kept, block=block)
            state = server.end_block(state, cohort, Key.from_seed(0))
            found.append(float(state.slow[0, 0]))
        assert found == pytest.approx(expected)
        assert float(state.fast[0, 0]) == pytest.approx(0.75)
