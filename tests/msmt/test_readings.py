"""The readings of the paper, what does not go together, and what has no effect."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.msmt.small_scenarios import QUIET, kept, run_of, settings

from coterie.core.errors import UserError
from coterie.core.settings.schema import build
from coterie.core.tensors import tree
from coterie.msmt.aggregation.personalised import LITERAL, RECOMMENDED, rule_of
from coterie.msmt.methods import remarks
from coterie.msmt.readings import idle, resolve
from coterie.msmt.settings import Settings


def resolved(**changes: Any) -> Settings:
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return resolve(build(Settings, named))


def test_readings_are_the_rules_of_their_name() -> None:
    assert rule_of(resolved().pf) == RECOMMENDED
    assert rule_of(resolved(reading="literal").pf) == LITERAL
    assert rule_of(resolved(pf__per_expert=True).pf).grouping == "separate"
    assert resolved() == resolved(reading="recommended")
    again = resolve(resolved(reading="literal"))
    assert again == resolved(reading="literal")


def test_what_the_user_chose_stays() -> None:
    chosen = resolved(reading="literal", pf__fedbn="off", pf__c=0.1).pf
    assert (chosen.increments, chosen.fedbn, chosen.c) == ("averages", "off", 0.1)
    chosen = resolved(pf__increments="averages").pf
    assert (chosen.increments, chosen.fedbn) == ("averages", "increment")


def test_defaults_are_the_papers() -> None:
    chosen = resolved()
    assert (chosen.pf.c, chosen.pf.lam) == (0.4, 0.5)
    assert (chosen.train.lr, chosen.train.optimizer) == (1e-3, "adam")
    assert (chosen.model.experts, chosen.model.dropout) == (4, 0.2)
    assert (chosen.pf.expert, chosen.pf.tower, chosen.pf.share) == ("pf", "pf", ())
    assert chosen.pf.weighting == "equal"  # Eqs. 10 and 12
    assert chosen.train.weighting == "samples"  # FedAvg's own


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"reading": "released"}, "no code of PF-MSMTrec was released"),
        ({"reading": "released", "method": "fedavg"}, "choose --reading"),
        ({"model.name": "mmoe"}, "set model.name to template"),
        ({"method": "local", "privacy.clip": 1.0}, "none is sent"),
        ({"method": "central", "privacy.noise": "gaussian"}, "has the samples themselves"),
        ({"pf.c": -0.1}, "'pf.c' must be at least 0"),
        ({"pf.lam": -1.0}, "'pf.lam' must be at least 0"),
        ({"pf.server_lr": 0.0}, "'pf.server_lr' must be above 0"),
        ({"reading": "literal", "pf.server_lr": 2.0}, "set pf.increments to parameters"),
        ({"pf.fedbn": "literal", "pf.server_lr": 2.0}, "set pf.fedbn to increment or off"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_one_line(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        resolve(build(Settings, changes))
    assert "\n" not in str(caught.value)


IDLE = [
    ({"pf.coordinate": False}, {"pf.c": 0.9, "pf.centre": "own", "pf.weighting": "samples"}),
    ({"pf.psi": False}, {"pf.c": 0.9, "pf.centre": "own", "pf.coordinate": False}),
    ({"pf.expert": "fedavg"}, {"pf.per_expert": True, "pf.fedbn": "off"}),
    (
        {"pf.expert": "fedavg", "pf.tower": "fedavg"},
        {"pf.c": 0.9, "pf.coordinate": False, "pf.increments": "averages", "pf.psi": False},
    ),
]


@pytest.mark.parametrize(("beside", "changes"), IDLE, ids=str)
def test_what_is_said_to_have_no_effect_has_none(
    beside: dict[str, Any], changes: dict[str, Any]
) -> None:
    usual, other = settings(QUIET, beside), settings(QUIET, beside, changes)
    assert set(idle(other)) - set(idle(usual)) >= set(changes)
    assert all(any(name in line for line in remarks(other)) for name in changes)
    first, second = (
        {n: v for n, v in kept(run_of(one, rounds=2)).personal.items() if "psi" not in n}
        for one in (usual, other)
    )
    for (path, a), (_, b) in zip(tree.tensors(first), tree.tensors(second), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, msg=path)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"reading": "literal"},
        {"pf.c": 0.3},
        {"pf.server_lr": 2.0},
        {"pf.psi": False},
        {"pf.coordinate": False},
        {"pf.centre": "own", "pf.per_expert": True},
        {"pf.share": ("gates",), "pf.weighting": "samples"},
        {"pf.tower": "fedavg", "pf.weighting": "samples"},
        {"pf.generator": "leaf", "pf.lam": 0.1},
        {"pf.upload": "factored", "pf.fedbn": "off"},
    ],
    ids=str,
)
def test_what_has_an_effect_is_not_named(changes: dict[str, Any]) -> None:
    assert remarks(settings(changes)) == []


def test_what_others_do_not_look_at_is_named() -> None:
    assert remarks(settings(train__share=("inputs.*",))) == [
        "train.share has no effect on pf-msmtrec"
    ]
    [line] = remarks(settings(train__weighting="equal"))
    assert "it has pf.weighting" in line
    [line] = remarks(settings(method="local", train__weighting="equal"))
    assert line == "train.weighting has no effect on local"
    assert any(
        "upload is not in the ledger" in line for line in remarks(settings(method="central"))
    )
