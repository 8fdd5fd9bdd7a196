"""What crosses between a scenario and the server: increments of W_s and Θ, γ, β, two numbers."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.msmt.small_scenarios import (
    QUIET,
    SMALL,
    advanced,
    client_of,
    kept,
    opened,
    run_of,
    scenarios,
    settings,
    uploads,
    with_samples,
)
from torch import Tensor

from coterie.core.data.samples.samples import SampleData
from coterie.core.privacy.check import (
    assert_no_shared_storage,
    assert_non_interference,
    perturbed,
)
from coterie.core.protocol.messages import Down, Report, Up, declared
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors import tree
from coterie.core.wire.codec import Header, encode
from coterie.msmt.algorithm import PFServer
from coterie.msmt.client import PFClient
from coterie.msmt.data.task import Task
from coterie.msmt.messages import Aggregate, Request, ScenarioReport, ScenarioUpdate

UPLOAD = ["scenario", "towers", "affine", "shared", "samples", "loss"]
FORMS: dict[str, dict[str, Any]] = {
    "usual": {},
    "factors": {"pf.upload": "factored"},
    "leaf, no psi": {"pf.generator": "leaf", "pf.psi": False, "train.optimizer": "sgd"},
    "shared": {
        **{"pf.share": ("embeddings", "experts"), "train.keep_moments": False},
        "reading": "literal",
    },
}
each_form = pytest.mark.parametrize("form", FORMS)
S, N, D, H1, T = 3, 2, 9, 5, 2
ROUNDS = 2


@pytest.fixture(scope="module")
def runs() -> dict[str, FederatedRun]:
    """Runs of two rounds, each measured."""
    return {form: run_of(settings(changes), rounds=ROUNDS) for form, changes in FORMS.items()}


def request_of(run: FederatedRun) -> Request:
    server = run.federation.server
    assert isinstance(server, PFServer)
    return server.request(run.server_state)


def aggregate_of(run: FederatedRun) -> Aggregate:
    """A message as the server sends it."""
    mine = kept(run)
    towers = client_of(run).towers
    scenario = {n: v[0] for n, v in mine.direction.items() if n not in towers}
    of_towers = {n: v[0] for n, v in mine.direction.items() if n in towers}
    shared = {n: mine.personal[n][0] for n in client_of(run).averaged}
    anchor = {n: v[0] for n, v in mine.anchor.items()}
    return tree.clone(Aggregate(scenario, scenario, anchor, of_towers, of_towers, shared))


def test_the_protocol() -> None:
    steps = {name: (step.down, step.up) for name, step in PFClient.steps().items()}
    assert set(steps) == {"receive", "update", "aggregate", "evaluate"}
    assert steps["update"] == (Request, ScenarioUpdate)
    assert steps["aggregate"] == (Aggregate, None)
    assert steps["evaluate"] == (None, ScenarioReport)
    assert issubclass(ScenarioReport, Report)
    assert all(down is None or issubclass(down, Down) for down, _ in steps.values())
    assert [field.name for field in dataclasses.fields(ScenarioUpdate)] == UPLOAD
    assert [leaf.name for leaf in declared(ScenarioUpdate)] == UPLOAD
    assert issubclass(ScenarioUpdate, Up)
    assert not any(leaf.depends_on & {"statistics"} for leaf in declared(ScenarioUpdate))


@each_form
def test_uploads_hold_what_they_are_to_hold(runs: dict[str, FederatedRun], form: str) -> None:
    run = runs[form]
    up, client = uploads(run), client_of(run)
    factors = {"scenario.rows", "scenario.columns"}
    assert set(up.scenario) == (factors if form == "factors" else {"scenario"})
    assert set(up.towers) == {n for n in client._form if n.startswith("towers.")}
    assert set(up.affine) == {"gamma", "beta"}
    assert float(up.affine["gamma"].abs().max()) < 0.5  # γ itself is about 1: a clip would be its
    shared = ("inputs.", "weight", "task_generator.", "scenario_generator.", "first.", "rest.")
    expected = {n for n in client._form if n.startswith(shared)} if form == "shared" else set()
    assert set(up.shared) == expected
    sizes = {n: tuple(v.shape[1:]) for n, v in up.scenario.items()}
    full = {"scenario": (N, D, H1)}
    assert sizes == (
        {"scenario.rows": (N, D), "scenario.columns": (N, H1)} if form == "factors" else full
    )


@each_form
def test_uploads_depend_on_what_they_declare(runs: dict[str, FederatedRun], form: str) -> None:
    run, one = runs[form], torch.tensor([1])
    client, mine, data = client_of(run), run.store.take(one), run.newest_data.take(one)
    key = run.secret.fold(one).fold("boundary")
    for step, down in (("update", request_of(run)), ("evaluate", None)):
        assert_non_interference(client, step, down, mine, data, key)
        up, after = getattr(client, step)(down, mine, data, key)
        for other in (mine, data, after, down):
            if other is not None:
                assert_no_shared_storage(up, other)
    sent = aggregate_of(run)
    assert_no_shared_storage(sent, client.aggregate(sent, mine, data, key)[1])


@each_form
def test_steps_do_not_write_into_what_they_are_given(
    runs: dict[str, FederatedRun], form: str
) -> None:
    run = runs[form]
    client, mine, data = client_of(run), kept(run), run.newest_data
    key = run.secret.fold(data.ids)
    for step, down in (
        ("update", request_of(run)),
        ("aggregate", aggregate_of(run)),
        ("evaluate", None),
    ):
        before = [tree.clone(one) for one in (mine, data)]
        sent = None if down is None else tree.clone(down)
        getattr(client, step)(down, mine, data, key)
        for now, then in zip((mine, data, down), (*before, sent), strict=True):
            for (path, a), (_, b) in zip(tree.tensors(now), tree.tensors(then), strict=True):
                assert torch.equal(a, b), (step, path)


def test_running_statistics_do_not_leave(runs: dict[str, FederatedRun]) -> None:
    """They are measured with, and influence neither training nor an upload."""
    run = runs["usual"]
    client, mine, data = client_of(run), kept(run), run.newest_data
    key = run.secret.fold(data.ids)
    others = replace(mine, statistics=perturbed(mine.statistics))
    first, second = (client.update(request_of(run), one, data, key)[0] for one in (mine, others))
    for (path, a), (_, b) in zip(tree.tensors(first), tree.tensors(second), strict=True):
        assert torch.equal(a, b), path
    seen, other = (client.evaluate(None, one, data, key)[0].measures for one in (mine, others))
    assert not torch.equal(seen["personal/test/loss"], other["personal/test/loss"])


def test_nothing_local_is_in_the_bytes(runs: dict[str, FederatedRun]) -> None:
    """Embeddings, W_loc, gates, generators and ψ: neither values nor what training changed."""
    run = runs["usual"]
    client, mine, data = client_of(run), kept(run), run.newest_data
    key = run.secret.fold(data.ids).fold("update", 0, ROUNDS + 1, 0)
    up, after = client.update(request_of(run), mine, data, key)
    sent = encode(up, Header("update", (0, ROUNDS + 1, 0, 0)))
    assert raw(up.scenario["scenario"]) in sent
    assert raw(after.personal["input_norm.weight"] - 1) in sent
    local = ("inputs.", "weight", "gates.", "task_generator.", "scenario_generator.", "psi")
    names = [n for n in after.personal if n.startswith((*local, "first.", "rest."))]
    assert len(names) + len(client.towers) + 2 == len(after.personal)
    for name in names:
        new, old = after.personal[name], mine.personal[name]
        for row in range(S):
            for value in (new[row], old[row], new[row] - old[row]):
                assert value.any(), name
                assert raw(value) not in sent, name


def raw(value: Tensor) -> bytes:
    return value.contiguous().numpy().tobytes()


def relabelled(task: Task, j: int) -> Task:
    """The same scenarios, but for the training labels of one."""
    train = task.clients.train
    labels = train.samples["labels"].clone()
    rows = slice(int(train.offsets[j]), int(train.offsets[j + 1]))
    labels[rows] = 1 - labels[rows]
    return with_samples(task, replace(train, samples={**train.samples, "labels": labels}))


def test_what_a_scenario_sends_first_depends_on_its_own_samples_alone() -> None:
    usual, other = (
        opened(settings(QUIET), one) for one in (scenarios(), relabelled(scenarios(), 2))
    )
    ups = [uploads(run) for run in (usual, other)]
    for (path, a), (_, b) in zip(*(tree.tensors(up) for up in ups), strict=True):
        assert torch.equal(a[:2], b[:2]), path
    assert not torch.equal(ups[0].scenario["scenario"][2], ups[1].scenario["scenario"][2])
    # A round later it depends on the others, through what the server made of theirs.
    later = [uploads(advanced(run, 1)).scenario["scenario"] for run in (usual, other)]
    assert not torch.equal(later[0][0], later[1][0])


def test_test_samples_change_nothing_but_the_test() -> None:
    task = scenarios()
    test = task.clients.test
    flipped = {**test.samples, "labels": 1 - test.samples["labels"]}
    silent = SampleData(test.ids, flipped, test.offsets)
    poisoned = replace(task, clients=replace(task.clients, test=silent))
    first, second = (run_of(settings(), one, rounds=2) for one in (task, poisoned))
    ours, theirs = (tree.tensors({"s": r.server_state, "m": kept(r)}) for r in (first, second))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(ours, theirs, strict=True))
    for row, other in zip(first.history, second.history, strict=True):
        told = {name for name, value in row.items() if value != other[name]}
        assert "test/personal_loss" in told
        assert all(name.startswith("test/") for name in told)


def rows_of(run: FederatedRun, direction: str) -> dict[tuple[str, str], tuple[int, int]]:
    """Messages and bytes by step and field, all names of a field together."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in run.ledger.rows():
        if row["direction"] == direction:
            place = row["step"], row["field"].partition(".")[0]
            size = found.get(place, (0, 0))[1] + row["bytes"]
            found[place] = row["messages"], size
    return found


def tower_numbers() -> int:
    """Parameters of the towers, by hand."""
    widths = (SMALL["model.expert_layers"][-1], *SMALL["model.tower_layers"])
    hidden = sum(a * b + 3 * b for a, b in pairwise(widths))
    return T * (hidden + widths[-1] + 1)


@pytest.mark.parametrize("form", ["usual", "factors"])
def test_the_ledger_counts_what_the_shapes_say(runs: dict[str, FederatedRun], form: str) -> None:
    run, messages, number = runs[form], S * ROUNDS, 8
    up = rows_of(run, "up")
    scenario = N * (D + H1) if form == "factors" else N * D * H1
    expected = {
        "scenario": scenario,
        "towers": tower_numbers(),
        "affine": 2 * D,
        "shared": 0,
        "samples": 1,
        "loss": 1,
    }
    for field, count in expected.items():
        assert up["update", field] == (messages, messages * count * number), field
    total = sum(size for (step, _), (_, size) in up.items() if step == "update")
    assert total == messages * sum(expected.values()) * number
    assert {step for step, _ in up} == {"update", "evaluate"}


def test_factors_are_few(runs: dict[str, FederatedRun]) -> None:
    full, few = (
        rows_of(runs[form], "up")["update", "scenario"][1] for form in ("usual", "factors")
    )
    assert full * (D + H1) == few * D * H1
    down = [rows_of(runs[form], "down") for form in ("usual", "factors")]
    assert down[1]["aggregate", "mean"][1] * D * H1 == down[0]["aggregate", "mean"][1] * (D + H1)


def test_evaluation_sends_nothing_and_each_round_sends_once(runs: dict[str, FederatedRun]) -> None:
    down = rows_of(runs["usual"], "down")
    assert not any(step == "evaluate" for step, _ in down)
    assert down["receive", "own"][0] == S
    once = S * ROUNDS
    whole = once * D * H1 * 8  # the same for all experts
    for field in ("mean", "direction", "average"):
        assert down["aggregate", field] == (once, whole)
    for field in ("tower_mean", "tower_direction"):
        assert down["aggregate", field] == (once, once * tower_numbers() * 8)
    assert {step for step, _ in down} == {"receive", "aggregate"}  # shapes are no bytes


@pytest.mark.parametrize("changes", [{"pf.per_expert": True}, {"pf.centre": "own"}], ids=str)
def test_what_differs_by_expert_is_sent_for_each(changes: dict[str, Any]) -> None:
    run = run_of(settings(QUIET, changes), rounds=1)
    assert rows_of(run, "down")["aggregate", "direction"] == (S, S * N * D * H1 * 8)
