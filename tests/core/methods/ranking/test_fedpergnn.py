"""FedPerGNN: gradients against autograd, what hides them, and who learns of whom."""

import math
from dataclasses import fields, replace

import pytest
import torch
from tests.core.methods.ranking.few_users import (
    CLIENTS,
    KEY,
    LENGTHS,
    N_ITEMS,
    cohort_of,
    few_users,
    group_users,
    normal,
    run,
)
from tests.core.scored import scores_of_user

from coterie.core.errors import UserError
from coterie.core.methods.ranking.client import draw_samples, known_items
from coterie.core.methods.ranking.fedpergnn import (
    UPDATE,
    FedPerGNNClient,
    FedPerGNNServer,
    NoisyGradients,
)
from coterie.core.methods.ranking.user_graphs import (
    Announcement,
    Neighbours,
    Network,
    Stars,
    ThirdParty,
    gradients,
    item_tokens,
    represent,
    to_rows,
)
from coterie.core.methods.settings.ranking import FedPerGNNSettings
from coterie.core.privacy.check import assert_no_shared_storage, assert_non_interference
from coterie.core.protocol.common_secret import CommonSecret
from coterie.core.protocol.messages import declared
from coterie.core.run.scoring import scores_of_newcomer
from coterie.core.wire.codec import Header, decode, encode

SECRET = CommonSecret()
BARE = FedPerGNNSettings(
    dim=4,
    loss_weight=1.0,
    lr=0.2,
    item_lr=0.3,
    model_lr=0.1,
    dropout=0.0,
    pseudo_items=0,
    clip=None,
    noise=0.0,
    neighbours=0,
    rounds=6,
    patience=6,
    participation=1.0,
    init_std=0.5,
)


def build(n_items=N_ITEMS, lengths=LENGTHS, dtype=torch.float64, **options):
    both = replace(BARE, **options), n_items, lengths
    return FedPerGNNServer(*both, dtype), FedPerGNNClient(*both, SECRET, dtype)


def toy(n_users=4, n_items=6, dim=3, n_neighbours=2):
    network = Network(normal("e", n_items, dim), normal("W", dim, dim), normal("w", 2, dim))
    around = KEY.fold("around").uniform(n_users, n_items) > 0.5
    around[0] = False  # nothing around, and no neighbours
    known = KEY.fold("known").uniform(n_users, n_neighbours) > 0.3
    known[0] = False
    neighbours = normal("v", n_users, n_neighbours, dim) * known[:, :, None]
    return network, Stars(normal("u", n_users, dim), around, neighbours, known)


def h_of(user, items, weight, attention, around, neighbours, known):
    """h_u of one user, node by node."""
    nodes = [items[i] for i in range(len(items)) if around[i]]
    nodes += [neighbours[j] for j in range(len(known)) if known[j]]
    centre = weight @ user
    if not nodes:
        return centre
    logits = [attention[0] @ centre + attention[1] @ (weight @ node) for node in nodes]
    power = [torch.exp(x if x > 0 else 0.2 * x) for x in logits]
    return centre + sum(p / sum(power) * (weight @ x) for p, x in zip(power, nodes, strict=True))


def loss_of(score, label, kind):
    if kind == "squared":
        return (score - label) ** 2
    return -torch.log(torch.sigmoid(score if label else -score))


def loss_of_user(u, leaves, stars, label, sampled, kind):
    user, items, weight, attention = leaves
    h = h_of(user, items, weight, attention, stars.around[u], stars.neighbours[u], stars.known[u])
    terms = [
        sampled[u, i] * loss_of(h @ (weight @ items[i]), label[u, i], kind)
        for i in range(len(items))
        if sampled[u, i]
    ]
    return sum(terms)


@pytest.mark.parametrize("kind", ["bce", "squared"])
def test_gradients_equal_autograd_of_each_user_alone(kind):
    network, stars = toy()
    draw = KEY.fold("labels").uniform(2, 4, 6, dtype=torch.float64)
    label, sampled = (draw[0] > 0.5).double(), 2 * draw[1] * (draw[1] > 0.3)
    found = gradients(network, stars, label, sampled, kind)
    rows = to_rows(found.factor, found.basis, torch.ones(4, 6, dtype=torch.bool)).dense()
    for u in range(4):
        values = (stars.user[u], network.items, network.weight, network.attention)
        leaves = [value.clone().requires_grad_() for value in values]
        loss = loss_of_user(u, leaves, stars, label, sampled, kind)
        expected = torch.autograd.grad(loss, leaves, materialize_grads=True)
        torch.testing.assert_close(found.loss[u], loss.detach())
        mine = (found.user[u], rows[u], found.weight[u], found.attention[u])
        for one, other in zip(mine, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_order_of_items_and_neighbours_does_not_matter():
    network, stars = toy()
    before = represent(network, stars)
    order = torch.tensor([5, 2, 0, 1, 4, 3])
    moved = replace(network, items=network.items[order])
    others = replace(
        stars,
        around=stars.around[:, order],
        neighbours=stars.neighbours.flip(1),
        known=stars.known.flip(1),
    )
    torch.testing.assert_close(represent(moved, others), before)
    torch.testing.assert_close(before[0], network.weight @ stars.user[0])


def test_without_protection_rounds_are_centralised_steps():
    data = few_users()
    server, client = build()
    cohort = cohort_of(client, data)
    state = server.begin(KEY)
    users = cohort.store.take(data.ids).params["user"]
    for number in (1, 2, 3):
        cohort = replace(cohort, when=(0, number), _asked=cohort_of(client, data)._asked)
        keys = CLIENTS.fold(data.ids).fold("update", 0, number, 0).fold("negatives")
        samples = draw_samples(keys, data.train, N_ITEMS, BARE.negatives, torch.float64)
        mean = samples.weight / samples.weight.sum(1, keepdim=True).clamp_min(1.0)
        none = torch.zeros(7, 0)
        stars = Stars(users, samples.label > 0, none[:, :, None].expand(7, 0, 4), none.bool())
        public = [
            state.public[n].clone().requires_grad_() for n in ("items", "weight", "attention")
        ]
        own = users.clone().requires_grad_()
        total = sum(
            loss_of_user(u, (own[u], *public), stars, samples.label, mean, "bce")
            for u in range(7)
            if mean[u].sum()
        )
        of_users, *of_public = torch.autograd.grad(total, [own, *public])
        users = users - BARE.lr * of_users
        state = server.round(state, cohort, KEY)
        torch.testing.assert_close(cohort.store.take(data.ids).params["user"], users)
        rates = (BARE.item_lr, BARE.model_lr, BARE.model_lr)
        for value, slope, rate, new in zip(
            public, of_public, rates, state.public.values(), strict=True
        ):
            torch.testing.assert_close(new, value.detach() - rate * slope / 7)


def steps_on_own_vectors(users, public, items, keys, count):
    """Step by step and user by user, with autograd; nothing public moves."""
    none = torch.zeros(7, 0)
    for number in range(count):
        key = keys.fold("fold in", number).fold("negatives")
        samples = draw_samples(key, items, N_ITEMS, BARE.negatives, torch.float64)
        mean = samples.weight / samples.weight.sum(1, keepdim=True).clamp_min(1.0)
        stars = Stars(users, samples.label > 0, none[:, :, None].expand(7, 0, 4), none.bool())
        moved = []
        for u in range(7):
            own = users[u].clone().requires_grad_()
            leaves = (own, *(public[n] for n in ("items", "weight", "attention")))
            loss = loss_of_user(u, leaves, stars, samples.label, mean, "bce")
            moved.append(own - BARE.lr * torch.autograd.grad(loss, own)[0] if loss else own)
        users = torch.stack(moved).detach()
    return users


@pytest.mark.parametrize("count", [0, 3])
def test_before_the_test_own_vectors_are_fitted_to_train_and_validation_items(count):
    data = few_users()
    server, client = build(fold_in=count)
    public = server.begin(KEY).public
    mine, keys = cohort_of(client, data).store.take(data.ids), CLIENTS.fold(data.ids)
    fitted = client.fold_in(server.table(public, "test"), mine, data, keys)[1]
    items = known_items(data)
    expected = steps_on_own_vectors(mine.best["user"], public, items, keys, count)
    torch.testing.assert_close(fitted.best["user"], expected)
    assert torch.equal(fitted.params["user"], mine.params["user"])
    # What a round is remembered by is what it was validated with: no step more.
    remembered = client.remember(server.table(public), mine, data, keys)[1]
    assert torch.equal(remembered.best["user"], mine.params["user"])
    # A newcomer with these items is fitted by the same steps, from a vector of its own.
    start = client.start(keys)["user"]
    newcomer = client.adapt(server.table(public, "test"), items, keys).params["user"]
    expected = steps_on_own_vectors(start, public, items, keys, count)
    torch.testing.assert_close(newcomer, expected)


@pytest.mark.parametrize("count", [0, 2, 1000])
def test_uploads_hold_the_trained_rows_and_the_pseudo_rows(count):
    data = few_users()
    server, client = build(pseudo_items=count, negatives=1)
    cohort = cohort_of(client, data)
    up = cohort.ask(UPDATE, server.table(server.begin(KEY).public)).up
    keys = CLIENTS.fold(data.ids).fold("update", 0, 1, 0).fold("negatives")
    trained = draw_samples(keys, data.train, N_ITEMS, 1).weight > 0
    rows = up.items.index.mask(N_ITEMS)
    assert not bool((trained & ~rows).any())
    has_some = trained.any(1)
    expected = torch.minimum(trained.sum(1) + count, torch.tensor(N_ITEMS)) * has_some
    assert torch.equal(rows.sum(1), expected)
    assert torch.equal(up.items.touched(), expected)  # each row once


class Listener(ThirdParty):
    """Keeps all that the third party ever gets."""

    def match(self, announced: Announcement) -> Neighbours:
        self.heard = announced
        return super().match(announced)


def test_the_third_party_learns_no_item_and_no_user():
    data = few_users()
    server, client = build(neighbours=3, expand_after=1)
    server.third_party = Listener(3)
    module = run(server, client, data, 2)
    heard = server.third_party.heard
    assert {field.name for field in fields(heard)} == {"tokens", "vector"}
    tokens = heard.tokens
    assert not {*tokens.values.tolist()} & set(range(N_ITEMS + 100))
    assert tokens.values.unique().numel() == data.train.values.unique().numel()
    # Ascending within a user, so that not even the order of the items is told.
    rows = tokens.tolists()
    assert all(row == sorted(row) for row in rows)
    other = item_tokens(CommonSecret(), data.train, N_ITEMS)
    assert not {*other.values.tolist()} & {*tokens.values.tolist()}
    assert module.journal.scalars["fedpergnn/neighbours"] > 0
    mine = module.store.take(data.ids).params
    assert mine["known"].any(1).tolist() == [True, True, True, True, False, False, True]
    # The only one who shares items with user 5 is number 11 and those with item 3.
    vectors = heard.vector[[6]]
    assert any(torch.equal(vectors[0], v) for v in mine["neighbours"][1])
    assert {leaf.name for leaf in declared(Announcement)} == {"tokens", "vector"}


def test_neighbours_come_after_the_first_rounds_and_change_the_scores():
    data = few_users()
    without, late, early = (
        run(*build(neighbours=n, expand_after=t), data, 2) for n, t in ((0, 0), (3, 5), (3, 1))
    )
    items = [m.server_state.public["items"] for m in (without, late, early)]
    torch.testing.assert_close(items[0], items[1])
    assert (items[0] - items[2]).abs().max() > 1e-6


def test_privacy_is_reported():
    module = run(*build(clip=0.1, noise=0.2, pseudo_items=2, negatives=1), few_users(), 1)
    rows = 9  # user 11 has every item
    released = rows * 4 + 4 * 4 + 2 * 4
    assert module.journal.scalars["privacy/epsilon_per_coordinate"] == pytest.approx(1.0)
    assert module.journal.scalars["privacy/epsilon_per_upload"] == pytest.approx(released)
    open_ended = run(*build(), few_users(), 1).journal.scalars
    assert open_ended["privacy/epsilon_per_coordinate"] == math.inf


@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_change_nothing(chunk):
    data, options = few_users(), {"clip": 0.1, "noise": 0.2, "pseudo_items": 2, "dropout": 0.2}
    options |= {"neighbours": 2, "expand_after": 1}
    whole, cut = (run(*build(**options), data, 3, c) for c in (None, chunk))
    for name, value in whole.server_state.public.items():
        torch.testing.assert_close(cut.server_state.public[name], value)
    assert _update_rows(whole) == _update_rows(cut)
    assert whole.journal.scalars == pytest.approx(cut.journal.scalars)


def _update_rows(module):
    return [row for row in module.ledger.rows() if row["step"] == "update"]


def test_messages_travel_depend_on_what_they_declare_and_share_no_memory():
    data = few_users()
    server, client = build(clip=0.1, noise=0.2, pseudo_items=2, neighbours=2)
    cohort = cohort_of(client, data)
    down, key = server.table(server.begin(KEY).public), CLIENTS.fold(data.ids)
    mine = cohort.store.take(data.ids)
    for step, message in (("update", down), ("evaluate", down), ("announce", None)):
        flip = {n: _other for n in ("params", "best")}
        assert_non_interference(client, step, message, mine, data, key, flip)
    up = client.update(down, mine, data, key)[0]
    assert_no_shared_storage(up, mine)
    assert_no_shared_storage(client.announce(None, mine, data, key)[0], mine)
    header = Header("update", (0, 1))
    again = decode(encode(up, header), NoisyGradients)[0]
    assert encode(again, header) == encode(up, header)
    found = ThirdParty(2).match(client.announce(None, mine, data, key)[0])
    assert torch.equal(decode(encode(found, header), Neighbours)[0].vectors, found.vectors)


def _other(params):
    return {n: ~v if v.dtype == torch.bool else v + 0.5 for n, v in params.items()}


def test_learns_groups_and_scores_a_newcomer():
    data, n_items = group_users()
    options = {"dim": 8, "rounds": 30, "patience": 30, "loss_weight": 10.0, "init_std": 0.1}
    options |= {
        "lr": 0.05,
        "item_lr": 3.0,
        "model_lr": 0.05,
        "dropout": 0.2,
        "neighbours": 4,
        "dtype": torch.float32,
    }
    module = run(*build(n_items, (4,), **options), data)
    assert module.results["test/recall@4"] > 0.9  # by chance 4 of 32 items
    served = scores_of_user(module, 5)[0]
    rows = data.take(torch.tensor([5]))
    found = module.federation.client.evaluate(
        module.federation.server.serve(module.server_state, 5, module.newest_cohort()),
        module.store.take(torch.tensor([5])),
        rows,
        KEY.fold(torch.tensor([5])),
    )[0]
    known = {*rows.train.values.tolist(), *rows.valid.values.tolist()}
    best = [i for i in served.argsort(descending=True).tolist() if i not in known][:4]
    hits = len({*best} & {*rows.test.values.tolist()}) / 2
    assert found.recall[0, 0].item() == hits
    scores = scores_of_newcomer(module, torch.tensor([1, 5, 9, 13]))[0]
    assert set(scores.topk(10).indices.tolist()) == set(range(1, n_items, 4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 1.0}, r"'fedpergnn\.dropout' must be below 1, not 1"),
        ({"clip": 0.0}, r"'fedpergnn\.clip' must be above 0"),
        ({"noise": -0.2}, r"'fedpergnn\.noise' must be at least 0"),
        ({"dim": 0}, r"'fedpergnn\.dim' must be at least 1"),
    ],
)
def test_settings_are_checked(options, message):
    with pytest.raises(UserError, match=message):
        FedPerGNNSettings(**options)
