"""Test samples, the clients' and the server's, are seen by nothing that plays."""

from dataclasses import replace

import pytest
import torch
from tests.core.methods.labelled_clients import (
    CLASSES,
    Net,
    Softmax,
    labelled,
    run,
    samples_of,
    split,
)
from tests.page.small_games import HELD, LENGTHS, TEST, TRAIN, settings

from coterie.core.tensors import tree
from coterie.page.data.task import Task
from coterie.page.experiment import halves
from coterie.page.paper import PAPER
from coterie.page.readings import resolve
from coterie.page.settings import Settings

OTHER = samples_of(labelled([40], "other samples"), 0)
STRANGE = labelled([9] * len(LENGTHS), "strange samples")
OF_PARTS = ("fedrecon", "fed-rod", "fedala")  # which look at a body and a head
EVERY_OTHER = {"evaluate_every": 2}
GAMES = [
    ("recommended", {"server_utility": "aggregate"}),
    ("recommended", {"follower": "ddpg", "server_utility": "mixture"}),
    ("recommended", {"follower": "ddpg"}),
    ("literal", {"server_utility": "aggregate"}),
    ("literal", {"server_utility": "mixture"}),
    ("released", {}),
]


def played(chosen, data, valid=HELD, test=TEST, build=Softmax, rounds=4):
    """States after some stages; and what each measured, on test samples and on all others.

    Agents act by what they have learnt from the third stage on.
    """
    server, client = halves(chosen, build, Task("small", data, valid, test, CLASSES))
    found = run(server, client, data, rounds)
    states = {"server": found.state, "clients": found.private(range(len(LENGTHS)))}
    rows = [journal.scalars for journal in found.journals]
    tests = [{k: v for k, v in row.items() if k.startswith("test/")} for row in rows]
    others = [{k: v for k, v in row.items() if not k.startswith("test/")} for row in rows]
    return dict(tree.tensors(states)), tests, others


@pytest.mark.parametrize(("reading", "game"), GAMES)
def test_other_test_samples_change_the_report_alone(reading, game):
    chosen = settings(reading, EVERY_OTHER, reward_ratio="1:1", **game)
    changes_the_report_alone(chosen, Softmax)


@pytest.mark.parametrize("method", [name for name in PAPER.methods if name != "page"])
def test_nor_do_they_change_more_in_other_methods(method):
    """In a round that is measured, and in one that builds on it."""
    train = replace(TRAIN, **EVERY_OTHER)
    build = Net if method in OF_PARTS else Softmax
    changes_the_report_alone(resolve(Settings(method=method, train=train)), build, 3)


def changes_the_report_alone(chosen, build, rounds=4):
    data = split(LENGTHS)
    states, tests, others = played(chosen, data, build=build, rounds=rounds)
    strange = replace(data, test=STRANGE)
    found, other_tests, same = played(chosen, strange, test=OTHER, build=build, rounds=rounds)
    assert found.keys() == states.keys()
    for path, value in states.items():
        assert torch.equal(found[path], value), path
    assert same == others
    for n in range(1, rounds, 2):
        assert tests[n]
        assert tests[n] != other_tests[n]


@pytest.mark.parametrize(("reading", "game"), GAMES)
def test_other_validation_samples_do_change_the_game(reading, game):
    """The clients' or the server's, or the test above would tell nothing."""
    chosen, data = settings(reading, reward_ratio="1:1", **game), split(LENGTHS)
    states, *_ = played(chosen, data, rounds=2)
    for changed in (
        played(chosen, replace(data, valid=STRANGE), rounds=2)[0],
        played(chosen, data, valid=OTHER, rounds=2)[0],
    ):
        assert any(not torch.equal(changed[path], value) for path, value in states.items())
