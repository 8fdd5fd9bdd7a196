"""Where federation has nothing to add: one scenario alone, and scenarios that are all the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.msmt.small_scenarios import QUIET, advanced, kept, opened, run_of, scenarios, settings
from torch import Tensor

from coterie.core.methods.bounds import LocalClient
from coterie.core.methods.kit.model_messages import OwnModel, OwnStart
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors import tree
from coterie.msmt.methods import client_half
from coterie.msmt.models.make import network

ALONE = {"pf.psi": False, "pf.lam": 0.0, **QUIET}
"""ψ U* adds to what a scenario did itself, and the alignment pulls back to where a round began."""
APART = {**ALONE, "pf.per_expert": True}


def locally(changes: dict[str, Any], rounds: int) -> dict[str, Tensor]:
    """What `local` makes of the one scenario, with the mini-batches that PF-MSMTrec draws."""
    task, chosen = scenarios((11,)), settings(changes, method="local")
    client = client_half(chosen, network(chosen, task.schema))
    assert isinstance(client, LocalClient)
    run = opened(settings(changes), task)
    data = task.clients
    mine = client.enrol(data, run.secret)
    _, mine = client.receive(OwnStart(run.server_state.weights), mine, data, run.secret)
    for number in range(1, rounds + 1):
        key = run.secret.fold(data.ids).fold("update", 0, number, 0)
        _, mine = client.train(None, mine, data, key)
    return everything(mine)


def federated(run: FederatedRun) -> dict[str, Tensor]:
    """What PF-MSMTrec makes of its scenarios."""
    return everything(kept(run))


def everything(mine: OwnModel) -> dict[str, Tensor]:
    """Parameters, statistics and moments."""
    kept = mine.optimizer.moments if mine.optimizer is not None else {}
    moments = {f"{n}.{m}": v for m, of in kept.items() for n, v in of.items()}
    return {**mine.personal, **mine.statistics, **moments}


def far(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Largest difference, but for ψ, which is not trained here."""
    names = [name for name in ours if not name.startswith("psi")]
    assert len(names) > 30
    return max(float((ours[name] - theirs[name]).abs().max()) for name in names)


@pytest.mark.parametrize("experts", [{"model.experts": 1}, {"pf.per_expert": True}], ids=str)
def test_one_scenario_is_trained_as_if_it_were_alone(experts: dict[str, Any]) -> None:
    """Test group 8: the mean increment is its own (with R12 that is all it keeps).

    Bit for bit in the first round; later W_s and Θ are [·]^{r-1} + Δ, which rounds. Adam makes
    whole steps of such rounding where a gradient is nothing else, as that of a bias in front of a
    normalisation is, so what follows from it is compared where steps are as small as gradients.
    """
    changes = {**ALONE, **experts}
    first = opened(settings(changes), scenarios((11,)))
    key = first.secret.fold(first.newest_data.ids).fold("update", 0, 1, 0)
    server, client = first.federation.server, first.federation.client
    down = server.request(first.server_state)  # type: ignore[attr-defined]
    _, after = client.update(down, kept(first), first.newest_data, key)  # type: ignore[attr-defined]
    alone = locally(changes, 1)
    for name, value in after.personal.items():
        assert torch.equal(value, alone[name]), name
    for rounds, optimizer in ((1, "adam"), (2, "sgd")):
        changes = {**changes, "train.optimizer": optimizer}
        run = run_of(settings(changes), scenarios((11,)), rounds)
        assert far(federated(run), locally(changes, rounds)) < 1e-11
        # The generator learns on; what W_s is beyond it stays nothing.
        assert float(kept(run).residual["scenario"].abs().max()) < 1e-14


@pytest.fixture(scope="module")
def local_rounds() -> dict[str, Tensor]:
    return locally(APART, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"pf.psi": True},
        {"pf.lam": 0.5},
        {"pf.per_expert": False, "pf.expert": "pf"},
        {"pf.fedbn": "literal", "pf.increments": "averages"},
    ],
    ids=str,
)
def test_what_makes_one_scenario_differ_from_local_training(
    local_rounds: dict[str, Tensor], changes: dict[str, Any]
) -> None:
    """ψ U*, the alignment, a mean over the experts, and averages of β_g."""
    other = federated(run_of(settings(APART, changes), scenarios((11,)), 2))
    assert far(local_rounds, other) > 1e-6


RULES: dict[str, dict[str, Any]] = {
    "recommended": {},
    "fedbn off": {"pf.fedbn": "off"},
    "not coordinated": {"pf.coordinate": False},
    "own, another ball": {"pf.centre": "own", "pf.c": 0.9},
    "per expert": {"pf.per_expert": True},
    "averages, all shared": {
        **{"pf.increments": "averages", "pf.share": ("embeddings", "experts", "gates")},
    },
    "fedavg": {"pf.expert": "fedavg", "pf.tower": "fedavg"},
    "by samples": {"pf.expert": "fedavg", "pf.weighting": "samples"},
    "factored": {"pf.upload": "factored"},
}


def twins(changes: dict[str, Any], count: int = 3) -> FederatedRun:
    """Two rounds of scenarios with the same samples and the same draws."""
    chosen = settings(QUIET, {"pf.psi": False, "model.experts": 1, "model.dropout": 0.3}, changes)
    run = run_of(chosen, scenarios((11,) * count, alike=True), rounds=0)
    same = run.secret.fold
    run.clients.secrets = lambda ids: same(torch.zeros_like(ids))
    return advanced(run, 2)


@pytest.fixture(scope="module")
def alone() -> dict[str, Tensor]:
    return federated(twins({}, count=1))


@pytest.mark.parametrize("rule", RULES)
def test_of_scenarios_that_are_the_same_all_rules_agree(
    rule: str, alone: dict[str, Tensor]
) -> None:
    """Test group 9: each makes of three what it would be alone."""
    run = twins(RULES[rule])
    found = federated(run)
    for name, value in found.items():
        for row in (1, 2):
            assert torch.equal(value[row], value[0]), name
    assert far({n: v[:1] for n, v in found.items()}, alone) < 1e-7  # Adam makes much of rounding
    held = {n: v for n, v in kept(run).held.items() if not n.startswith("scenario.")}
    for name, value in held.items():
        if name in run.server_state.reference:
            torch.testing.assert_close(run.server_state.reference[name], value[0])
    assert all(v.isfinite().all() for _, v in tree.tensors(run.server_state))
