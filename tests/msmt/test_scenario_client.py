"""A scenario: what it takes in, how ψ learns, and that nothing depends on who else is there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.msmt.small_scenarios import (
    QUIET,
    advanced,
    client_of,
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
from torch.func import functional_call

from coterie.core.data.samples.samples import SampleData
from coterie.core.errors import UserError
from coterie.core.local_training import row_adam
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors import tree
from coterie.msmt.client import PFClient
from coterie.msmt.messages import Aggregate, ScenarioModel
from coterie.msmt.models.template import TemplateMMoE

SINGLE = {"engine.dtype": "float32"}
FORMS: dict[str, dict[str, Any]] = {
    "factored": {},
    "leaf": {"pf.generator": "leaf"},
    "dense": {"pf.generator": "full"},
    "factors sent": {"pf.upload": "factored"},
    "own centres": {"pf.centre": "own"},
    "per expert": {"pf.per_expert": True},
    "shared experts": {"pf.share": ("experts",)},
}
each_form = pytest.mark.parametrize("form", FORMS)


class Listening:
    """Notes what a run's scenarios had before they aggregated, what they got, and have."""

    def __init__(self, run: FederatedRun) -> None:
        self.heard: list[tuple[ScenarioModel, Aggregate, ScenarioModel]] = []
        client = client_of(run)
        bound = client.aggregate

        def aggregate(down: Any, mine: Any, data: Any, key: Any) -> Any:
            before = tree.clone(mine)
            up, after = bound(down, mine, data, key)
            self.heard.append((before, down, after))
            return up, after

        client.aggregate = aggregate  # type: ignore[method-assign]


def network_of(client: PFClient, mine: ScenarioModel, row: int = 0) -> dict[str, Tensor]:
    """All parameters and buffers of a scenario's network."""
    whole = {**mine.personal, **client.buffers(mine), **mine.statistics}
    return {name: value[row].clone() for name, value in whole.items()}


class Weights(torch.nn.Module):
    """W_s of a network, and its towers' parameters."""

    def __init__(self, module: TemplateMMoE) -> None:
        super().__init__()
        self.module = module

    def forward(self) -> tuple[Tensor, dict[str, Tensor]]:
        named = self.module.tower_parameters()
        return self.module.scenario_weight(), {f"towers.{n}": v for n, v in named.items()}


def weights_of(client: PFClient, mine: ScenarioModel) -> tuple[Tensor, dict[str, Tensor]]:
    named = {f"module.{n}": v for n, v in network_of(client, mine).items()}
    assert isinstance(client.module, TemplateMMoE)
    return functional_call(Weights(client.module), named, ())


def ulps(found: Tensor, base: Tensor, step: Tensor | float = 0.0) -> float:
    """Largest distance from a sum, in units of the last place of it or of its first term."""
    expected = base + step
    far = (found.double() - expected.double()).abs().numpy()
    return float((far / np.spacing(np.maximum(expected.abs().numpy(), base.abs().numpy()))).max())


@each_form
def test_the_network_has_exactly_what_the_server_decided(form: str) -> None:
    """R3: W_s is [W]^{r-1} + ΔW̄ + ψ U*, though a generator makes it, and Θ likewise."""
    run = run_of(settings(FORMS[form], SINGLE, QUIET), scenarios(dtype=torch.float32), 0, 1)
    listening, client = Listening(run), client_of(run)
    count = 3 if form == "factored" else 2
    advanced(run, count)
    assert len(listening.heard) == 3 * count
    for before, down, after in listening.heard:
        sent = {**down.mean, **down.tower_mean}
        ways = {**down.direction, **down.tower_direction}
        psi = {n: after.personal["psi_tower" if n in client.towers else "psi"] for n in sent}
        target = {}
        for name in sent:
            u, base = ways[name], before.held[name] + sent[name]
            target[name] = base, psi[name].reshape(1, -1, *[1] * (base.dim() - 2)) * u
        scenario, towers = weights_of(client, after)
        for name, value in towers.items():
            assert torch.equal(after.personal[name], before.held[name] + sent[name])
            assert ulps(value[None], *target[name]) <= 2  # ψ U* is rounded, or added in one step
            assert ulps(after.held[name], *target[name]) <= 2
        if "scenario" in target:
            assert ulps(scenario[None], *target["scenario"]) <= 3  # one rounding of each term
            assert ulps(after.held["scenario"], *target["scenario"]) <= 3
        else:  # a sum of factors, of 1, and of their residuals
            rows, columns = (torch.add(*target[f"scenario.{n}"]) for n in ("rows", "columns"))
            whole = 1 + rows.double()[0, :, :, None] + columns.double()[0, :, None, :]
            assert ulps(scenario, whole.float()) <= 3


def test_factors_are_what_the_server_decided() -> None:
    run = run_of(settings(QUIET, pf__upload="factored"), rounds=0)
    listening, client = Listening(run), client_of(run)
    advanced(run, 2)
    for before, down, after in listening.heard:
        psi, now = after.personal["psi"][..., None], client.federated(after)
        for name in ("scenario.rows", "scenario.columns"):
            target = before.held[name] + down.mean[name] + psi * down.direction[name]
            torch.testing.assert_close(now[name], target, rtol=0, atol=1e-14)
        scenario = weights_of(client, after)[0]
        whole = now["scenario.rows"][0, :, :, None] + now["scenario.columns"][0, :, None, :]
        torch.testing.assert_close(scenario, 1 + whole, rtol=0, atol=1e-14)


def gradients(
    client: PFClient, mine: ScenarioModel, batch: dict[str, Tensor]
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of a scenario's network."""
    every = network_of(client, mine)
    free = {n: every[n].requires_grad_() for n in mine.personal}
    loss = client.local.loss({**every, **free}, batch)
    found = torch.autograd.grad(loss, list(free.values()), materialize_grads=True)
    return float(loss.detach()), dict(zip(free, found, strict=True))


def of_one(run: FederatedRun, j: int) -> ScenarioModel:
    mine: ScenarioModel = run.store.take(torch.tensor([j]))
    return mine


def test_psi_learns_by_the_inner_product_with_the_direction() -> None:
    """R11: ∂L/∂ψ_n = ⟨∂L/∂W_s^n, U*⟩, with the alignment's share."""
    run = run_of(settings(QUIET, pf__generator="leaf"), rounds=2)
    client, batch = client_of(run), samples(1, 8, "train")
    mine = of_one(run, 1)
    _, found = gradients(client, mine, batch)
    for n in range(2):
        inner = float((found["scenario"][n] * mine.direction["scenario"][0, n]).sum())
        assert abs(inner) > 1e-6
        assert float(found["psi"][n]) == pytest.approx(inner, rel=1e-9)
    for i in range(2):
        inner = sum(float((found[m][i] * mine.direction[m][0, i]).sum()) for m in client.towers)
        assert abs(inner) > 1e-6
        assert float(found["psi_tower"][i]) == pytest.approx(inner, rel=1e-9)


@pytest.mark.parametrize(
    "form", [form for form in FORMS if form not in ("own centres", "per expert")]
)
def test_psi_learns_by_finite_differences_and_generators_go_on(form: str) -> None:
    run = run_of(settings(FORMS[form], QUIET), rounds=2)
    client, batch, mine = client_of(run), samples(1, 8, "train"), of_one(run, 1)
    _, found = gradients(client, mine, batch)
    for name in ("psi", "psi_tower"):
        for place in range(2):
            ends = []
            for step in (1e-5, -1e-5):
                value = mine.personal[name].clone()
                value[0, place] += step
                moved = replace(mine, personal={**mine.personal, name: value})
                ends.append(gradients(client, moved, batch)[0])
            slope = (ends[0] - ends[1]) / 2e-5
            assert float(found[name][place]) == pytest.approx(slope, rel=1e-5, abs=1e-9)
    if form in ("factored", "dense", "factors sent"):
        assert_generators_learn(run, found)


def assert_generators_learn(run: FederatedRun, found: dict[str, Tensor]) -> None:
    """R3: the server's value is reached by a constant, so gradients still go to MLP_s and s_j."""
    before = kept(run)
    names = [n for n in before.personal if n.startswith("scenario_generator.")]
    assert len(names) == 5
    assert all(float(found[name].abs().max()) > 1e-9 for name in names)
    after = kept(advanced(run, 1))
    for name in names:
        moved = (after.personal[name] - before.personal[name]).abs().flatten(1).amax(1)
        assert float(moved.min()) > 1e-5
    weights = [client_of(run).scenario.spread(one.residual) for one in (before, after)]
    assert float((weights[0] - weights[1]).abs().max()) > 1e-5


@pytest.mark.parametrize("changes", [{"train.participation": 0.7}, {"pf.centre": "own"}])
def test_the_anchor_moves_with_what_psi_added(changes: dict[str, Any]) -> None:
    """Alignment with W̄ alone would pull each ψ U* into the mean, and W̄ away from it, for ever."""
    run = run_of(settings(QUIET, changes, pf__upload="full"), rounds=2)
    state, before = run.server_state, kept(run)
    advanced(run, 1)
    after = kept(run)
    assert float(before.added["scenario"].abs().max()) > 1e-6
    for mine, known in ((before, state), (after, run.server_state)):
        known_of_it = mine.held["scenario"] - mine.added["scenario"]
        torch.testing.assert_close(
            known_of_it, known.reference["scenario"].expand_as(known_of_it), rtol=0, atol=1e-12
        )
    moved = after.anchor["scenario"] - before.added["scenario"]
    expected = run.server_state.average["scenario"].expand_as(moved)
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-12)


def test_scenario_parameters_stay_about_one_in_a_long_run() -> None:
    """Where the anchor left out what ψ added, they were 2.7 away by then, and 6 ten rounds on."""
    few = {"rounds": 30, "train.evaluate_every": 30, "train.lr": 0.01, "train.batch_size": 20}
    run = run_of(settings(few), scenarios((11, 9)))
    away = run.server_state.reference["scenario"] - 1
    assert 0.05 < float(away.square().mean().sqrt()) < 1.0


def test_adam_goes_on_behind_the_servers_back() -> None:
    """R13: moments stay, unless they are to begin anew in each round."""
    run = run_of(settings(QUIET), rounds=2)
    assert kept(run).optimizer.steps.tolist() == [4, 4, 2]
    assert kept(run_of(settings(QUIET, train__keep_moments=False), rounds=2)).optimizer is None


@pytest.mark.parametrize(
    ("form", "dtype"),
    [("own centres", "float64"), ("factored", "float32")],
)
def test_chunks_and_the_order_of_scenarios_make_no_difference(form: str, dtype: str) -> None:
    """With dropout: a scenario's draws are its own."""
    changes = {**FORMS[form], **QUIET, "model.dropout": 0.3, "engine.dtype": dtype}
    task = scenarios(dtype=getattr(torch, dtype))
    chosen = settings(changes)
    expected = states(run_of(chosen, task, 2))
    tolerance = {"float64": 1e-12, "float32": 1e-6}[dtype]
    turned = replace(task, clients=task.clients.take(torch.tensor([2, 0, 1])))
    other = FederatedRun(federation(chosen, turned))
    other.exchange.present = lambda block: torch.arange(3)  # type: ignore[method-assign]
    for run in (run_of(chosen, task, 2, chunk=3), advanced(other, 2)):
        found = states(run)
        assert found.keys() == expected.keys()
        for path, value in expected.items():
            torch.testing.assert_close(found[path], value, rtol=tolerance, atol=tolerance)


def states(run: FederatedRun) -> dict[str, Tensor]:
    mine = run.store.take(torch.arange(3))
    return dict(tree.tensors({"server": run.server_state, "mine": mine}))


def test_the_same_run_again_is_the_same_to_the_bit() -> None:
    chosen = settings(QUIET, model__dropout=0.3, train__participation=0.7)
    first, second, other = (
        states(run_of(one, rounds=2))
        for one in (chosen, chosen, settings(QUIET, model__dropout=0.2))
    )
    assert all(torch.equal(second[path], value) for path, value in first.items())
    assert not all(torch.equal(other[path], value) for path, value in first.items())


@pytest.mark.parametrize("centre", ["global", "own"])
def test_who_trains_to_no_number_is_left_out_and_named(centre: str) -> None:
    """Of g_0, of the Gram matrix, and of W̄; the others go on as if it were not there."""
    task, chosen = scenarios(), settings(QUIET, pf__centre=centre)
    train = dict(task.clients.train.samples)
    train["numbers"] = train["numbers"].clone()
    train["numbers"][12] = torch.nan
    poisoned = replace(task.clients.train, samples=train)
    run = run_of(chosen, with_samples(task, poisoned), rounds=0)
    before = None
    for _ in range(2):
        run.advance()
        [(step, client, why)] = run.journal.refused
        assert (step, client) == ("update", 1)
        assert "NaN" in why
        assert run.journal.scalars["fed/clients"] == 2
        before = before or of_one(run, 1)
    healthy = replace(task, clients=task.clients.take(torch.tensor([0, 2])))
    alone = run_of(chosen, healthy, rounds=2)
    ids = torch.tensor([0, 2])
    expected = dict(tree.tensors({"s": alone.server_state, "m": alone.store.take(ids)}))
    for path, value in tree.tensors({"s": run.server_state, "m": run.store.take(ids)}):
        torch.testing.assert_close(value, expected[path], rtol=1e-12, atol=1e-12)
    mine = of_one(run, 1)
    assert all(value.isfinite().all() for _, value in tree.tensors(mine))
    assert int(mine.optimizer.steps) == 0  # type: ignore[union-attr]
    # It takes in what the others made: W_s moved by their mean, as theirs did. There is no ball
    # around an increment that is no number, so it has no direction of its own.
    assert mine.anchored.all()
    assert mine.direction["scenario"].any() == (centre == "global")
    torch.testing.assert_close(mine.held["scenario"][0], run.server_state.reference["scenario"])


def test_who_has_no_samples_receives_and_counts_nowhere() -> None:
    chosen = settings(QUIET)
    task = scenarios((11, 0, 14))
    run = run_of(chosen, task, rounds=2)
    healthy = replace(task, clients=task.clients.take(torch.tensor([0, 2])))
    alone, ids = run_of(chosen, healthy, rounds=2), torch.tensor([0, 2])
    expected = dict(tree.tensors({"s": alone.server_state, "m": alone.store.take(ids)}))
    for path, value in tree.tensors({"s": run.server_state, "m": run.store.take(ids)}):
        torch.testing.assert_close(value, expected[path], rtol=1e-12, atol=1e-12)
    mine = of_one(run, 1)
    torch.testing.assert_close(mine.held["scenario"][0], run.server_state.reference["scenario"])
    assert not run.journal.refused
    found, loss = (each.journal.scalars["fed/loss"] for each in (run, alone))
    assert found == pytest.approx(loss, rel=1e-12)
    dual = dict(zip(*(v.tolist() for v in run.journal.clients["msmt/dual_weights"]), strict=True))
    assert dual[1] == 0.0
    assert sum(dual.values()) == pytest.approx(1.0)


def test_nobody_with_samples_changes_nothing() -> None:
    run = run_of(settings(), scenarios((0, 0)), rounds=1)
    first = opened(settings(), scenarios((0, 0)))
    assert states_of_server(run) == states_of_server(first)
    assert run.journal.scalars["fed/clients"] == 2


def states_of_server(run: FederatedRun) -> list[tuple[str, list[Any]]]:
    return [(path, value.tolist()) for path, value in tree.tensors(run.server_state)]


@pytest.mark.parametrize(
    ("lengths", "size", "says"),
    [((5, 1, 4), 4, "client 1 has a single training sample"), ((5, 4, 4), 1, "raise the batch")],
)
def test_batches_of_one_have_no_variance(lengths: Any, size: int, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        run_of(settings(train__batch_size=size), scenarios(lengths), rounds=1)
    assert "\n" not in str(caught.value)


def test_one_class_alone_has_no_auc_and_is_left_out_of_the_mean() -> None:
    task = scenarios()
    test = task.clients.test
    labels = test.samples["labels"].clone()
    labels[20:40] = 0
    labels[40:, 1] = 0
    silent = SampleData(test.ids, {**test.samples, "labels": labels}, test.offsets)
    task = replace(task, clients=replace(task.clients, test=silent))
    run = run_of(settings(train__evaluate_every=1), task, rounds=1)
    ids, values = run.journal.clients["test/personal_auc_ctr"]
    assert ids.tolist() == [0, 1, 2]
    assert values.isnan().tolist() == [False, True, False]
    scalars = run.journal.scalars
    assert scalars["test/auc_ctr"] == pytest.approx(float(values[[0, 2]].mean()))
    only = run.journal.clients["test/personal_auc_ctcvr"][1]
    assert only.isnan().tolist() == [False, True, True]
    assert scalars["test/auc_ctcvr"] == pytest.approx(float(only[0]))


def test_without_psi_other_kernels_keep_the_same_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where Adam is not torch's fused kernel: no moments of what is not trained."""
    chosen = settings(QUIET, pf__psi=False)
    fused = states(run_of(chosen, rounds=2))
    monkeypatch.setattr(row_adam, "_flat", lambda *stacks: False)
    found = states(run_of(chosen, rounds=2))
    assert found.keys() == fused.keys()
    for path, value in fused.items():
        torch.testing.assert_close(found[path], value, rtol=1e-9, atol=1e-9)
    assert not found["mine.personal.psi"].any()
