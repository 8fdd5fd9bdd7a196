"""FedAvg with local tuning or a local head, and FedAMP, against plain loops with torch.optim."""

import math
from dataclasses import replace

import pytest
import torch
from tests.llm.every_backbone import KINDS, make
from tests.llm.organisations import (
    backbone,
    cohort_of,
    federation,
    organisations,
    settings,
    whole_rows,
)

from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.metrics.as_torchmetrics import FullRanking
from coterie.core.privacy.check import assert_non_interference
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tensors.keys import Key
from coterie.llm.adapter import Adapter, LocalHead
from coterie.llm.algorithm import PPLR
from coterie.llm.backbone_settings import SplitSettings
from coterie.llm.client import Organisation
from coterie.llm.messages import Adapters, Candidate
from coterie.llm.ranks_with import own_adapter
from coterie.llm.readings import resolve
from coterie.llm.settings import Settings, TuningSettings

pytestmark = pytest.mark.usefixtures("rounds_alone")

KEY = Key.from_seed(3)
DOUBLE = torch.float64
FEDAMP = {"lam": 0.5, "alpha": 1.0, "sigma": 1.0, "relative": True}


def chosen(method, **more):
    found = settings(method, **more)
    return replace(found, fedamp=replace(found.fedamp, **FEDAMP))


def descended(how, own, start, key, epochs, pull=0.0):
    """Train a row by an ordinary torch.optim.Adam on a backbone of its own."""
    model = backbone(dtype=DOUBLE)
    adapter = Adapter(model.named_parameters())
    adapter.load(start)
    near = [p.detach().clone() for p in adapter.parameters]
    optimizer = torch.optim.Adam(adapter.parameters, lr=how.train.lr)
    for batch in Organisation(how, model)._batches(own, key, epochs):
        pairs = zip(adapter.parameters, near, strict=True)
        loss = model.loss(batch) + 0.5 * pull * sum(((p - s) ** 2).sum() for p, s in pairs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return adapter.row()


def update_key(client, number):
    secret = Key.from_seed(5).fold("clients").fold(torch.tensor([client]))
    return secret.fold("update", 0, number, 0).take(torch.tensor([0]))


def rounds(how, data, n):
    """Server state and cohort after n rounds; none is kept but by validation."""
    server, cohort = federation(how, backbone(dtype=DOUBLE), data)
    client, store, state = (
        Organisation(how, backbone(dtype=DOUBLE)),
        cohort.store,
        server.begin(KEY),
    )
    for number in range(1, n + 1):
        cohort = cohort_of(client, data, (0, number), store)
        state = server.round(state, cohort, KEY.fold(number))
    return server, state, cohort


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


# Tuning


def test_tuned_is_fedavg_but_for_what_is_measured():
    data, tuning = organisations(), TuningSettings(epochs=2)
    how = replace(chosen("fedavg-tuned"), tuning=tuning)
    _, state, cohort = rounds(how, data, 2)
    _, plain, plain_cohort = rounds(chosen("fedavg"), data, 2)
    assert torch.equal(state.rows, plain.rows)
    key = Key.from_seed(how.seed).fold("tuning")
    for client, asked in enumerate(data.valid):
        row = descended(how, data.train[client], state.rows[client], key.fold(client), 2)
        assert not torch.equal(row, state.rows[client])
        model = backbone(dtype=DOUBLE)
        Adapter(model.named_parameters()).load(row)
        metric = FullRanking(k=10)
        metric.update(model.eval().scores(asked.history), asked.seen, asked.targets)
        found = float(cohort.journal.clients["eval/ndcg@10"][1][client])
        assert found == pytest.approx(float(metric.compute()["ndcg@10"]))
    measured = [c.journal.clients["eval/ndcg@10"][1].tolist() for c in (cohort, plain_cohort)]
    assert measured[0] != measured[1]


def test_no_epochs_of_tuning_are_fedavg():
    data = organisations()
    how = replace(chosen("fedavg-tuned"), tuning=TuningSettings(epochs=0))
    tuned, plain = rounds(how, data, 2)[2], rounds(chosen("fedavg"), data, 2)[2]
    assert tuned.journal.scalars == plain.journal.scalars


# A head that stays


def test_a_local_head_equals_training_apart_and_averaging_the_rest():
    data, how = organisations(), chosen("fedavg-head")
    model = backbone(dtype=DOUBLE)
    adapter = Adapter(model.named_parameters())
    last = [".layers.1." in name for name in adapter.names]
    counts = [p.numel() for p in adapter.parameters]
    own = torch.tensor(last).repeat_interleave(torch.tensor(counts))
    assert 0 < int(own.sum()) < own.numel()
    rows = [adapter.row()] * 3
    sizes = torch.tensor([len(part) for part in data.train]).double()
    for number in (1, 2):
        trained = torch.stack(
            [
                descended(how, data.train[c], rows[c], update_key(c, number), 1)
                for c in range(len(data))
            ]
        )
        mean = sizes / sizes.sum() @ trained
        rows = [torch.where(own, mine, mean) for mine in trained]
    _, state, cohort = rounds(how, data, 2)
    close(state.rows, torch.stack(rows)[:, ~own])
    heads = [cohort.store.take(torch.tensor([c])).head for c in range(3)]
    close(torch.stack(heads), torch.stack(rows)[:, own])
    assert not torch.equal(heads[0], heads[1])


def run_of(how, data):
    client = Organisation(how, backbone())
    server = PPLR(how, len(data), client.head.shared(client.start))
    more = {"seed": 5, "rounds": how.rounds, "monitor": PPLR.monitor}
    return FederatedRun(Federation(server=server, client=client, blocks=[data], **more))


def test_the_head_of_the_best_round_is_tested_and_served():
    """And it never leaves: a round's bytes are those of the rest."""
    data, how = organisations(), chosen("fedavg-head", rounds=6, patience=6)
    one, heads = run_of(how, data), []
    client = one.federation.client
    while not one.finished:
        one.advance()
        heads.append(one.store.take(torch.tensor([2])).head)
    best = one.server_state.chosen.round
    assert best < len(heads)  # so that the last head is another one
    assert not torch.equal(heads[best - 1], heads[-1])
    assert torch.equal(one.store.take(torch.tensor([2])).best_head, heads[best - 1])
    row = own_adapter(one, data[2], one.federation.server.served(one.server_state, 2))
    assert torch.equal(row, client.head.joined(one.server_state.best[2], heads[best - 1]))
    asked, metric = data.test[2], FullRanking(k=10)
    scores = client.score(2, row, asked.history)
    metric.update(scores, asked.seen, asked.targets)
    found = one.client_results["test/ndcg@10"][1][2]
    assert float(found) == pytest.approx(float(metric.compute()["ndcg@10"]))
    shared = int((~client.head.own).sum())
    rows = [r for r in one.ledger.rows() if r["step"] == "update" and r["field"] == "row"]
    assert rows
    assert {r["bytes"] / r["messages"] for r in rows} == {4 * shared}


def test_of_clients_that_train_alone_no_adapter_crosses():
    one = run_of(chosen("local", rounds=2), organisations())
    while not one.finished:
        one.advance()
    rows = one.ledger.rows()
    assert [row["bytes"] for row in rows if row["field"] == "row"] == [0] * 3  # update, evaluate
    sent = {row["field"] for row in rows if row["direction"] == "up" and row["bytes"]}
    assert sent == {"loss", "examples", "recall", "ndcg", "users"}
    noisy = {"privacy": PrivacySettings(noise="gaussian", clip=1.0, scale=1.0)}
    with pytest.raises(UserError, match="in local none is sent"):
        resolve(replace(chosen("local"), **noisy))


@pytest.mark.parametrize("method", ["fedavg-tuned", "fedavg-head", "local"])
def test_who_recommends_has_what_was_measured(method):
    data, how = organisations(), chosen(method, rounds=2)
    one = run_of(how, data)
    while not one.finished:
        one.advance()
    for client in range(3):
        row = one.federation.server.served(one.server_state, client)
        asked, metric = data.test[client], FullRanking(k=10)
        own = own_adapter(one, data[client], row)
        assert not torch.equal(own, row)
        scores = one.federation.client.score(client, own, asked.history)
        metric.update(scores, asked.seen, asked.targets)
        found = float(one.client_results["test/ndcg@10"][1][client])
        assert found == pytest.approx(float(metric.compute()["ndcg@10"]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [None, 2])
def test_a_head_is_the_last_layer_and_what_is_behind_it(kind, rank):
    model = make(kind, layers=3, rank=rank)
    adapter = Adapter(model.named_parameters())
    head = LocalHead.of(model, adapter, "fedavg-head")
    names = {name for name, part in adapter.named_tensors(head.own).items() if bool(part.all())}
    inside = {n for n, p in model.layers[2].named_parameters() if p.requires_grad}
    behind = {"model.model.norm.weight"} if rank is None and kind != "recformer" else set()
    last = f"model.{model.place}.2."
    assert names == {last + name for name in inside} | behind
    assert sum(map(torch.numel, map(model.get_parameter, names))) == int(head.own.sum())
    assert LocalHead.of(model, adapter, "fedavg").own is None


def test_private_parts_are_declared():
    how, data = chosen("fedavg-head"), organisations()
    client = Organisation(how, backbone())
    key, mine = Key.from_seed(1).fold(1), client.enrol(data[1], KEY)
    row = client.head.shared(client.start)
    assert_non_interference(client, "update", Adapters(row), mine, data[1], key)
    for split in ("valid", "test"):
        assert_non_interference(client, "evaluate", Candidate(row, split), mine, data[1], key)


# FedAMP


@pytest.mark.parametrize("sizes", [(9, 5, 7), (9, 0, 7)])
def test_fedamp_equals_a_loop_over_pairs(sizes):
    data, how = organisations(sizes=sizes), chosen("fedamp")
    start = Adapter(backbone(dtype=DOUBLE).named_parameters()).row()
    w, heard = [start] * 3, {0, 1, 2}
    for number in (1, 2, 3):
        squares = {(i, j): float(((w[i] - w[j]) ** 2).sum()) for i in range(3) for j in range(3)}
        unit = sorted(squares[pair] for pair in ((0, 1), (0, 2), (1, 2)))[1] or 1.0
        slope = {(i, j): math.exp(-squares[i, j] / unit) for i in range(3) for j in heard - {i}}
        most = max(sum(slope[i, j] for j in heard - {i}) for i in range(3))
        alpha = min(1.0, 1 / (most + 1))
        u = []
        for i in range(3):
            others = sum(alpha * slope[i, j] * (w[j] - w[i]) for j in heard - {i})
            u.append(w[i] + others)
        w = [
            descended(how, data.train[c], u[c], update_key(c, number), 1, pull=0.5 / alpha)
            for c in range(3)
        ]
        heard -= {c for c in range(3) if not sizes[c]}
    _, state, cohort = rounds(how, data, 3)
    close(state.rows, torch.stack(w))
    assert cohort.journal.scalars["fed/alpha"] == pytest.approx(alpha)
    assert state.silent.tolist() == [not size for size in sizes]


def test_fedamp_without_likeness_or_pull_is_local():
    data, how = organisations(), chosen("fedamp")
    how = replace(how, fedamp=replace(how.fedamp, sigma=1e-3, lam=1e-20))
    apart = rounds(how, data, 3)[1]
    _, local, cohort = rounds(chosen("local"), data, 3)
    # The first round's models are equal: whatever is mixed is the same.
    close(apart.rows, whole_rows(local, cohort))


# Limits


@pytest.mark.parametrize("method", ["fedavg-tuned", "fedavg-head", "fedamp"])
def test_a_split_model_is_refused(method):
    with pytest.raises(UserError, match=f"--method {method} is of whole models only"):
        Settings(method=method, split=SplitSettings(k=1))


@pytest.mark.parametrize("method", ["fedavg-tuned", "fedavg-head", "fedamp"])
def test_few_clients_in_a_round(method):
    how, data = chosen(method, participation=0.5), organisations()
    _, state, cohort = rounds(how, data, 3)
    assert bool(state.rows.isfinite().all())
    assert not cohort.journal.refused
    assert cohort_of(Organisation(how, backbone()), data) is not None
