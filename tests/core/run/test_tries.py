"""Rounds that are tried again, and what clients have missed: nothing but who took part changes."""

from __future__ import annotations

import dataclasses
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.core.run.test_apart import CASES, experiment, measured
from tests.flaky import FlakyHosts, once
from tests.hosted import TakenApart, bits

from coterie.core.engines.envelope import Parcel
from coterie.core.engines.host import ClientHost
from coterie.core.errors import UserError
from coterie.core.federation.exchange import Answers
from coterie.core.run.certify import InShards
from coterie.core.run.driver import FederatedRun

pytestmark = pytest.mark.long

CASES["spanning"] = ("f3crec", {"model.dim": 4, "rounds": 2, "participation": 0.5})
CASES["local"] = ("page", {"data.clients": 6, "rounds": 2, "train.epochs": 1, "method": "local"})
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
    name, root = request.param, tmp_path_factory.mktemp(request.param)
    apart = taken_apart(name, root / "fresh")
    course = Course(apart.copied(root / "used"), min_clients=1.0)
    for _ in range(ROUNDS[name]):
        course.advance()
    steps = [step for step, turn, _ in course.nodes.hosts[1].heard if turn == TURN[name]]
    return name, apart, course.outcome(), list(dict.fromkeys(steps))


@pytest.mark.parametrize(
    ("how", "killed"),
    [
        ("lost", True),
        ("late", False),
        pytest.param("lost", False, marks=pytest.mark.slow),
        pytest.param("late", True, marks=pytest.mark.slow),
    ],
    ids=lambda value: {True: "server killed", False: "same server"}.get(value, value),
)
def test_a_round_that_is_tried_again_is_as_if_all_had_been_there(
    undisturbed, how, killed, tmp_path
):
    name, apart, expected, steps = undisturbed
    assert set(steps) >= STEPS[name], steps
    for step in steps:
        course = Course(apart.copied(tmp_path / step), min_clients=1.0)
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


def test_who_enrolled_in_a_try_in_vain_is_a_newcomer_in_the_next(tmp_path):
    """Local training's server gives newcomers their first model; that goes with the try."""
    apart, outcomes = taken_apart("local", tmp_path / "fresh"), []
    for fault in (None, "evaluate"):
        course = Course(apart.copied(tmp_path / str(fault)), min_clients=1.0)
        if fault:
            course.nodes.hosts[1].fault = once(fault, 1, "lost")
        course.advance()
        outcomes.append(course.outcome())
        tries = {attempt for _, _, attempt in course.nodes.hosts[0].heard}
        assert tries == ({0, 1} if fault else {0})
    assert outcomes[1] == outcomes[0]


def test_a_run_ends_after_so_many_tries_and_can_go_on(tmp_path, caplog):
    """In one line; what it has is as before the round, and goes on once the client is back."""
    course = Course(taken_apart("scaffold", tmp_path), min_clients=6, patience=2)
    course.advance()
    before = deepcopy(course.run.to_plain())
    tries: list[tuple[int, int]] = []

    def gone(step: str, parcel: Parcel) -> str | None:
        tries.append((parcel.header.turn, parcel.header.attempt))
        return "lost"

    course.nodes.hosts[2].fault = gone
    with pytest.raises(UserError, match="round 2 was tried 2 times in vain") as told:
        course.advance()
    assert "away: clients-2 (it gave no answer)" in str(told.value)
    assert "--resume" in str(told.value)
    assert set(tries) == {(2, 0), (2, 1)}
    assert [one.message for one in caplog.records if "tried again" in one.message]
    after = course.run.to_plain()
    assert bits(after["server"]) == bits(before["server"])
    assert {n: after[n] for n in ("round", "history", "ledger", "store")} == {
        n: before[n] for n in ("round", "history", "ledger", "store")
    }
    course.nodes.hosts[2].fault = lambda step, parcel: None
    course.advance()
    assert course.run.round == 2


def test_what_was_released_in_a_try_in_vain_is_paid_for(tmp_path):
    """The server has had these uploads, whatever became of the round."""
    apart = taken_apart("f3crec-noise", tmp_path / "fresh")
    released = []
    for name, failing in (("smooth", False), ("tried", True)):
        course = Course(apart.copied(tmp_path / name), min_clients=1.0)
        if failing:
            course.nodes.hosts[1].fault = once("evaluate", 1, "lost")
        course.advance()
        released.append([one.step for one in course.run.journal.releases])
    assert released[0] == ["update"]
    assert released[1] == ["update", "update"]


FOR_ALL = {"keep_best", "start_block", "end_block", "remember"}
MADE_UP = FOR_ALL | {"meet"}
"""Steps that change what a client has and that the server does not wait for; a block's end."""


class Absent(InShards):
    """Clients in one process of whom some give no answer, and yet do what they must not miss.

    Attributes:
        gone: ids of those.
        since, until: step of a turn from which on they are gone, and the turn in which they are
            back.
    """

    gone: torch.Tensor
    since: tuple[int, str]
    until: int
    turn = 0
    fell = False

    def begin(self, turn: int, attempt: int) -> None:
        self.turn = turn

    @property
    def away(self) -> bool:
        return self.fell and self.turn < self.until

    def present(self, block):
        ids = super().present(block)
        return ids[~torch.isin(ids, self.gone)] if self.away else ids

    def ask(self, request):
        self.fell |= (self.turn, request.step.name) == self.since
        if not self.away:
            yield from super().ask(request)
            return
        lost = torch.isin(request.ids, self.gone)
        yield from super().ask(dataclasses.replace(request, ids=request.ids[~lost]))
        if request.step.name in MADE_UP:
            for_all = request.step.name in FOR_ALL
            own = super().present(request.when[0]) if for_all else request.ids
            ids = own[torch.isin(own, self.gone)]
            self.enrol(ids, request.when[0])
            for _ in super().ask(dataclasses.replace(request, ids=ids)):
                pass
        refused = dict.fromkeys(request.ids[lost].tolist(), "it gave no answer")
        if refused:
            yield Answers(request.ids[:0], None, refused, silent=True)


MISSING = {
    "best": ("spanning", (1, "keep_best"), 3),
    "end of a block": ("spanning", (2, "end_block"), 4),
    "start of a block": ("spanning", (3, "start_block"), 5),
    "two blocks": ("spanning", (1, "update"), 5),
    "peers of an organisation": ("mtal", (1, "meet"), 3),
    "one's neighbours": ("fedpergnn", (2, "meet"), 4),
    "a network for all": ("fedpergnn", (1, "remember"), 3),
}


@pytest.mark.parametrize("case", MISSING)
def test_what_a_client_missed_is_made_up_for_when_it_is_back(case, tmp_path):
    name, since, until = MISSING[case]
    given = experiment(name, tmp_path)
    given = type(given)(
        dataclasses.replace(
            given.settings, rounds=until if name == "mtal" else given.settings.rounds
        )
    )
    whole = given.federation()
    ids = torch.cat([data.ids for data in whole.blocks]).unique()
    shards = list(ids.split(1)) if whole.client.form == "list" else [ids[n::3] for n in range(3)]
    inside = FederatedRun(whole)
    inside.exchange = Absent(
        whole.client, whole.blocks, inside.secret.fold, None, whole.middleware, shards=shards
    )
    inside.exchange.gone, inside.exchange.since, inside.exchange.until = shards[1], since, until
    course = Course(TakenApart.of(given, tmp_path, shards, whole))
    gone: list[int] = []

    def fault(step, parcel):
        turn = parcel.header.turn
        if (turn, step) == since:
            gone.append(turn)
        return "lost" if gone and turn < until else None

    course.nodes.hosts[1].fault = fault
    scalars = []
    while not inside.finished and inside.round < until + 1:
        inside.advance()
        scalars.append(dict(inside.journal.scalars))
        course.advance()
        if inside.round == until - 1:
            saved = course.run.to_plain()["store"]
            assert saved["waiting"]["clients-1"]
            course.checkpoint()
            course.restarted(epoch=1)  # what waits is in the checkpoint
    assert gone
    assert measured(course.scalars) == measured(scalars)
    assert bits(course.run.server_state) == bits(inside.server_state)
    for folder, shard in zip(course.apart.folders, shards, strict=True):
        there = shard[~torch.isin(shard, inside.store.newcomers(shard))]
        assert bits(ClientHost(folder).exchange.store.take(there)) == bits(inside.store.take(there))
