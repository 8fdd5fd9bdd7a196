"""Rounds of PF-MSMTrec against a loop of one network and one optimizer a scenario."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.metrics import roc_auc_score
from tests.msmt.looped_rounds import Loop, Scenario, cross_entropy, matrix
from tests.msmt.small_scenarios import (
    LENGTHS,
    QUIET,
    advanced,
    client_of,
    kept,
    opened,
    run_of,
    scenarios,
    settings,
    uploads,
)

from coterie.core.run.driver import FederatedRun
from coterie.msmt.settings import Settings

pytestmark = pytest.mark.long

A1 = {"pf.expert": "fedavg", "pf.tower": "fedavg"}
CASES: dict[str, dict[str, Any]] = {
    "recommended": {},
    "literal": {"reading": "literal"},
    "fedbn off": {"pf.fedbn": "off"},
    "anchor literal, no normalisation": {"pf.fedbn": "literal", "model.mlp_norm": False},
    "averages, dense": {"pf.increments": "averages", "pf.generator": "full"},
    "server step, dropout": {"pf.server_lr": 3.0, "model.dropout": 0.3},
    "server step, factored, averaged": {**A1, "pf.server_lr": 0.5, "pf.upload": "factored"},
    "not coordinated": {"pf.coordinate": False},
    "no psi": {"pf.psi": False},
    "own": {"pf.centre": "own"},
    "per expert": {"pf.per_expert": True},
    "own, per expert": {"pf.centre": "own", "pf.per_expert": True},
    "factored": {"pf.upload": "factored"},
    "factored, literal, no moments": {
        **{"pf.upload": "factored", "reading": "literal"},
        "train.keep_moments": False,
    },
    "A1, by samples": {**A1, "pf.weighting": "samples"},
    "A2": {"pf.expert": "fedavg", "pf.share": ("experts",)},
    "A3": {"pf.expert": "fedavg", "pf.centre": "own"},
    "A4": {"pf.tower": "fedavg"},
    "embeddings, sgd": {
        **{"pf.share": ("embeddings",), "pf.weighting": "samples"},
        **{"train.optimizer": "sgd", "train.clip": 0.5},
    },
    "experts, leaf, epochs": {
        **{"pf.share": ("experts", "gates"), "pf.generator": "leaf"},
        **{"train.epochs": 2, "pf.lam": 3.0},
    },
    "experts, one layer": {"pf.share": ("experts",), "model.expert_layers": (5,)},
    "participation": {"train.participation": 0.7},
    "participation, own, experts": {
        **{"train.participation": 0.7, "pf.centre": "own"},
        "pf.share": ("experts",),
    },
}
PARTS_OF_OTHERS = ("own", "A4")
"""Cases whose experts and whose towers are each aggregated as in others."""
MEASURED = ("recommended", "factored", "server step, dropout")


def rounds_of(case: str) -> int:
    return 3 if case.startswith("participation") or case == "recommended" else 2


def chosen_in(case: str) -> Settings:
    measured = {"train.evaluate_every": rounds_of(case)} if case in MEASURED else QUIET
    return settings(CASES[case], measured)


@cache
def played(case: str) -> FederatedRun:
    """A run after its rounds, which nobody goes on with."""
    return run_of(chosen_in(case), rounds=rounds_of(case))


@cache
def looped(case: str) -> Loop:
    return Loop(chosen_in(case), scenarios()).rounds(rounds_of(case))


def assert_close(found: Any, expected: Any, what: str) -> None:
    assert set(found) == set(expected), what
    for name, value in expected.items():
        far = float((found[name] - value).abs().max())
        assert torch.allclose(found[name], value, rtol=1e-9, atol=1e-9), f"{what} {name}: {far}"


def assert_same(run: FederatedRun, loop: Loop) -> None:
    """All that scenarios and server have is what the loop has."""
    mine = kept(run)
    own = ("held", "direction", "residual", "added")
    for one in loop.scenarios:
        row = {
            part: {name: value[one.j] for name, value in getattr(mine, part).items()}
            for part in ("personal", "statistics", *own, "anchor")
        }
        named = {n: v.detach() for n, v in one.module.named_parameters()}
        buffers = {n: v for n, v in one.module.named_buffers() if n in row["statistics"]}
        assert len(buffers) == len(row["statistics"]) >= 3
        assert_close(row["personal"], named, f"parameters of {one.j}")
        assert_close(row["statistics"], buffers, f"statistics of {one.j}")
        for part in own:
            assert_close(row[part], getattr(one, part), f"{part} of {one.j}")
        assert bool(mine.anchored[one.j]) == (one.anchor is not None)
        if one.anchor is not None:
            anchor = {name: one.anchor[name] for name in row["anchor"]}
            assert_close(row["anchor"], anchor, f"anchor of {one.j}")
        assert_same_moments(mine.optimizer, one)
    state = run.server_state
    assert_close(state.reference, loop.reference, "reference")
    assert_close({**state.average, **state.tower_average}, loop.average, "average")


def assert_same_moments(state: Any, one: Scenario) -> None:
    train = one.settings.train
    if train.optimizer == "sgd" or not train.keep_moments:
        assert state is None
        return
    for moment in ("exp_avg", "exp_avg_sq"):
        expected = {}
        for name, value in one.module.named_parameters():
            if one.settings.pf.psi or "psi" not in name:
                kept_by_adam = {} if one.optimizer is None else one.optimizer.state[value]
                expected[name] = kept_by_adam.get(moment, torch.zeros_like(value))
                assert int(state.steps[one.j]) == int(kept_by_adam.get("step", 0))
        found = {name: value[one.j] for name, value in state.moments[moment].items()}
        assert_close(found, expected, f"{moment} of {one.j}")


@pytest.mark.parametrize("case", [case for case in CASES if case not in PARTS_OF_OTHERS])
def test_rounds_are_those_of_a_plain_loop(case: str) -> None:
    loop = looped(case)
    assert_same(played(case), loop)
    if case.startswith("participation"):
        assert len({tuple(loop.chosen(number)) for number in (1, 2, 3)}) > 1


@pytest.mark.parametrize("changes", [{}, {"pf.centre": "own"}], ids=str)
def test_anchors_stay_where_the_scenarios_are(changes: dict[str, Any]) -> None:
    """Were those that are not drawn left behind, the anchor would run away from all of them."""
    few = {"train.participation": 0.4, "pf.lam": 2.0, "pf.psi": False}
    run = run_of(settings(few, changes, QUIET, rounds=8), rounds=7)
    mine = kept(run)
    known = run.server_state.reference["scenario"]
    assert sorted(mine.rounds.tolist()) != [7, 7, 7]
    for j in range(3):
        torch.testing.assert_close(mine.held["scenario"][j], known, rtol=0, atol=1e-12)
    apart = (mine.held["scenario"] - mine.anchor["scenario"]).abs().max()
    assert float(apart) < 0.1 * float((known - 1).abs().max())


@pytest.mark.parametrize("case", MEASURED)
def test_scenarios_are_measured_with_their_own_models(case: str) -> None:
    """By running statistics, with what the server decided and ψ follows; the test, and W_s."""
    loop, found, test = looped(case), played(case).journal, scenarios().clients.test
    losses, distances, areas = [], [], []
    for one in loop.scenarios:
        samples = test.take(torch.tensor([one.j])).samples
        one.module.eval()
        with torch.no_grad():
            logits = one.module.logits(samples)
        losses.append(float(cross_entropy(logits, samples["labels"])))
        areas.append([roc_auc_score(samples["labels"][:, i], logits[:, i]) for i in range(2)])
        apart = matrix({n: one.federated()[n] - (one.anchor or {})[n] for n in one.residual})
        distances.append(float(apart.square().mean().sqrt()))
    scalars = found.scalars
    assert scalars["test/loss"] == pytest.approx(np.mean(losses), rel=1e-9)
    for i, task in enumerate(("ctr", "ctcvr")):
        each = [area[i] for area in areas]
        assert found.clients[f"test/personal_auc_{task}"][1].tolist() == pytest.approx(each)
        assert scalars[f"test/auc_{task}"] == pytest.approx(np.mean(each))
    assert scalars["test/auc"] == pytest.approx(np.mean(areas))
    assert found.clients["msmt/distance"][1].tolist() == pytest.approx(distances, rel=1e-6)
    assert scalars["msmt/distance"] == pytest.approx(np.mean(distances), rel=1e-6)
    psi = [float(one.module.psi.mean().detach()) for one in loop.scenarios]
    assert found.clients["msmt/psi"][1].tolist() == pytest.approx(psi, rel=1e-6)
    counts = np.array(LENGTHS)
    trained = [sum(one.losses) / len(one.losses) for one in loop.scenarios]
    assert scalars["fed/loss"] == pytest.approx(counts @ trained / counts.sum(), rel=1e-9)


def test_the_dual_is_that_of_an_ordinary_solver() -> None:
    """Eqs. 13 to 17 by SLSQP on the increments themselves."""
    run = opened(settings({"pf.fedbn": "off", "pf.c": 0.8}, QUIET), scenarios((11, 9, 14)))
    up, client = uploads(run), client_of(run)
    run.advance()
    sent, found = {**up.scenario, **up.towers}, kept(run).direction
    everybody = [[(j, n) for j in range(3) for n in range(2)]]
    by_task = [[(j, i) for j in range(3)] for i in range(2)]
    for names, problems in ((["scenario"], everybody), (client.towers, by_task)):
        for places in problems:
            vectors = np.array([flat(sent, names, place) for place in places])
            expected, weights = by_slsqp(vectors, 0.8)
            assert names != ["scenario"] or 0.3 < weights.max() < 0.4  # of 6, none alone
            for place in places:
                assert flat(found, names, place) == pytest.approx(expected, rel=1e-4, abs=1e-7)


def flat(values: dict[str, torch.Tensor], names: list[str], place: tuple[int, int]) -> np.ndarray:
    return np.concatenate([values[name][place].numpy().ravel() for name in names])


def by_slsqp(vectors: np.ndarray, c: float) -> tuple[np.ndarray, np.ndarray]:
    """U* = g_0 + c ‖g_0‖ U_w / ‖U_w‖ for the best w on the simplex, and w."""
    count, mean = len(vectors), vectors.mean(0)
    gram = vectors @ vectors.T / (vectors**2).sum(1).mean()
    uniform, sums = np.full(count, 1 / count), {"type": "eq", "fun": lambda w: w.sum() - 1}
    length = np.sqrt(uniform @ gram @ uniform)

    def value(w: np.ndarray) -> float:
        return float(w @ gram @ uniform + c * length * np.sqrt(max(w @ gram @ w, 1e-30)))

    starts = [uniform, *np.eye(count) * 0.9 + 0.1 / count]
    solved = [minimize(value, s, bounds=[(0, 1)] * count, tol=1e-15, constraints=sums)
              for s in starts]  # fmt: skip
    best = min(solved, key=lambda one: one.fun).x
    u = best @ vectors
    return mean + c * np.linalg.norm(mean) * u / np.linalg.norm(u), best


def test_in_the_first_round_the_increments_are_averaged() -> None:
    """R11: ψ is 0, so W_s and Θ go to the mean increments, whatever U* is."""
    run = opened(settings(QUIET))
    before, up = kept(run).held, uploads(run)
    run.advance()
    after = kept(run)
    assert float(after.direction["scenario"].abs().max()) > 1e-3
    mean = up.scenario["scenario"].mean((0, 1))
    torch.testing.assert_close(after.held["scenario"], before["scenario"] + mean)
    for name, sent in up.towers.items():
        torch.testing.assert_close(after.held[name], before[name] + sent.mean(0))
    # U* is taken in when it comes, by the ψ of that moment.
    moved = kept(advanced(run, 1))
    assert float(moved.personal["psi"].abs().min()) > 1e-4
    assert float(moved.personal["psi_tower"].abs().min()) > 1e-4


@pytest.fixture(scope="module")
def usual() -> dict[str, torch.Tensor]:
    return kept(run_of(settings(QUIET), rounds=2)).personal


@pytest.mark.parametrize(
    "case",
    [
        *("fedbn off", "not coordinated", "no psi", "own", "per expert"),
        *("A4", "factored", "literal", "pf.c", "pf.lam", "pf.expert"),
    ],
)
def test_every_part_counts_by_default(usual: dict[str, torch.Tensor], case: str) -> None:
    """Each choice leads to other models after two rounds; it does not come to nothing."""
    if case in CASES:
        run = played(case)
    else:
        value = {"pf.c": 0.8, "pf.lam": 0.0, "pf.expert": "fedavg"}[case]
        run = run_of(settings({case: value}, QUIET), rounds=2)
    other, names = kept(run).personal, [name for name in usual if "psi" not in name]
    far = max(float((usual[name] - other[name]).abs().max()) for name in names)
    assert far > 1e-5


def test_a_switch_that_says_the_usual_changes_nothing(usual: dict[str, torch.Tensor]) -> None:
    same = {"pf.fedbn": "increment", "pf.increments": "parameters", "reading": "recommended"}
    again = kept(run_of(settings(same, QUIET), rounds=2)).personal
    assert all(torch.equal(again[name], value) for name, value in usual.items())
