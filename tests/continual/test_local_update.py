"""The stacked local update against an autograd loop over users with item tables of their own."""

import math
from dataclasses import replace

import pytest
import torch
from tests.continual import reference as naive
from tests.continual.stream import BACKBONES, block_data, settings

from coterie.continual.batches import draw_batches
from coterie.continual.client import ContinualClient
from coterie.continual.messages import ItemTable, LookBack
from coterie.continual.settings import KDSettings, RegSettings, ReplaySettings, SPPSettings
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

N_OLD, N_ITEMS = 17, 20
KEY = Key.from_seed(5).fold(torch.tensor([3, 4, 8, 9, 11, 20]))
# Six users with 10, 1, 4, 20 (all items), 2 and 7 positives: 6, 1, 2, 4, 1 and 4 batches of 6.
DATA = block_data(
    {
        3: ([0, 2, 4, 6, 8, 10, 12, 14, 16, 18], [1], [3]),
        4: ([5], [], []),
        8: ([19, 1, 7, 3], [2], []),
        9: (list(range(20)), [], []),
        11: ([18, 0], [], [4]),
        20: ([9, 11, 13, 15, 17, 1, 3], [0], [2]),
    }
)
FAST = Key.from_seed(6).fold(torch.arange(N_OLD)).normal(4, dtype=torch.float64)
BLOCKS = torch.tensor([1, 2, 0, 3, 1, 0])  # the third and last are newcomers


def make(method, backbone, **changes):
    """Client, table and profiles in the middle of a block, away from where it started."""
    changes = {"model": {"batch_size": 6, "epochs": 2}} | changes
    client = ContinualClient(settings(method, backbone, **changes))
    key = Key.from_seed(1)
    old = 0.6 * key.fold("old").fold(torch.arange(N_OLD)).normal(4, dtype=torch.float64)
    table = 0.6 * key.fold("now").fold(torch.arange(N_ITEMS)).normal(4, dtype=torch.float64)
    mine = client.enrol(DATA, KEY.fold("then"))
    mine = replace(mine, memory=client.retention.at_block_end(mine, old, DATA, KEY), blocks=BLOCKS)
    past = LookBack(1, old, slow=old, fast=FAST)
    mine = replace(mine, memory=client.retention.at_block_start(mine, past, DATA))
    now = client.enrol(DATA, KEY.fold("now")).params
    return client, ItemTable(table, old, round=3), replace(mine, params=now)


def compare(client, down, mine, soft=lambda user: None, penalty=lambda user: None):
    """Run both; all differences must be below 1e-10."""
    model = client.settings.model
    before = tree.clone(mine)
    up, after = client.update(down, mine, DATA, KEY)
    dense = up.items.dense()
    if up.pull is not None:  # what the server takes off the old rows
        dense[:, :N_OLD] -= up.pull[:, None, None] * (down.items[:N_OLD] - down.old)
    batches = draw_batches(
        KEY.fold("batches"),
        DATA.train,
        N_ITEMS,
        negatives=model.negatives,
        batch_size=model.batch_size,
        epochs=model.epochs,
        dtype=torch.float64,
    )
    samples = naive.expand(batches, len(DATA.ids))
    check_samples(samples, model)
    for user in range(len(DATA.ids)):
        params = {name: value[user] for name, value in before.params.items()}
        change, params, loss, replayed = naive.train_user(
            model, params, down.items, samples[user], soft(user), penalty(user)
        )
        torch.testing.assert_close(dense[user], change, rtol=0, atol=1e-10)
        for name, value in params.items():
            torch.testing.assert_close(after.params[name][user], value, rtol=0, atol=1e-10)
        assert float(up.loss[user]) == pytest.approx(loss, abs=1e-10)
        assert float(up.replayed[user]) == pytest.approx(replayed, abs=1e-12)
    return up


def check_samples(samples, model):
    """Every epoch holds each positive once and the negatives, in batches of the right size."""
    for user, mine in enumerate(samples):
        positives = DATA.train.tolists()[user]
        flat = [sample for batch in mine for sample in batch]
        assert sorted(i for i, y in flat if y) == sorted(positives * model.epochs)
        negatives = [i for i, y in flat if not y]
        free = len(positives) < N_ITEMS
        assert len(negatives) == free * model.negatives * model.epochs * len(positives)
        assert not set(negatives) & set(positives)
        per_epoch = len(flat) // model.epochs
        sizes = [
            min(model.batch_size, per_epoch - b) for b in range(0, per_epoch, model.batch_size)
        ]
        assert [len(batch) for batch in mine] == sizes * model.epochs


@pytest.mark.parametrize("backbone", BACKBONES)
def test_fine_tuning(backbone):
    up = compare(*make("ft", backbone))
    assert up.pull is None


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize(("reduction", "sign"), [("mean", "minus"), ("sum", "printed")])
@pytest.mark.parametrize("method", ["kd", "f3crec-wo-arm", "f3crec", "f3crec-wo-itm"])
def test_distillation(backbone, method, reduction, sign):
    replay = ReplaySettings(5, 0.02, 0.3, reduction, sign)
    client, down, mine = make(method, backbone, replay=replay, kd=KDSettings(strength=0.45))
    teacher = [{name: value[u] for name, value in mine.best.items()} for u in range(6)]

    def soft(user):
        if not BLOCKS[user]:
            return None
        scores = naive.score(client.settings.model, teacher[user], down.old, torch.arange(N_OLD))
        listed = scores.argsort(descending=True)[:5].tolist()
        taught = torch.sigmoid(scores[listed]).tolist()
        key = Key(KEY.state[user]).fold("replay")
        draw = None
        if method in ("f3crec", "f3crec-wo-itm"):
            draw = lambda step: key.fold(step).uniform(5, dtype=torch.float64).tolist()  # noqa: E731
        weighted = replace(replay, lambda_kd=0.45) if method == "kd" else replay
        return naive.distillation(weighted, listed, taught, draw)

    up = compare(client, down, mine, soft)
    old = BLOCKS > 0
    assert bool((up.replayed[old] > 0).all())
    assert bool((up.replayed[~old] == 0).all())
    if method == "f3crec":
        assert bool((up.replayed[old] < 5).any())


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize(("strength", "reduction"), [(0.4, "mean"), (0.05, "sum")])
def test_pull(backbone, strength, reduction):
    reg = RegSettings(strength, reduction)
    client, down, mine = make("reg", backbone, reg=reg)
    start = mine.memory["start"]

    def penalty(user):
        own = {name: value[user] for name, value in start.items()}
        return naive.pull(reg, down.old, own, bool(BLOCKS[user]))

    up = compare(client, down, mine, penalty=penalty)
    assert bool((up.pull > 0).all())


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("round_", [4, 5])
def test_proxies(backbone, round_):
    """Drawn in round 4, with the student of then, and replayed in the rounds 4 and 5."""
    spp = SPPSettings(n_slow=3, n_fast=2, horizon=10, epsilon=0.3, refresh=2)
    client, down, mine = make("spp", backbone, spp=spp)
    drawn = [proxy_draw(client, down, mine, user) for user in range(6)]
    if round_ == 5:
        _, mine = client.update(replace(down, round=4), mine, DATA, KEY)

    def soft(user):
        weight = spp.strength * math.exp(-round_ / 10) / max(len(drawn[user]), 1)
        terms = [(item, label, weight) for item, label in drawn[user].items()]
        return lambda step, scores: terms

    up = compare(client, replace(down, round=round_), mine, soft)
    assert (up.replayed > 0).tolist() == [True, True, False, False, True, False]


def proxy_draw(client, down, mine, user):
    """Draw by naive rankings; nothing for newcomers, nothing from `fast` after one block."""
    spp, uniform = client.settings.spp, Key(KEY.state[user]).fold("draw")

    def score(params, table):
        one = {name: value[user] for name, value in params.items()}
        return naive.score(client.settings.model, one, table, torch.arange(N_OLD)).tolist()

    proxies = [
        (
            score(mine.memory[name]["params"], table),
            size,
            uniform.fold(name).uniform(spp.horizon, dtype=torch.float64).tolist(),
        )
        for name, table, size in (("slow", down.old, spp.n_slow), ("fast", FAST, spp.n_fast))
    ]
    own = set(DATA.train.tolists()[user])
    return naive.proxy_draw(spp, score(mine.params, down.items), proxies[: int(BLOCKS[user])], own)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_users_do_not_depend_on_their_company(backbone):
    client, down, mine = make("f3crec", backbone)
    up, after = client.update(down, mine, DATA, KEY)
    order = torch.tensor([4, 0, 5, 2, 3, 1])
    up2, after2 = client.update(down, tree.take(mine, order), DATA.take(order), KEY.take(order))
    torch.testing.assert_close(up2.items.dense(), up.items.dense()[order], rtol=0, atol=1e-12)
    for name, value in after.params.items():
        torch.testing.assert_close(after2.params[name], value[order], rtol=0, atol=1e-12)
    for user in range(6):
        one = torch.tensor([user])
        up1, _ = client.update(down, tree.take(mine, one), DATA.take(one), KEY.take(one))
        torch.testing.assert_close(up1.items.dense(), up.items.dense()[one], rtol=0, atol=1e-12)
        assert torch.equal(up1.replayed, up.replayed[one])


def test_settings_of_learning_rates():
    client = ContinualClient(settings("ft", "pfedrec", model={"item_lr_scale": "one"}))
    assert client.item_lr(1152) == pytest.approx(0.02 * 3)
    assert naive.learning_rates(client.settings.model, 1152)[1] == pytest.approx(0.02 * 3)
    client = ContinualClient(settings("ft", "fedncf"))
    assert client.item_lr(1152) == pytest.approx(0.02 * 3 * 1152)
