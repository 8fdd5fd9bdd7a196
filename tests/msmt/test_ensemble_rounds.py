"""Rounds of the method ``ensemble`` against FedAvg's own runs and plain loops in float64."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tests.msmt.small_scenarios import (
    LENGTHS,
    SMALL,
    advanced,
    federation,
    kept,
    opened,
    run_of,
    samples,
    scenarios,
    settings,
    with_samples,
)
from torch import Tensor

from coterie.core.data.samples.samples import SampleData
from coterie.core.errors import UserError
from coterie.core.front.trained_models import TrainedModels
from coterie.core.privacy.check import assert_no_shared_storage, assert_non_interference
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors import tree
from coterie.msmt.data.task import Task
from coterie.msmt.ensemble.client import EnsembleClient
from coterie.msmt.ensemble.messages import Measure, RoundModel
from coterie.msmt.ensemble.network import Ensemble
from coterie.msmt.models.base import MultiTask
from coterie.msmt.settings import Settings

ROUNDS = 4  # three of FedAvg, and the fine-tuning
BASE: dict[str, Any] = {
    **{"method": "ensemble", "model.name": "mmoe", "rounds": ROUNDS, "train.lr": 0.1},
    **{"ensemble.rates": (1.0, 0.1), "ensemble.epochs": 2},
}
Numbers = dict[str, Tensor]


def chosen(**more: Any) -> Settings:
    return settings(BASE, **more)


@pytest.fixture(scope="module")
def whole() -> FederatedRun:
    """A run to its end; what scenarios kept before the last round is ``before``."""
    run = run_of(chosen(), rounds=ROUNDS - 1)
    run.before = tree.clone(kept(run))  # type: ignore[attr-defined]
    return advanced(run, 1)


@pytest.fixture(scope="module")
def fedavg() -> list[tuple[Numbers, Numbers, dict[str, float]]]:
    """FedAvg's model, the scenarios' statistics and the measures after each of its rounds."""
    run, found = run_of(chosen(method="fedavg", rounds=ROUNDS - 1), rounds=0), []
    for _ in range(ROUNDS - 1):
        advanced(run, 1)
        found.append((run.server_state.weights, kept(run).statistics, run.history[-1]))
    return tree.clone(found)


def form(run: FederatedRun) -> MultiTask:
    return copy.deepcopy(run.federation.client.module)  # type: ignore[union-attr]


def of(params: Numbers, j: int) -> Numbers:
    return {name: value[j] for name, value in params.items()}


def logits(module: MultiTask, params: Numbers, part: str, j: int) -> Tensor:
    module.load_state_dict(params, strict=False)
    module.eval()
    with torch.no_grad():
        return module.logits(samples(j, 20, part))


def area(scores: Tensor, part: str, j: int) -> float:
    """Mean AUC over tasks, by scikit-learn."""
    labels = samples(j, 20, part)["labels"]
    return float(np.mean([roc_auc_score(labels[:, t], scores[:, t]) for t in range(2)]))


def quality(module: MultiTask, params: Numbers, part: str, j: int) -> float:
    return area(logits(module, params, part, j), part, j)


def test_all_rounds_but_the_last_are_fedavgs_bit_for_bit(
    whole: FederatedRun, fedavg: list[tuple[Numbers, Numbers, dict[str, float]]]
) -> None:
    for row, (_, _, theirs) in zip(whole.history, fedavg, strict=False):
        for name in ("fed/loss", "eval/global_auc", "test/global_auc", "test/global_loss"):
            assert row[name] == theirs[name], name


def test_the_last_round_has_fedavgs_best_model_and_its_statistics(
    whole: FederatedRun, fedavg: list[tuple[Numbers, Numbers, dict[str, float]]]
) -> None:
    module = form(whole)
    means = [
        np.mean([quality(module, {**w, **of(s, j)}, "valid", j) for j in range(3)])
        for w, s, _ in fedavg
    ]
    best = int(np.argmax(means))
    weights, statistics, _ = fedavg[best]
    state = whole.server_state
    assert (state.best.round, state.tuned) == (best + 1, True)
    assert state.best.score == pytest.approx(means[best], abs=1e-12)
    assert all(torch.equal(state.weights[n], value) for n, value in weights.items())
    mine = kept(whole)
    assert all(torch.equal(mine.statistics[n], value) for n, value in statistics.items())
    last = whole.history[-1]
    assert last["eval/global_auc"] == pytest.approx(means[best], abs=1e-12)


@pytest.mark.long
def test_a_best_round_in_the_middle_is_gone_back_to() -> None:
    """With steps that are too long the first rounds are the best ones, whatever came after."""
    found = []
    for seed in range(4):
        some = chosen(train__lr=0.4, ensemble__epochs=0, rounds=5)
        run = FederatedRun(replace(federation(some, scenarios((30, 30, 30))), seed=seed))
        weights: list[Numbers] = []
        statistics: list[Numbers] = []
        for _ in range(4):
            advanced(run, 1)
            weights.append(tree.clone(run.server_state.weights))
            statistics.append(tree.clone(kept(run).statistics))
        scores = [row["eval/global_auc"] for row in run.history]
        advanced(run, 1)
        place = int(np.argmax(scores))
        found.append(place)
        tuned = kept(run).tuned
        for name, value in weights[place].items():
            assert torch.equal(tuned[name], value.expand_as(tuned[name])), name
        for name, value in statistics[place].items():
            assert torch.equal(tuned[name], value), name
    assert len(set(found) - {3}) > 1  # not always the last round, nor always the same


def trained(module: MultiTask, start: Numbers, batches: Any, j: int, lr: float) -> list[Numbers]:
    """Train by a plain loop with torch's own Adam; the network after each epoch."""
    module.load_state_dict(start, strict=False)
    decay = float(SMALL["train.weight_decay"])
    optimizer = torch.optim.Adam(module.parameters(), lr=lr, weight_decay=decay)
    found = [copy.deepcopy(module.state_dict())]
    for epoch in batches:
        module.train()
        for number in range(int(epoch.steps[j])):
            batch = {n: v[0] for n, v in epoch(number, torch.tensor([j])).items()}
            optimizer.zero_grad()
            module.loss({n: v for n, v in batch.items() if n != "batch.seed"}).backward()
            for one in module.parameters():  # biases before a normalisation: decay alone moves them
                one.grad = torch.zeros_like(one) if one.grad is None else one.grad
            optimizer.step()
        found.append(copy.deepcopy(module.state_dict()))
    return found


def test_fine_tuning_is_a_plain_loop_and_keeps_the_best_epoch_and_rate(
    whole: FederatedRun, fedavg: list[tuple[Numbers, Numbers, dict[str, float]]]
) -> None:
    module, client, ids = form(whole), whole.federation.client, torch.arange(3)
    assert isinstance(client, EnsembleClient)
    key = whole.secret.fold(ids).fold("tune", 0, ROUNDS, 0)
    weights, statistics, _ = fedavg[whole.server_state.best.round - 1]
    train = whole.newest_data.train
    batches = [client.local.batches(train, key.fold("tune", epoch), 1) for epoch in range(2)]
    epochs = set()
    for j in range(3):
        start = {**weights, **of(statistics, j)}
        courses = [trained(module, start, batches, j, rate * 0.1) for rate in (1.0, 0.1)]
        candidates = [courses[0][0], *courses[0][1:], *courses[1][1:]]
        scores = [quality(module, one, "valid", j) for one in candidates]
        best = int(np.argmax(scores))
        epochs.add(best)
        ours = of(kept(whole).tuned, j)
        assert all(torch.allclose(ours[n], candidates[best][n], atol=1e-9) for n in ours)
    assert epochs != {0}


def test_the_own_network_is_trained_alone_and_its_best_round_kept(whole: FederatedRun) -> None:
    module, client, ids = form(whole), whole.federation.client, torch.arange(3)
    assert isinstance(client, EnsembleClient)
    train, rounds = whole.newest_data.train, range(1, ROUNDS)
    keys = [whole.secret.fold(ids).fold("update", 0, number, 0) for number in rounds]
    batches = [client.local.batches(train, key.fold("alone")) for key in keys]
    first = whole.server_state.own
    weights = opened(chosen()).server_state.weights
    assert not torch.equal(first["gates.weight"], weights["gates.weight"])
    for j in range(3):
        course = trained(module, {**first, **fresh(whole)}, batches, j, 0.1)[1:]
        scores = [quality(module, one, "valid", j) for one in course]
        ours, best = kept(whole).alone, int(np.argmax(scores))
        assert float(ours.score[j]) == pytest.approx(scores[best], abs=1e-12)
        assert all(torch.allclose(v[j], course[best][n], atol=1e-9) for n, v in ours.best.items())
        assert all(torch.allclose(v[j], course[-1][n], atol=1e-9) for n, v in ours.params.items())


def fresh(run: FederatedRun) -> Numbers:
    """Running statistics before anything was trained."""
    return {n: v for n, v in form(run).state_dict().items() if "running" in n or "tracked" in n}


def test_what_is_measured_is_the_mix_of_both(whole: FederatedRun) -> None:
    module, mine, last = form(whole), kept(whole), whole.history[-1]
    found: dict[str, list[float]] = {"valid": [], "test": []}
    for j in range(3):
        own, partner = of(mine.alone.best, j), of(mine.tuned, j)
        weights = []
        for task in range(2):
            a, b = (logits(module, one, "valid", j)[:, task] for one in (own, partner))
            label = samples(j, 20, "valid")["labels"][:, task]
            sa, sb = (float(z.std()) or 1.0 for z in (a, b))
            scores = [w / 10 * a / sa + (1 - w / 10) * b / sb for w in range(11)]
            quality_of = [round(roc_auc_score(label, score), 12) for score in scores]
            weights.append((int(np.argmax(quality_of)) / 10, sa, sb))
        for part, areas in found.items():
            a, b = (logits(module, one, part, j) for one in (own, partner))
            columns = [
                w * a[:, task] / sa + (1 - w) * b[:, task] / sb
                for task, (w, sa, sb) in enumerate(weights)
            ]
            areas.append(area(torch.stack(columns, 1), part, j))
        shown = whole.journal.clients["msmt/own_weight"][1]
        assert float(shown[j]) == pytest.approx(np.mean([w for w, _, _ in weights]))
    assert last["eval/personal_auc"] == pytest.approx(np.mean(found["valid"]), abs=1e-12)
    assert last["test/personal_auc"] == pytest.approx(np.mean(found["test"]), abs=1e-12)
    assert last["eval/auc"] == last["eval/personal_auc"]


def test_a_model_that_is_given_away_has_the_probabilities_measured(whole: FederatedRun) -> None:
    models = TrainedModels(form(whole), whole, (0, 1, 2), "ensemble")
    own = models.client(2)
    assert isinstance(own, Ensemble)
    batch = samples(2, 20, "test")
    own.eval()
    shares = own.probabilities(batch).detach()
    y = batch["labels"].double()
    loss = -(y * shares.log() + (1 - y) * (1 - shares).log()).sum(1).mean()
    _, areas = whole.journal.clients["test/personal_auc"]
    assert area(shares, "test", 2) == pytest.approx(float(areas[2]), abs=1e-12)
    found = whole.retest()
    assert found["test/personal_auc"] == whole.history[-1]["test/personal_auc"]
    assert float(loss) < 2 * float(found["test/personal_loss"])
    server = models.server()
    assert not isinstance(server, Ensemble)


def test_nothing_leaves_but_fedavgs_upload(whole: FederatedRun) -> None:
    theirs = run_of(chosen(method="fedavg", rounds=ROUNDS - 1))

    def sent(run: FederatedRun, step: str) -> list[dict[str, Any]]:
        rows = [row for row in run.ledger.rows() if row["direction"] == "up"]
        return [row for row in rows if row["step"] == step]

    assert sent(whole, "update") == sent(theirs, "update")
    ways = {row["step"] for row in whole.ledger.rows() if row["direction"] == "up"}
    assert ways == {"update", "evaluate"}
    numbers = sum(row["bytes"] for row in sent(whole, "evaluate"))
    assert numbers < 3 * ROUNDS * 500  # measurements alone


def test_the_control_sends_measurements_alone_and_knows_no_other(whole: FederatedRun) -> None:
    run = run_of(chosen(ensemble__partner="local"))
    ways = {row["step"] for row in run.ledger.rows() if row["direction"] == "up"}
    assert ways == {"evaluate"}
    down = {row["step"] for row in run.ledger.rows() if row["field"] in ("weights", "alone")}
    assert "update" not in down
    assert not any(name.startswith("eval/global") for name in run.history[-1])
    # The partner is trained as the own network is, from another start, and fine-tuned.
    task = scenarios()
    held = {n: v.clone() for n, v in task.clients.train.samples.items()}
    held["labels"][: LENGTHS[0]] = 1 - held["labels"][: LENGTHS[0]]
    train = replace(task.clients.train, samples=held)
    other = run_of(chosen(ensemble__partner="local"), with_samples(task, train))
    for (path, a), (_, b) in zip(
        *(tree.tensors(one.store.take(torch.tensor([1, 2]))) for one in (run, other)), strict=True
    ):
        assert torch.equal(a, b), path
    mine = kept(run)
    assert not torch.equal(*(next(iter(c.best.values())) for c in (mine.alone, mine.partner)))
    assert bool(mine.is_tuned.all())


@pytest.mark.long
@pytest.mark.parametrize("partner", ["fedavg", "local"])
def test_a_saved_run_goes_on_to_the_same_bits(tmp_path: Any, partner: str) -> None:
    some = chosen(ensemble__partner=partner, train__participation=0.7)
    for done in (1, ROUNDS - 1):
        once = run_of(some, rounds=done)
        torch.save(once.to_plain(), tmp_path / "last.ckpt")
        advanced(once, ROUNDS - done)
        again = run_of(some, rounds=0)
        again.load_plain(torch.load(tmp_path / "last.ckpt", weights_only=True))
        advanced(again, ROUNDS - done)
        expected, found = (dict(tree.tensors(run.to_plain())) for run in (once, again))
        assert expected.keys() == found.keys()
        assert all(torch.equal(found[path], value) for path, value in expected.items())
        assert again.history[-1] == once.history[-1]


@pytest.mark.long
@pytest.mark.parametrize("partner", ["fedavg", "local"])
def test_forked_processes_give_the_same_bits(partner: str) -> None:
    some = chosen(ensemble__partner=partner, train__participation=0.7, model__dropout=0.3)
    one = run_of(some)
    parts = replace(federation(some, scenarios()), workers=2, chunk=1)
    two = advanced(FederatedRun(parts), ROUNDS)
    expected, found = (dict(tree.tensors(run.to_plain())) for run in (one, two))
    assert all(torch.equal(found[path], value) for path, value in expected.items())
    assert two.history == one.history
    assert two.clients.crew.starts == 1  # type: ignore[attr-defined]


@pytest.mark.long
def test_uploads_depend_on_what_they_declare(whole: FederatedRun) -> None:
    client, data = whole.federation.client, whole.newest_data
    key = whole.secret.fold(data.ids).fold("boundary")
    weights = whole.server_state.weights
    for mine in (whole.before, kept(whole)):  # type: ignore[attr-defined]
        downs = {"update": RoundModel(weights, 4, 2), "evaluate": Measure(weights, True)}
        for step, down in downs.items():
            assert_non_interference(client, step, down, mine, data, key)
            up, after = getattr(client, step)(down, mine, data, key)
            for other in (mine, data, after, down):
                if other is not None:
                    assert_no_shared_storage(up, other)


def without(task: Task, part: str, j: int) -> Task:
    """The same scenarios, one of which has no samples of a part."""
    held: SampleData = getattr(task.clients, part)
    one = [held.take(torch.tensor([k])).samples for k in range(len(held))]
    one[j] = {n: v[:0] for n, v in one[j].items()}
    clients = replace(task.clients, **{part: SampleData.from_clients(one)})
    return replace(task, clients=clients)


def test_a_scenario_without_validation_samples_averages_its_last_rounds() -> None:
    task = without(scenarios(), "valid", 1)
    run = run_of(chosen(), task)
    mine, weights = kept(run), run.journal.clients["msmt/own_weight"][1]
    assert float(weights[1]) == 0.5
    assert all(torch.equal(mine.alone.best[n][1], v[1]) for n, v in mine.alone.params.items())
    best = run.server_state.best_weights
    assert all(torch.equal(mine.tuned[n][1], value) for n, value in best.items())
    assert run.history[-1]["eval/auc"] == run.history[-1]["eval/auc"]
    assert float(run.journal.clients["test/personal_auc"][1].isnan().sum()) == 0


def test_without_any_validation_samples_the_last_rounds_are_mixed() -> None:
    task = scenarios()
    for j in range(3):
        task = without(task, "valid", j)
    run = run_of(chosen(), task)
    assert run.server_state.best.round == ROUNDS - 1
    assert "eval/auc" not in run.history[-1]
    assert 0 < run.history[-1]["test/auc"] < 1
    last = run_of(chosen(method="fedavg", rounds=ROUNDS - 1), task).server_state.weights
    tuned = kept(run).tuned
    assert all(torch.equal(tuned[n][0], value) for n, value in last.items())


def test_validation_samples_of_one_class_choose_nothing() -> None:
    task = scenarios()
    valid = task.clients.valid
    labels = {**valid.samples, "labels": torch.zeros_like(valid.samples["labels"])}
    labels["labels"][:20] = valid.samples["labels"][:20]  # the first scenario has both
    clients = replace(task.clients, valid=SampleData(valid.ids, labels, valid.offsets))
    run = run_of(chosen(), replace(task, clients=clients))
    assert run.journal.clients["msmt/own_weight"][1][1:].tolist() == [0.5, 0.5]
    assert run.history[-1]["eval/auc"] == pytest.approx(
        float(run.journal.clients["eval/personal_auc"][1][0])
    )


def test_a_single_scenario_has_its_own_ensemble() -> None:
    run = run_of(chosen(), scenarios((11,)))
    assert 0 < run.history[-1]["test/auc"] < 1


def test_a_network_that_diverges_is_left_where_it_was() -> None:
    run = run_of(chosen(), rounds=1)
    client = run.federation.client
    assert isinstance(client, EnsembleClient)
    usual = client.local.train
    poisoned = torch.tensor([1])

    def diverging(start: Any, batches: Any, **more: Any) -> Any:
        fitted = usual(start, batches, **more)
        if more.get("lr") is None and "pull" in more:  # FedAvg's own
            return fitted
        params = {n: v.index_fill(0, poisoned, torch.inf) for n, v in fitted.params.items()}
        return replace(fitted, params=params)

    before = tree.clone(kept(run))
    client.local.train = diverging  # type: ignore[method-assign]
    advanced(run, ROUNDS - 1)
    mine = kept(run)
    for name, value in mine.alone.params.items():
        assert torch.equal(value[1], before.alone.params[name][1])
        assert not torch.equal(value[0], before.alone.params[name][0])
    best = run.server_state.best_weights
    assert all(torch.equal(mine.tuned[n][1], value) for n, value in best.items())
    assert mine.rounds.tolist() == [ROUNDS - 1] * 3  # what it uploads counts all the same
    assert 0 < run.history[-1]["test/auc"] < 1


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="'rounds' must be 2 or more in ensemble"):
        run_of(chosen(rounds=1))
    with pytest.raises(UserError, match=r"'ensemble.rates' are shares of the learning rate"):
        chosen(ensemble__rates=(2.0,))
    with pytest.raises(UserError, match="none is sent"):
        chosen(ensemble__partner="local", privacy__clip=1.0)
    run = run_of(chosen())
    server = run.federation.server
    with pytest.raises(UserError, match="cannot be taken back"):
        server.reopen(run.server_state, run.block_history)
    with pytest.raises(UserError, match="it has done 2 already"):
        server.change_rounds(run.server_state, run.history[:2], 2)
    server.change_rounds(run.server_state, run.history[:2], 3)
