"""Rounds of PPLR and of what it is compared with, against plain loops with torch.optim."""

from dataclasses import replace

import pytest
import torch
from tests.llm.organisations import (
    backbone,
    examples,
    federation,
    organisations,
    queries,
    settings,
    whole_rows,
)

from coterie.core.federation.selection import BestRound
from coterie.core.metrics.as_torchmetrics import FullRanking
from coterie.core.tensors.keys import Key
from coterie.llm.adapter import Adapter
from coterie.llm.client import Organisation
from coterie.llm.mixing import (
    attention,
    dynamic_weights,
    inner_products,
    row_normalised,
    softened_losses,
    warm_up,
)
from coterie.llm.quality import measure_users

KEY = Key.from_seed(3)


def trained_alone(chosen, data, round_key=(0, 1), mu=0.0):
    """Train every client by an ordinary torch.optim.Adam on a backbone of its own."""
    rows, losses = [], []
    for client in range(len(data)):
        model = backbone(dtype=torch.float64)
        adapter = Adapter(model.named_parameters())
        start = [p.detach().clone() for p in adapter.parameters]
        optimizer = torch.optim.Adam(adapter.parameters, lr=chosen.train.lr)
        secret = Key.from_seed(5).fold("clients").fold(torch.tensor([client]))
        key = secret.fold("update", *round_key, 0).take(torch.tensor([0]))
        own, total = data.train[client], 0.0
        for batch in Organisation(chosen, model)._batches(own, key, chosen.train.epochs):
            loss = model.loss(batch)
            pull = sum(((p - s) ** 2).sum() for p, s in zip(adapter.parameters, start, strict=True))
            optimizer.zero_grad()
            (loss + 0.5 * mu * pull).backward()
            optimizer.step()
            total += float(loss.detach()) * len(batch)
        rows.append(adapter.row())
        losses.append(total / max(len(own) * chosen.train.epochs, 1))
    return torch.stack(rows), torch.tensor(losses)


def one_round(chosen, data=None):
    server, cohort = federation(chosen, backbone(dtype=torch.float64), data)
    before = server.begin(KEY)
    return before, server.round(before, cohort, KEY), cohort


@pytest.mark.parametrize("method", ["pplr", "fedavg", "fedprox", "local"])
def test_a_round_equals_training_apart_and_mixing(method):
    chosen = settings(method, train={"epochs": 2, "mu": 0.5})
    data = organisations()
    rows, losses = trained_alone(chosen, data, mu=0.5 if method == "fedprox" else 0.0)
    before, after, cohort = one_round(chosen, data)
    sizes = torch.tensor([len(part) for part in data.train])
    if method == "pplr":
        s = attention(inner_products(rows - before.rows))
        weights = row_normalised(
            dynamic_weights(s, warm_up(softened_losses(losses, 0.05), 0, 0.7, 5.0))
        )
    elif method == "local":
        weights = torch.eye(3)
    else:
        weights = (sizes / sizes.sum()).expand(3, -1)
    expected = weights.double() @ rows
    torch.testing.assert_close(whole_rows(after, cohort), expected, rtol=1e-9, atol=1e-10)
    assert cohort.journal.scalars["fed/loss"] == pytest.approx(
        float((losses * sizes).sum() / sizes.sum())
    )


def test_fedprox_without_a_pull_is_fedavg():
    _, fedavg, _ = one_round(settings("fedavg"))
    _, fedprox, _ = one_round(settings("fedprox", train={"mu": 0.0}))
    assert torch.equal(fedavg.rows, fedprox.rows)


def test_ablations_switch_off_one_half():
    chosen = settings("pplr-attention")
    _, attention_only, _ = one_round(chosen)
    _, without_limit, _ = one_round(settings("pplr", mixing={"alpha": 1e9}))
    torch.testing.assert_close(attention_only.rows, without_limit.rows)
    _, heating, _ = one_round(settings("pplr-heating", mixing={"alpha": 1e9}))
    even = heating.rows - heating.rows.mean(0)
    torch.testing.assert_close(even, torch.zeros_like(even), atol=1e-9, rtol=0)


def test_a_client_without_data_learns_from_its_peers_and_teaches_nobody():
    data = organisations(sizes=(9, 0, 7))
    before, after, _ = one_round(settings("pplr"), data)
    assert bool(after.rows.isfinite().all())
    assert not torch.equal(after.rows[1], before.rows[1])
    rows, losses = trained_alone(settings("pplr"), data)
    s = attention(inner_products(rows - before.rows))[[0, 2]][:, [0, 2]]
    w = warm_up(softened_losses(losses[[0, 2]], 0.05), 0, 0.7, 5.0)
    expected = row_normalised(dynamic_weights(s, w)) @ rows[[0, 2]]
    torch.testing.assert_close(after.rows[[0, 2]], expected)


def test_one_client_keeps_what_it_trained():
    data = organisations(sizes=(9,), users=(3,))
    _, pplr, _ = one_round(settings("pplr", clients=1), data)
    _, local, cohort = one_round(settings("local", clients=1), data)
    torch.testing.assert_close(pplr.rows, whole_rows(local, cohort))


def test_a_client_that_diverges_keeps_its_adapter_and_is_named():
    data = organisations()
    server, cohort = federation(settings("pplr"), data=data)
    state = server.begin(KEY)
    broken = state.rows.clone()
    broken[1] = torch.nan
    after = server.round(replace(state, rows=broken), cohort, KEY)
    assert cohort.journal.refused[0][:2] == ("update", 1)
    assert bool(after.rows[[0, 2]].isfinite().all())
    assert bool(after.rows[1].isnan().all())


def test_the_report_is_the_mean_of_full_ranking_over_users():
    chosen = settings()
    client = Organisation(chosen, backbone())
    asked = queries(40, 1)
    values = measure_users(lambda part: client.backbone.scores(part.history), asked)
    metric = FullRanking(k=10)
    metric.update(client.backbone.scores(asked.history), asked.seen, asked.targets)
    assert float(values["recall@10"].mean()) == pytest.approx(float(metric.compute()["recall@10"]))
    assert float(values["ndcg@10"].mean()) == pytest.approx(float(metric.compute()["ndcg@10"]))


def test_overall_quality_counts_every_user_once():
    server, cohort = federation(settings("local"))
    server.round(server.begin(KEY), cohort, KEY)
    ids, values = cohort.journal.clients["eval/recall@10"]
    users = torch.tensor([3.0, 2.0, 4.0])
    expected = float((values * users).sum() / users.sum())
    assert cohort.journal.scalars["eval/recall@10"] == pytest.approx(expected)
    assert ids.tolist() == [0, 1, 2]


@pytest.mark.parametrize("split", ["valid", "test"])
def test_each_split_is_measured_on_its_own_users(split):
    """The round's adapters on validation users, the best ones on test users."""
    data = organisations()
    server, cohort = federation(settings("pplr"), data=data)
    state = server.begin(KEY)
    moved = torch.arange(state.rows.numel()).sin().reshape(state.rows.shape)
    state = replace(state, best=state.rows + 0.5 * moved)
    server.measure(state, cohort, split)
    rows, where = (state.rows, "eval") if split == "valid" else (state.best, "test")
    _, found = cohort.journal.clients[f"{where}/ndcg@10"]
    for client, asked in enumerate(getattr(data, split)):
        model = backbone()
        Adapter(model.named_parameters()).load(rows[client])
        metric = FullRanking(k=10)
        metric.update(model.eval().scores(asked.history), asked.seen, asked.targets)
        assert float(found[client]) == pytest.approx(float(metric.compute()["ndcg@10"]))


def several_rounds(data):
    server, cohort = federation(settings("pplr"), data=data)
    state, rows = server.begin(KEY), []
    for number in (1, 2, 3):
        cohort.journal.clear()
        state = server.round(state, replace(cohort, when=(0, number)), KEY.fold(number))
        rows.append(dict(cohort.journal.scalars))
    server.end_block(state, cohort, KEY)
    return state, rows, cohort.journal.scalars["test/ndcg@10"]


def test_other_test_users_change_no_round_and_other_validation_users_do():
    """The best round is chosen by validation alone."""
    data = organisations()
    others = [queries(5, 50 + client) for client in range(3)]
    state, rows, tested = several_rounds(data)
    same, same_rows, other = several_rounds(replace(data, test=others))
    assert same_rows == rows
    assert torch.equal(same.rows, state.rows)
    assert torch.equal(same.best, state.best)
    assert same.chosen == state.chosen
    assert other != tested
    _, changed, _ = several_rounds(replace(data, valid=others))
    for before, after in zip(rows, changed, strict=True):
        assert before["eval/ndcg@10"] != after["eval/ndcg@10"]


def test_the_best_round_is_kept_and_tested():
    server, cohort = federation(settings("pplr"))
    state = server.begin(KEY)
    state = replace(state, chosen=BestRound(1, 2.0), round=4, best=state.rows + 1)
    after = server.round(state, cohort, KEY)
    assert torch.equal(after.best, state.best)
    assert server.stop(after, []) == "go"
    assert server.stop(replace(after, round=6), []) == "block"


def test_participation_leaves_the_others_as_they_are():
    before, after, cohort = one_round(settings("pplr", participation=0.34))
    moved = (after.rows != before.rows).any(1)
    assert int(moved.sum()) == 1
    assert cohort.journal.scalars["fed/clients"] == 1


def test_the_one_model_goes_to_those_too_who_were_not_drawn():
    data = organisations()
    rows, _ = trained_alone(settings("fedavg"), data)
    _, after, cohort = one_round(settings("fedavg", participation=0.67), data)
    drawn = cohort.journal.clients["fed/loss"][0]
    assert len(drawn) == 2
    sizes = torch.tensor([len(part) for part in data.train]).double()[drawn]
    mean = (sizes[:, None] * rows[drawn]).sum(0) / sizes.sum()
    torch.testing.assert_close(after.rows, mean.expand_as(after.rows))


@pytest.mark.parametrize("method", ["pplr", "fedavg", "fedprox", "local"])
def test_nothing_changes_when_nobody_drawn_has_data(method):
    data = organisations(sizes=(0, 0, 0))
    _, after, cohort = one_round(settings(method), data)
    assert torch.equal(whole_rows(after, cohort), cohort.client.start.expand(3, -1))
    idle = organisations(sizes=(9, 0, 0))
    server, cohort = federation(settings(method, participation=0.67), data=idle)
    state = server.begin(KEY)
    for round in range(6):  # the draws include both, one, and none with data
        state = server.round(state, replace(cohort, when=(0, round)), KEY.fold(round))
        assert bool(state.rows.isfinite().all())


def test_centralised_training_draws_nobody():
    data = organisations(sizes=(9, 0, 0))
    _, partly, _ = one_round(settings("central", participation=0.34), data)
    _, whole, _ = one_round(settings("central"), data)
    assert torch.equal(partly.rows, whole.rows)
    assert torch.equal(whole.rows[0], whole.rows[2])


def test_an_optimizer_that_is_kept_goes_on():
    chosen = settings("local", train={"keep_optimizer": True})
    server, cohort = federation(chosen)
    state = server.round(server.begin(KEY), cohort, KEY)
    kept = cohort.store.take(torch.tensor([0])).optimizer
    assert int(kept.steps) == len(examples(9, 10)) // 4 + 1
    before = whole_rows(state, cohort)
    later = server.round(state, replace(cohort, when=(0, 2)), KEY)
    assert not torch.equal(whole_rows(later, cohort), before)
    assert int(cohort.store.take(torch.tensor([0])).optimizer.steps) == 2 * int(kept.steps)
