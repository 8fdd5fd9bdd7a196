"""A newer state takes the place of the old one; a damaged one does not."""

import logging
import os
import shutil
import threading
import time

import pytest
from starlette.testclient import TestClient

import coterie
from coterie.core.serve.app import make_app
from coterie.core.serve.limits import Limits
from coterie.core.serve.metrics import Metrics
from coterie.core.serve.opened import OpenedRun

LIMITS = Limits(rate=1e9, burst=10**9)


def put(checkpoint, run):
    """Put a checkpoint into a run as training does: whole, in one step."""
    partial = run / "checkpoints" / ".partial"
    shutil.copyfile(checkpoint, partial)
    os.replace(partial, run / "checkpoints" / "last.ckpt")


@pytest.fixture
def served(copy):
    run = OpenedRun(copy, Metrics())
    yield run
    run.close()


def client_of(run):
    return TestClient(make_app(run, LIMITS), base_url="http://127.0.0.1")


def answers(folder, users):
    """What each state says, by users."""
    frame = coterie.load(folder).recommend(users, top=5)
    found = {}
    for user, rows in frame.groupby("user"):
        found[str(user)] = rows[["rank", "item", "title", "score"]].to_dict("records")
    return found


def test_no_request_is_lost_or_mixed_while_the_state_changes(served, copy, newer):
    users = ["1", "2", "3", "4"]
    old_round, old = served.state.round, answers(copy, users)
    found, errors, ended = [], [], threading.Event()

    def ask():
        client = client_of(served)
        while not ended.is_set():
            answer = client.post("/recommend", json={"users": users, "top": 5})
            (found if answer.status_code == 200 else errors).append(answer.json())

    askers = [threading.Thread(target=ask) for _ in range(2)]
    served.watch(0.02)
    for each in askers:
        each.start()
    deadline = time.monotonic() + 60
    while not found and time.monotonic() < deadline:
        time.sleep(0.01)
    put(newer, copy)
    while served.state.round == old_round and time.monotonic() < deadline:
        time.sleep(0.01)
    enough = len(found) + 4
    while len(found) < enough and time.monotonic() < deadline:
        time.sleep(0.01)
    ended.set()
    for each in askers:
        each.join()
    assert not errors
    new = answers(copy, users)
    assert new != old
    by_round = {old_round: old, served.state.round: new}
    assert served.state.round > old_round
    seen = set()
    for answer in found:
        (round_,) = {each["round"] for each in answer["lists"]}
        seen.add(round_)
        assert {each["user"]: each["items"] for each in answer["lists"]} == by_round[round_]
    assert seen == set(by_round)
    text = client_of(served).get("/metrics").text
    assert 'coterie_reloads_total{result="opened"} 1.0' in text
    assert f"coterie_run_round {served.state.round}" in text


@pytest.mark.parametrize("harm", ["cut", "flipped", "other", "gone"])
def test_a_damaged_checkpoint_keeps_the_old_state_and_is_said_once(
    served, copy, newer, harm, caplog
):
    before, round_ = client_of(served).get("/recommend/1").json(), served.state.round
    path = copy / "checkpoints" / "last.ckpt"
    content = bytearray(newer.read_bytes())
    match harm:
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "flipped":
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        case "other":
            path.write_bytes(b"this is no checkpoint")
        case "gone":
            path.unlink()
    with caplog.at_level(logging.INFO, "coterie.serve"):
        assert [served.refresh() for _ in range(3)] == [False] * 3
    (record,) = caplog.records
    line = record.getMessage()
    assert f"round {round_} is served on" in line
    assert "\n" not in line
    assert client_of(served).get("/recommend/1").json() == before
    text = client_of(served).get("/metrics").text
    assert 'coterie_reloads_total{result="failed"} 1.0' in text
    assert f"coterie_run_round {round_}.0" in text
    put(newer, copy)
    assert served.refresh()
    assert served.state.round > round_
    assert not served.refresh()
