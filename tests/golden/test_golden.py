"""No number of any paper has moved since metrics.json was recorded."""

import json
import math
import os
from pathlib import Path

import pytest
from tests.golden import compare
from tests.golden.compare import (
    ALWAYS,
    QUICK,
    RUNS,
    Difference,
    Recording,
    Run,
    RunFailed,
    absent,
    check,
    differences,
    main,
    read_numbers,
)
from threadpoolctl import threadpool_limits

from coterie.core.cli.main import main as coterie
from coterie.core.kernels import switch

RECORDED = {"summary ndcg": 0.1, "last row loss": 0.25, "last row round": 8.0}


def assert_unmoved(name: str) -> None:
    recording = Recording.read()
    outcome = check(RUNS[name], recording)
    sizes = [difference.size for difference in outcome.differences]
    if recording.other_machine() and sizes and max(sizes) < math.inf:
        # Ranks and discrete choices amplify what the arithmetic of another machine rounds. A
        # missing or new key has no such excuse.
        pytest.skip(f"recorded on another machine: {outcome.text}")
    assert outcome.state == "equal", "\n".join([outcome.text, *map(str, outcome.differences)])


def execute_here(run: Run) -> dict[str, float]:
    """Train as `execute` does, in this process, which has imported most of what that takes."""
    with threadpool_limits(1), switch.kernels(False):  # and then as they were
        assert coterie(["train", run.paper, *run.flags, *ALWAYS, "--run.out", "out"]) == 0
    [summary] = Path("out", run.paper).glob("*/summary.json")
    return read_numbers(summary.parent)


@pytest.mark.long
@pytest.mark.parametrize("name", QUICK)
def test_a_short_run_of_each_paper(name: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in [one for one in os.environ if one.startswith(("COTERIE_", "WANDB_"))]:
        monkeypatch.delenv(variable)
    if name != QUICK[0]:  # which trains in a process of its own, as all do outside of tests
        monkeypatch.setattr(compare, "execute", execute_here)
    assert_unmoved(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, run in RUNS.items() if run.data is None])
def test_runs_that_need_no_data(name: str) -> None:
    assert_unmoved(name)


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.parametrize("name", [name for name, run in RUNS.items() if run.data])
def test_runs_on_real_data(name: str, data_root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(data_root))
    assert_unmoved(name)


def test_recording_and_list_have_the_same_runs() -> None:
    recording = Recording.read()
    assert recording.runs.keys() == RUNS.keys()
    assert all(recording.runs.values())
    assert set(QUICK) <= RUNS.keys()
    assert {RUNS[name].paper for name in QUICK} == {run.paper for run in RUNS.values()}


def test_one_changed_bit_is_found() -> None:
    moved = RECORDED | {"last row loss": math.nextafter(0.25, 1)}
    assert differences(RECORDED, dict(RECORDED)) == []
    [found] = differences(RECORDED, moved)
    assert found.key == "last row loss"
    assert "0.25 -> 0.25000000000000006" in str(found)


def test_missing_and_new_keys_are_named_before_differences() -> None:
    found = {"summary ndcg": 0.1, "last row round": 7.0, "summary recall": 0.3}
    named = [str(one) for one in differences(RECORDED, found)]
    assert named[:2] == ["last row loss is missing", "summary recall is new"]
    assert named[2].startswith("last row round 8.0 -> 7.0")


def test_nan_equals_itself_and_nothing_else() -> None:
    nan = {"loss": math.nan}
    assert differences(nan, {"loss": float("nan")}) == []
    assert differences(nan, {"loss": 1.0}) == [Difference("loss", nan["loss"], 1.0)]
    assert differences(nan, {"loss": 1.0}, 1e-5)


def test_tolerance_is_relative() -> None:
    near, far = {"loss": 1e-8 * (1 + 5e-6)}, {"loss": 1e-8 * (1 + 5e-5)}
    assert differences({"loss": 1e-8}, near)
    assert differences({"loss": 1e-8}, near, 1e-5) == []
    assert differences({"loss": 1e-8}, far, 1e-5)
    assert differences({"loss": 1.0}, {}, 1e-5)


def test_numbers_of_a_folder(tmp_path) -> None:
    metrics = {"test/ndcg": 0.1 + 0.2, "test/best_round": 2.0, "test/imbalance": None}
    summary = {"metrics": metrics, "seconds": 3.0}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    rows = ["round,loss,test/ndcg,cost/seconds_total", "1,0.5,,7.5", "2,nan,,8.5"]
    (tmp_path / "metrics.csv").write_text("\n".join(rows))
    numbers = read_numbers(tmp_path)
    assert list(numbers) == [
        "last row loss",
        "last row round",
        "summary test/best_round",
        "summary test/imbalance",
        "summary test/ndcg",
    ]
    assert numbers["summary test/ndcg"] == 0.1 + 0.2
    assert math.isnan(numbers["last row loss"])
    assert math.isnan(numbers["summary test/imbalance"])


@pytest.fixture
def recorded(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """A recording of two invented runs, one of which needs data; runs find what `found` holds."""
    runs = {run.name: run for run in (Run("toy/a/b", ()), Run("toy/ml-100k/b", (), "ml-100k"))}
    found = {name: dict(RECORDED) for name in runs}
    monkeypatch.setattr(compare, "RUNS", runs)
    monkeypatch.setattr(compare, "execute", lambda run: found[run.name])
    monkeypatch.setattr(compare, "RECORDING", tmp_path / "metrics.json")
    (tmp_path / "ml-100k").mkdir()
    (tmp_path / "ml-100k" / "u.data").touch()
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    assert main(["--record"]) == 0
    return found


def test_equal_numbers_are_status_0(recorded, capsys) -> None:
    assert main([]) == 0
    assert "2 runs: 2 equal, 2 bit for bit" in capsys.readouterr().out


def test_a_changed_number_is_status_1(recorded, capsys) -> None:
    recorded["toy/a/b"]["summary ndcg"] = 0.1000001
    assert main(["--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [run["state"] for run in report["runs"]] == ["different", "equal"]
    [difference] = report["runs"][0]["differences"]
    assert difference == {"key": "summary ndcg", "recorded": 0.1, "found": 0.1000001}


def test_another_machine_is_said_and_compared_up_to_the_tolerance(
    recorded, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = compare.machine() | {"cpu_capability": "NONE"}
    monkeypatch.setattr(compare, "machine", lambda: other)
    recorded["toy/a/b"]["summary ndcg"] = 0.1000001
    assert main([]) == 0
    said = capsys.readouterr().out
    assert "of another machine" in said
    assert "NONE here" in said
    assert "1 bit for bit" in said
    recorded["toy/a/b"]["summary ndcg"] = 0.1001
    assert main([]) == 1


def test_absent_data_is_skipped_and_said(recorded, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTERIE_DATA")
    assert main([]) == 0
    assert "skipped        0 s  ml-100k: COTERIE_DATA is not set" in capsys.readouterr().out
    # Nor is what was recorded of it lost.
    assert main(["--record"]) == 0
    assert Recording.read().runs.keys() == compare.RUNS.keys()


def test_a_failed_run_is_named_and_recorded_nowhere(
    recorded, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: Run) -> None:
        raise RunFailed("error: no such method")

    before = Recording.read()
    monkeypatch.setattr(compare, "execute", fail)
    assert main([]) == 1
    assert "error: no such method" in capsys.readouterr().out
    assert main(["--record"]) == 1
    assert Recording.read() == before


def test_a_run_that_left_the_list_is_missed(
    recorded, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(compare.RUNS, "toy/a/b")
    assert main([]) == 1
    assert "recorded, but not in the list" in capsys.readouterr().out
    monkeypatch.setitem(compare.RUNS, "toy/a/c", Run("toy/a/c", ()))
    assert check(compare.RUNS["toy/a/c"], Recording.read()).state == "unrecorded"


def test_data_are_looked_for_where_the_variable_says(tmp_path, monkeypatch) -> None:
    run = Run("toy/ml-100k/b", (), "ml-100k")
    monkeypatch.setenv("COTERIE_DATA", os.fspath(tmp_path))
    assert absent(run) == "ml-100k: not in COTERIE_DATA"
    assert absent(Run("toy/a/b", ())) is None
