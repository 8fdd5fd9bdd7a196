"""Test samples, the clients' and the server's, are seen by nothing that plays."""

from dataclasses import replace

import pytest
import torch
from tests.core.methods.labelled_clients import CLASSES, Softmax, labelled, run, samples_of, split
from tests.page.small_games import HELD, LENGTHS, TEST, settings

from coterie.core.tensors import tree
from coterie.page.data.task import Task
from coterie.page.halves import halves

OTHER = samples_of(labelled([40], "other samples"), 0)
STRANGE = labelled([9] * len(LENGTHS), "strange samples")
GAMES = [
    ("recommended", {"server_utility": "aggregate"}),
    ("recommended", {"follower": "ddpg", "server_utility": "mixture"}),
    ("recommended", {"follower": "ddpg"}),
    ("literal", {"server_utility": "aggregate"}),
    ("literal", {"server_utility": "mixture"}),
    ("released", {}),
]


def played(chosen, data, valid=HELD, test=TEST):
    """States after some stages; and what each measured, on test samples and on all others."""
    server, client = halves(chosen, Softmax, Task("small", data, valid, test, CLASSES))
    found = run(server, client, data, 5)
    states = {"server": found.state, "clients": found.private(range(len(LENGTHS)))}
    rows = [journal.scalars for journal in found.journals]
    tests = [{k: v for k, v in row.items() if k.startswith("test/")} for row in rows]
    others = [{k: v for k, v in row.items() if not k.startswith("test/")} for row in rows]
    return dict(tree.tensors(states)), tests, others


@pytest.mark.parametrize(("reading", "game"), GAMES)
def test_other_test_samples_change_the_report_alone(reading, game):
    chosen, data = settings(reading, reward_ratio="1:1", **game), split(LENGTHS)
    states, tests, others = played(chosen, data)
    found, other_tests, same = played(chosen, replace(data, test=STRANGE), test=OTHER)
    assert found.keys() == states.keys()
    for path, value in states.items():
        assert torch.equal(found[path], value), path
    assert same == others
    assert {"test/server_loss", "test/personal_accuracy"} <= tests[0].keys()
    assert all(one != other for one, other in zip(tests, other_tests, strict=True))


@pytest.mark.parametrize(("reading", "game"), GAMES)
def test_other_validation_samples_do_change_the_game(reading, game):
    """The clients' or the server's, or the test above would tell nothing."""
    chosen, data = settings(reading, reward_ratio="1:1", **game), split(LENGTHS)
    states, *_ = played(chosen, data)
    for changed in (
        played(chosen, replace(data, valid=STRANGE))[0],
        played(chosen, data, valid=OTHER)[0],
    ):
        assert any(not torch.equal(changed[path], value) for path, value in states.items())
