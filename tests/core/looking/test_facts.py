"""Facts of a run folder: as its files stand; what is damaged is named in one line."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.core.looking.folders import LEDGER, make_run, scores

from coterie.core.errors import UserError
from coterie.core.looking.clients import gains, per_client
from coterie.core.looking.costs import cost, crossed, is_linear, projection
from coterie.core.looking.facts import RunFacts
from coterie.core.looking.measures import higher_is_better, results, rounds_of_tests
from coterie.core.looking.privacy import releases
from coterie.core.registry.papers import find_paper
from coterie.core.run.about import write_measured
from coterie.core.run.lock import held


def test_a_finished_run_is_read(tmp_path: Path) -> None:
    run = RunFacts(make_run(tmp_path, "a", metrics=scores(0.7), seed=3))
    assert (run.paper.name, run.method, run.data, run.seed) == ("page", "page", "synthetic", 3)
    assert (run.state, run.rounds, run.monitor) == ("finished", 3, "eval/accuracy")
    assert run.metrics["test/server_accuracy"] == 0.7
    assert run.history["eval/accuracy"] == [0.5, 0.6, 0.55]
    assert run.digest("clients") == "clients"


def test_states_follow_the_lock_and_the_summary(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a")
    assert RunFacts(folder).state == "unfinished"
    with held(folder):
        assert RunFacts(folder).state == "training"
    assert RunFacts(folder).metrics == {}


def test_a_run_of_an_older_version_is_read(tmp_path: Path) -> None:
    run = RunFacts(make_run(tmp_path, "a", metrics=scores(0.7), digests=None))
    assert (run.about, run.digest("data"), run.monitor, run.measured) == ({}, None, None, {})


def test_numbers_that_nobody_could_measure_are_nan(tmp_path: Path) -> None:
    run = RunFacts(make_run(tmp_path, "a", metrics={"test/server_accuracy": None}))
    assert math.isnan(run.metrics["test/server_accuracy"])


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.yaml", "- 1"),
        ("config.yaml", "method: page"),
        ("config.yaml", "a: [b"),
        ("summary.json", "{"),
        ("summary.json", "[]"),
        ("summary.json", '{"metrics": {"a": "b"}}'),
        ("summary.json", '{"metrics": [1]}'),
        ("about.json", "[1]"),
        ("ledger.json", "{}"),
        ("ledger.json", '[{"step": 1}]'),
        ("clients.json", "nope"),
        ("metrics.csv", "round,block,a\n1,0,x\n"),
        ("clients.npz", "PK no archive"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, content: str) -> None:
    folder = make_run(tmp_path, "a", metrics=scores(0.7))
    (folder / file).write_text(content)
    with pytest.raises(UserError, match=file.replace(".", r"\.")):
        _all_of(RunFacts(folder))


def _all_of(run: RunFacts) -> None:
    _ = run.metrics, run.about, run.ledger, run.clients, run.measured, run.history


def test_no_pickle_is_opened(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a", metrics=scores(0.7))
    np.savez(folder / "clients.npz", names=np.array([{"a": 1}], dtype=object))
    with pytest.raises(UserError, match=r"clients\.npz is damaged"):
        _ = RunFacts(folder).measured


def test_what_clients_measured_is_written_and_read(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a", metrics=scores(0.7))
    write_measured(folder, {"test/x_accuracy": (torch.tensor([4, 2]), torch.tensor([0.5, 0.25]))})
    ids, values = RunFacts(folder).measured["test/x_accuracy"]
    assert (ids.tolist(), values.tolist()) == ([4, 2], [0.5, 0.25])
    (ours,) = per_client(RunFacts(folder))
    assert (ours.ids.tolist(), ours.values.tolist()) == ([2, 4], [0.25, 0.5])


def test_gains_are_of_the_same_clients(tmp_path: Path) -> None:
    one, other = (make_run(tmp_path, name, metrics=scores(0.7)) for name in "ab")
    name = "test/personal_accuracy"
    write_measured(one, {name: (torch.tensor([1, 2, 3]), torch.tensor([0.5, 0.6, 0.7]))})
    write_measured(other, {name: (torch.tensor([3, 9, 1]), torch.tensor([0.75, 0.0, 0.25]))})
    found = gains(RunFacts(one), RunFacts(other))
    assert found is not None
    assert found.ids.tolist() == [1, 3]
    assert found.gains.tolist() == pytest.approx([0.25, -0.05], abs=1e-6)
    assert found.losing == 1


def test_a_gain_in_an_error_is_less_of_it(tmp_path: Path) -> None:
    one, other = (make_run(tmp_path, name, metrics=scores(0.7)) for name in "ab")
    for folder, error in ((one, 0.8), (other, 1.0)):
        write_measured(folder, {"test/rmse": (torch.tensor([0]), torch.tensor([error]))})
    found = gains(RunFacts(one), RunFacts(other))
    assert found is not None
    assert found.gains.tolist() == pytest.approx([0.2])


def test_the_worst_tenth_is_at_the_bad_end(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a", metrics=scores(0.7))
    values = torch.arange(20.0)
    write_measured(
        folder, {name: (torch.arange(20), values) for name in ("test/accuracy", "test/rmse")}
    )
    worst = {one.name: one.worst_tenth for one in per_client(RunFacts(folder))}
    assert worst == {"test/accuracy": 0.5, "test/rmse": 18.5}


def test_fields_are_joined_with_what_is_declared() -> None:
    declared = [
        {"step": "update", "direction": "up", "field": "change", "content": "c", "reveals": "r"},
        {"step": "other", "direction": "up", "field": "never", "content": "n"},
    ]
    found = {(one.step, one.field): one for one in crossed(LEDGER, declared)}
    assert found["update", "weights"].bytes == 6000  # both of its parts
    assert found["update", "weights"].messages == 6
    assert found["update", "change"].declared["reveals"] == "r"
    assert found["other", "never"].bytes == 0
    assert sum(one.bytes for one in found.values()) == sum(row["bytes"] for row in LEDGER)


def test_what_clients_send_each_other_is_told_apart() -> None:
    declared = releases(find_paper("mtal"), [])
    parties = {(one.step, one.direction, one.field): one.parties for one in crossed([], declared)}
    assert parties["fit", "up", "values"] == "clients to clients, by the server"
    assert parties["combine", "down", "values"] == "clients to clients, by the server"
    assert parties["meet", "down", "rows"] == "server to clients"
    assert parties["combine", "up", "loss"] == "clients to server"
    assert not is_linear(declared)
    assert is_linear(releases(find_paper("page"), []))


def test_traffic_grows_with_the_clients_of_a_round(tmp_path: Path) -> None:
    found = cost(RunFacts(make_run(tmp_path, "a")))
    assert (found.up, found.clients, found.up_each) == (3000, 2, 500)
    of = {one.clients: one for one in projection(found)}
    assert of[1000].up == 500_000
    assert of[1000].run == 3 * 1000 * 1000
    assert projection(cost(RunFacts(make_run(tmp_path, "b", rounds=())))) == []


def test_which_way_is_better(tmp_path: Path) -> None:
    run = RunFacts(make_run(tmp_path, "a", metrics=scores(0.7)))
    names = ("test/server_accuracy", "test/rmse", "test/x_loss", "test/ndcg@20", "test/odd")
    assert [higher_is_better(name, run) for name in names] == [True, False, False, True, None]
    about = json.loads((run.path / "about.json").read_text())
    about["monitor"] = {"key": "eval/odd", "lower_is_better": True}
    (run.path / "about.json").write_text(json.dumps(about))
    assert higher_is_better("test/odd", RunFacts(run.path)) is False


def test_results_stand_beside_the_paper_and_simple_rules(tmp_path: Path) -> None:
    numbers = scores(0.7) | {"test/popularity/server_accuracy": 0.4, "test/block0/odd": 1.0}
    first, second = results(RunFacts(make_run(tmp_path, "a", metrics=numbers)))
    assert (first.name, first.ours, first.paper) == ("test/server_accuracy", 0.7, 0.9)
    assert (first.baselines, second.paper) == ({"popularity": 0.4}, None)


def test_rounds_of_tests_are_counted_over_blocks(tmp_path: Path) -> None:
    folder = make_run(
        tmp_path,
        "a",
        metrics={
            "test/block0/best_round": 2.0,
            "test/block1/best_round": 0.0,
            "test/block2/best_round": 1.0,
        },
    )
    summary = json.loads((folder / "summary.json").read_text())
    del summary["metrics"]["test/best_round"]
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "metrics.csv").write_text("round,block\n1,0\n2,0\n3,0\n4,1\n5,2\n6,2\n")
    assert rounds_of_tests(RunFacts(folder)) == [2, 5]
