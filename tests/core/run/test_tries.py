"""Rounds that are tried again, and what clients have missed: nothing but who took part changes."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.core.run.test_apart import CASES, experiment, measured
from tests.flaky import FlakyHosts, once
from tests.hosted import TakenApart, bits

from coterie.core.engines.host import ClientHost
from coterie.core.errors import UserError

CASES["spanning"] = ("f3crec", {"model.dim": 4, "rounds": 2, "participation": 0.5})
TURN = {"spanning": 3, "scaffold": 2, "mtal": 2}
"""The round that goes wrong: in F³CRec's stream the first of a block."""
STEPS = {
    "spanning": {"@enrol", "start_block", "update", "evaluate", "keep_best"},
    "scaffold": {"update", "evaluate"},
    "mtal": {"fit"},
}
ROUNDS = {"spanning": 4, "scaffold": 2, "mtal": 2}


class Course:
    """A run over nodes, with all that it must not depend on faults for."""

    def __init__(self, apart: TakenApart, **options: Any) -> None:
        self.apart, self.options, self.scalars = apart, options, []
        self.start()

    def start(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self.nodes = FlakyHosts(self.apart.folders, epoch=epoch, **self.options)
        self.run = self.apart.over(self.nodes)

    def advance(self) -> None:
        self.run.advance()
        self.scalars.append(dict(self.run.journal.scalars))

    def restarted(self, epoch: int) -> None:
        """The server is killed, and another one goes on from the newest checkpoint."""
        saved = deepcopy(self.saved)
        self.start(epoch)
        self.run.load_plain(saved)

    def checkpoint(self) -> None:
        self.saved = deepcopy(self.run.to_plain())

    def outcome(self) -> dict[str, Any]:
        states = {
            folder.name: bits(ClientHost(folder).exchange.store.take(enrolled(folder)))
            for folder in self.apart.folders
        }
        return {
            "server": bits(self.run.server_state),
            "states": states,
            "measured": measured(self.scalars),
            "ledger": self.run.ledger.rows(),
            "results": {name: repr(value) for name, value in self.run.results.items()},
        }


def enrolled(folder: Path) -> torch.Tensor:
    return ClientHost(folder).exchange.store.ids()


def taken_apart(name: str, root: Path) -> TakenApart:
    given = experiment(name, root)
    whole = given.federation()
    ids = torch.cat([data.ids for data in whole.blocks]).unique()
    shards = list(ids.split(1)) if whole.client.form == "list" else [ids[n::3] for n in range(3)]
    return TakenApart.of(given, root, shards, whole)


@pytest.fixture(scope="module", params=list(TURN))
def undisturbed(request, tmp_path_factory):
    """A case, what comes of it, and its steps in the round that will go wrong."""
    name = request.param
    course = Course(taken_apart(name, tmp_path_factory.mktemp(name)), min_clients=1.0)
    for _ in range(ROUNDS[name]):
        course.advance()
    steps = [step for step, turn, _ in course.nodes.hosts[1].heard if turn == TURN[name]]
    return name, course.outcome(), list(dict.fromkeys(steps))


@pytest.mark.parametrize("killed", [False, True], ids=["", "server killed"])
@pytest.mark.parametrize("how", ["lost", "late"])
def test_a_round_that_is_tried_again_is_as_if_all_had_been_there(
    undisturbed, how, killed, tmp_path
):
    name, expected, steps = undisturbed
    assert set(steps) >= STEPS[name], steps
    for step in steps:
        course = Course(taken_apart(name, tmp_path / step), min_clients=1.0)
        course.nodes.hosts[1].fault = once(step, TURN[name], how)
        course.nodes.patience = 1 if killed else 3
        while course.run.round < ROUNDS[name]:
            course.checkpoint()
            if killed and course.run.round + 1 == TURN[name] and not course.epoch:
                with pytest.raises(UserError, match="was tried 1 times in vain"):
                    course.advance()
                course.restarted(epoch=1)
            course.advance()
        found = course.outcome()
        for part in expected:
            assert found[part] == expected[part], (step, part)
