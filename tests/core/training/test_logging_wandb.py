"""An offline W&B run, read back with what is behind W&B's own `wandb leet inspect`."""

import base64
import contextlib
import hashlib
import json
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.core.training.leet import history_of, inspect, records

from coterie.continual.paper import CLIENT_COLUMNS
from coterie.continual.paper import KEYS as F3CREC_KEYS
from coterie.core.metrics.monitor import Monitor
from coterie.core.registry.keys import KEYS
from coterie.core.registry.papers import find_paper
from coterie.core.settings.sections import LoggerSettings
from coterie.core.training.callbacks.notes import Costs, Refusals, StreamScore
from coterie.core.training.loggers import wandb as wandb_module
from coterie.core.training.loggers.client_rows import ClientRows, histogram
from coterie.core.training.loggers.rounds import MetricsLogger
from coterie.core.training.loggers.wandb import RoundWandbLogger, RunCard, concluded
from coterie.core.training.train import _kind

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
NDCG = Monitor("eval/ndcg@20")
ORIGIN = {"paper": "f3crec", "data_digest": "d1", "git.working": "c0ffee", "git.coterie": None}
CARD = RunCard("f3crec", "ft", "ml-100k", 3, tags=("smoke",), origin=ORIGIN)
CONFIG = {"method": "ft", "seed": 3, "model": {"dim": 32, "lr": 1.0}, "data": {"name": "ml-100k"}}


@pytest.fixture(autouse=True, scope="module")
def home(tmp_path_factory):
    """Neither an account nor settings of the machine, and no file outside the run folder."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        patch.setenv("HOME", str(folder))
        patch.setenv("WANDB_CONFIG_DIR", str(folder / "config"))
        patch.setenv("XDG_CACHE_HOME", str(folder / ".cache"))
        yield folder


def logger_of(folder, **settings):
    folder.mkdir(exist_ok=True)
    chosen = LoggerSettings(**{"histogram_every": 2} | settings)
    return RoundWandbLogger(chosen, folder, CARD, NDCG, CLIENT_COLUMNS, F3CREC_KEYS)


@pytest.fixture(scope="module")
def written(tmp_path_factory, PretendedRounds, fit):
    """Folder, wandb folder and records of one run of six rounds in two blocks."""
    folder = tmp_path_factory.mktemp("run")
    log = logger_of(folder)

    class Refusing(PretendedRounds):
        settings = CONFIG

        def _measure(self, number):
            super()._measure(number)
            self.journal.refuse("update", 900_000_000_004, "NaN or infinity in upload 'items'")

    beside = [Refusals(), Costs(), StreamScore(NDCG), MetricsLogger(folder), log]
    fit(Refusing(), beside, folder)
    [file] = folder.glob("wandb/offline-run-*/run-*.wandb")
    return log, folder / "wandb", records(file)


def test_every_round_is_there_with_round_as_step(written):
    history = history_of(written[2])
    assert [item["round"] for item in history] == [1, 2, 3, 4, 5, 6]
    assert [item["_step"] for item in history] == [1, 2, 3, 4, 5, 6]
    assert [item["block"] for item in history] == [0, 0, 0, 1, 1, 1]
    assert [item["fed/loss"] for item in history] == [1.0 / r for r in range(1, 7)]
    assert history[-1]["eval/ndcg@20_stream"] == 0.25
    assert all(item["fed/refused"] == 1 for item in history)
    assert history[2]["test/block0/ndcg@20"] == 3.25


def test_round_is_the_x_axis_of_every_documented_key(written):
    metrics = [line["metric"] for line in written[2] if line["type"] == "metric"]
    axes = {m.get("name", m.get("glob_name")): m.get("step_metric") for m in metrics}
    assert axes.pop("round") is None
    assert set(axes.values()) == {"round"}
    plain = {key.name for key in (*KEYS, *F3CREC_KEYS) if "*" not in key.name} - {"round"}
    assert plain <= axes.keys()
    assert {f"{name}/*" for name in ("fed", "eval", "test", "cost", "clients", "f3crec")} <= set(
        axes
    )


def test_the_summary_keeps_the_largest_validation_score(written):
    [file] = written[1].glob("offline-run-*/run-*.wandb")
    summary = json.loads(inspect(file, "--summary"))
    assert (summary["state"], summary["step"], summary["console"]) == ("finished", 6, [])
    assert summary["summary"]["eval/ndcg@20"] == {"max": 0.5}
    metrics = {m["name"]: m for m in (r.get("metric", {}) for r in written[2]) if "name" in m}
    assert metrics["eval/ndcg@20"]["summary"] == {"max": True}


def test_name_group_job_type_tags_and_resolved_settings(written):
    [run] = [line["run"] for line in written[2] if line["type"] == "run"]
    assert run["display_name"] == "f3crec-ft-ml-100k-3"
    assert run["run_group"] == "f3crec/ml-100k"
    assert run["job_type"] == "federated"
    assert run["tags"] == ["smoke"]
    assert run["project"] == "coterie"
    configs = [line["config"]["update"] for line in written[2] if line["type"] == "config"]
    assert {k: v for config in configs for k, v in config.items() if k != "_wandb"} == (
        CONFIG | ORIGIN
    )


def test_histograms_every_other_round_count_every_client(written):
    history = history_of(written[2])
    for item in history:
        assert ("clients/eval/ndcg@20._type" in item) == (item["round"] % 2 == 1)
    third = history[2]
    expected = np.histogram(np.linspace(0, 1, 5) * 3, bins=64)
    assert third["clients/eval/ndcg@20.values"] == expected[0].tolist()
    assert third["clients/eval/ndcg@20.bins"] == pytest.approx(expected[1].tolist())
    assert sum(third["clients/test/ndcg@20.values"]) == 2


def test_the_client_table_grows_by_increments(written):
    log, folder, lines = written
    history = [item for item in history_of(lines) if "clients/table._type" in item]
    assert {item["clients/table._type"] for item in history} == {"incremental-table-file"}
    files = [next(folder.glob(f"*/files/{item['clients/table.path']}")) for item in history]
    parts = [json.loads(file.read_text()) for file in files]
    assert {tuple(part["columns"]) for part in parts} == {
        ("round", "client", "eval/ndcg@20", "test/ndcg@20", "test/recall@20")
    }
    rows = [part["data"] for part in parts]
    rounds = [item["round"] for item in history]
    assert [{row[0] for row in part} for part in rows] == [{r} for r in rounds]
    assert [len(part) for part in rows] == [5, 5, 5, 2]  # round 6 measures test for two clients
    assert rounds == [1, 3, 5, 6]
    assert rows[0][1][1:] == [log.rows.pseudonym(900_000_000_002), 0.25, None, None]


def test_no_private_state_and_no_client_id_leaves(written):
    everything = b"".join(path.read_bytes() for path in written[1].rglob("*") if path.is_file())
    assert b"eval/ndcg@20" in everything  # the search does find what is there
    assert struct.pack("<f", 0.123456789) not in everything
    assert b"0.12345" not in everything
    assert b"90000000000" not in everything
    assert written[0].rows.salt.encode() not in everything


def test_the_results_are_an_artifact_and_no_checkpoint_is(written):
    found = [line["artifact"] for line in written[2] if line["type"] == "artifact"]
    assert {one["type"] for one in found} == {"wandb-run-incremental-table", "results"}
    [results] = [one for one in found if one["type"] == "results"]
    names = {content["path"] for content in results["manifest"]["contents"]}
    assert names == {"metrics.csv"}  # of what a command writes: settings and curves, too


def test_a_run_that_is_trained_waits_for_its_last_files(PretendedRounds, fit, tmp_path):
    log = logger_of(tmp_path)
    with concluded([MetricsLogger(tmp_path), log]):
        fit(PretendedRounds(), [Costs(), MetricsLogger(tmp_path), log], tmp_path)
        log._aside.wait(60.0)  # for W&B to begin, on a machine that is busy
        assert log._begun_run is not None
        (tmp_path / "ledger.json").write_text("[]")
        summary = {"metrics": {"test/ndcg@20": 0.5}, "reference": {}, "notes": ["client 7"]}
        (tmp_path / "summary.json").write_text(json.dumps(summary))
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    lines = records(file)
    assert [line["exit"].get("exit_code", 0) for line in lines if line["type"] == "exit"] == [0]
    [results] = [
        line["artifact"]
        for line in lines
        if line["type"] == "artifact" and line["artifact"]["type"] == "results"
    ]
    names = {content["path"] for content in results["manifest"]["contents"]}
    assert names == {"metrics.csv", "ledger.json", "numbers.json"}
    kept = json.dumps({"metrics": summary["metrics"], "reference": {}}, indent=2).encode()
    digests = {content["path"]: content["digest"] for content in results["manifest"]["contents"]}
    assert digests["numbers.json"] == base64.b64encode(hashlib.md5(kept).digest()).decode()


@pytest.mark.parametrize(
    ("method", "kind"), [("page", "federated"), ("local", "local"), ("central", "central")]
)
def test_the_job_type_tells_bounds_from_federations(method, kind):
    assert _kind(find_paper("page"), SimpleNamespace(method=method)) == kind
    assert _kind(find_paper("f3crec"), SimpleNamespace(method="ft")) == "federated"


def test_nothing_is_left_outside_the_run_folder(written, home):
    assert [path for path in home.rglob("*") if path.is_file()] == []
    assert "WANDB_DATA_DIR" not in os.environ


def test_it_stays_silent(PretendedRounds, fit, tmp_path, capfd):
    fit(PretendedRounds(rounds=2), [logger_of(tmp_path)], tmp_path)
    out, err = capfd.readouterr()
    assert "wandb" not in (out + err).lower()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_it_stays_silent_where_its_own_log_finds_no_space(PretendedRounds, fit, tmp_path, capfd):
    class FillsUp(PretendedRounds):
        def _measure(self, number):
            super()._measure(number)
            log.experiment  # noqa: B018  (it has begun)
            [own] = files_of(logging.getLogger("wandb"))
            own.stream = open("/dev/full", "w")  # noqa: SIM115
            logging.getLogger("wandb").info("a line")
            own.stream.write("another")  # which only a flush finds no space for

    def files_of(owner):
        return [one for one in owner.handlers if isinstance(one, logging.FileHandler)]

    log = logger_of(tmp_path)
    fit(FillsUp(), [log], tmp_path)
    assert capfd.readouterr().err == ""


def test_a_resumed_run_has_the_same_id_names_and_axis(PretendedRounds, fit, tmp_path):
    first, second = logger_of(tmp_path), logger_of(tmp_path)
    fit(PretendedRounds(rounds=3), [first], tmp_path)
    fit(PretendedRounds(rounds=5), [second], tmp_path, resume=tmp_path / "last.ckpt")
    assert second.rows.salt == first.rows.salt
    folders = sorted(tmp_path.glob("wandb/offline-run-*"))
    files = [next(folder.glob("*.wandb")) for folder in folders]
    assert len(files) == 2
    assert len({file.name for file in files}) == 1
    steps = sorted(item["_step"] for file in files for item in history_of(records(file)))
    assert steps == [1, 2, 3, 4, 5]


def warned(caplog):
    return [record.message for record in caplog.records if "W&B" in record.message]


class Pretended(types.ModuleType):
    """A module ``wandb`` whose init, third log and finish do as told."""

    def __init__(self, init=None, log=None, finish=None):
        super().__init__("wandb")
        self.notes, self.actions = [], {"init": init, "log": log, "finish": finish}
        self.config = types.SimpleNamespace(update=lambda *_, **__: None)

    def _act(self, name):
        if (action := self.actions[name]) is not None:
            action()

    class Settings:
        def __init__(self, **given):
            self.given = given

    class Table:
        def __init__(self, *_, **__): ...

        def add_data(self, *_): ...

        add_file = add_data

    Histogram = Artifact = Table

    def init(self, settings, **given):
        self.notes.append({"init": given | {"mode": settings.given["mode"]}})
        self._act("init")
        return self

    def define_metric(self, *_, **__): ...

    log_artifact = teardown = define_metric

    def log(self, line, step, commit):
        self.notes.append({"step": step})
        if step == 3:
            self._act("log")

    def finish(self, exit_code):
        self.notes.append({"finish": exit_code})
        self._act("finish")


@pytest.fixture
def pretend_wandb(monkeypatch):
    """Put a module `wandb` in the way whose init, third log and finish do as told."""

    def put(**actions):
        pretended = Pretended(**actions)
        monkeypatch.setitem(sys.modules, "wandb", pretended)
        return pretended.notes

    return put


def raising(error):
    def action():
        raise error

    return action


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"init": raising(OSError("no space"))}, "OSError: no space"),
        ({"log": raising(RuntimeError("gone\nfor good"))}, "RuntimeError: gone for good"),
        ({"log": raising(SystemExit(3))}, "SystemExit: 3"),
        ({"finish": raising(ValueError("late"))}, "ValueError: late"),
    ],
)
def test_a_run_goes_on_where_wandb_breaks(
    PretendedRounds, fit, tmp_path, caplog, pretend_wandb, broken, why
):
    notes = pretend_wandb(**broken)
    module = PretendedRounds()
    with caplog.at_level(logging.WARNING):
        fit(module, [logger_of(tmp_path)], tmp_path)
    assert module.round == 6
    assert warned(caplog) == [f"W&B logging is off, metrics.csv goes on: {why}"]
    if "log" in broken:
        assert notes[1:] == [{"step": 1}, {"step": 2}, {"step": 3}, {"finish": 1}]


def test_a_run_goes_on_where_wandb_is_half_installed(
    PretendedRounds, fit, tmp_path, caplog, monkeypatch
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    module = PretendedRounds()
    fit(module, [logger_of(tmp_path)], tmp_path)
    assert module.round == 6
    [line] = warned(caplog)
    assert "ModuleNotFoundError" in line


def test_wandb_that_is_not_installed_is_said_with_the_remedy(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(wandb_module, "find_spec", lambda name: None)
    assert wandb_module.wandb_logger(LoggerSettings(), tmp_path, CARD) is None
    assert warned(caplog) == [
        "W&B logging is off, metrics.csv goes on: wandb is not installed (pip install wandb)"
    ]


def test_a_run_neither_waits_for_wandb_nor_for_ever(
    PretendedRounds, fit, tmp_path, caplog, pretend_wandb, monkeypatch
):
    monkeypatch.setattr(wandb_module, "PATIENCE", 1.0)
    hanging = threading.Event()
    pretend_wandb(log=lambda: hanging.wait(600))
    module, began = PretendedRounds(), time.monotonic()
    fit(module, [logger_of(tmp_path)], tmp_path)
    assert module.round == 6
    assert time.monotonic() - began < 30
    [line] = warned(caplog)
    assert line.endswith("it did not finish within 1 s")
    hanging.set()


KILLED = """
import logging, os, signal, subprocess, sys
from pathlib import Path
sys.path.insert(0, {root!r})
logging.basicConfig(level=logging.WARNING, format="%(message)s")
from tests.core.training.conftest import PretendedRounds, fit
from coterie.core.training.loggers import wandb
from coterie.core.settings.sections import LoggerSettings

wandb.PATIENCE = 5.0
folder = Path({folder!r})
log = wandb.RoundWandbLogger(LoggerSettings(), folder, wandb.RunCard("p", "m", "d", 0))


class Killing(PretendedRounds):
    def _measure(self, number):
        super()._measure(number)
        if number == 3:
            log._aside.wait(60)
            found = subprocess.run(["pgrep", "-P", str(os.getpid())], stdout=subprocess.PIPE)
            services = found.stdout.split()
            for pid in services:
                print("service", int(pid), flush=True)
                try:
                    os.kill(int(pid), signal.{signal})
                except ProcessLookupError:  # pgrep itself
                    pass


rounds = Killing(rounds=8)
fit(rounds, [log], folder)
print("rounds", rounds.round)
"""


def run_of(code, folder):
    """Run Python with a service of W&B of its own; give its status and what it said."""
    environment = {name: v for name, v in os.environ.items() if name != "WANDB_SERVICE"}
    with (folder / "said").open("w") as said:  # a service that was stopped holds a pipe open
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, stdout=said, stderr=said, timeout=120, env=environment)
    return done.returncode, (folder / "said").read_text().splitlines()


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_run_ends_well_where_wandbs_service_is_killed_or_hangs(tmp_path, how):
    code = KILLED.format(root=str(ROOT), folder=str(tmp_path), signal=how)
    status, said = run_of(code, tmp_path)
    services = [int(line.split()[1]) for line in said if line.startswith("service ")]
    for pid in services:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert (status, said[-1]) == (0, "rounds 8"), said
    assert sum("W&B logging is off" in line for line in said) == 1, said
    assert services
    assert not any("Traceback" in line for line in said)


def test_private_state_among_the_measurements_ends_the_log_not_the_run(
    PretendedRounds, fit, tmp_path, caplog, pretend_wandb
):
    class Leaking(PretendedRounds):
        def _measure(self, number):
            super()._measure(number)
            self.journal.per_client("mine", self.ids, self.secret)

    notes = pretend_wandb()
    module, log = Leaking(), logger_of(tmp_path)
    fit(module, [log], tmp_path)
    assert module.round == 6
    [line] = warned(caplog)
    assert "one number a client" in line
    assert not any("step" in note for note in notes)
    assert notes[1:] in ([], [{"finish": 1}])  # W&B may not have begun yet


def test_a_failed_run_is_finished_as_failed(PretendedRounds, fit, tmp_path, pretend_wandb):
    notes = pretend_wandb()
    with pytest.raises(RuntimeError, match="the round failed"):
        fit(PretendedRounds(fail_at=4), [logger_of(tmp_path)], tmp_path)
    assert notes[1:] == [{"step": 1}, {"step": 2}, {"step": 3}, {"finish": 1}]


def test_what_a_killed_run_logged_is_in_its_file(tmp_path):
    code = KILLED.format(root=str(ROOT), folder=str(tmp_path), signal="SIGCONT")
    code = code.replace("number == 3", "number == 4").replace(
        "services = ", "time.sleep(2.5); os.kill(os.getpid(), 9); services = "
    )
    status, said = run_of(f"import time{code}", tmp_path)
    assert status == -9, said
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert [item["round"] for item in history_of(records(file))] == [1, 2, 3]


def test_a_run_of_a_sweeps_agent_is_online_under_the_agents_id(
    PretendedRounds, fit, tmp_path, monkeypatch, pretend_wandb
):
    monkeypatch.setenv("WANDB_SWEEP_ID", "s")
    monkeypatch.setenv("WANDB_RUN_ID", "given")
    notes = pretend_wandb()
    fit(PretendedRounds(rounds=1), [logger_of(tmp_path)], tmp_path)
    asked = notes[0]["init"]
    assert (asked["id"], asked["mode"], asked["resume"]) == ("given", "online", "allow")


def test_a_run_offline_asks_for_nothing_to_resume(PretendedRounds, fit, tmp_path, pretend_wandb):
    """Of which older versions of wandb warn."""
    notes = pretend_wandb()
    fit(PretendedRounds(rounds=1), [logger_of(tmp_path)], tmp_path)
    asked = notes[0]["init"]
    assert asked["mode"] == "offline"
    assert "resume" not in asked


def test_rows_are_capped_and_the_sample_stays():
    ids = torch.arange(1000)
    rows = ClientRows(("m",), limit=120, panel=50)
    first, second, third, fourth = (
        rows.take(r, {"m": (ids[r:], torch.rand(1000)[r:])}) for r in range(4)
    )
    assert [len(part) for part in (first, second, third, fourth)] == [50, 50, 20, 0]
    assert len({row[1] for row in first} & {row[1] for row in second}) >= 49
    assert {row[1] for row in third} <= {row[1] for row in second}


def test_rows_hold_each_clients_own_values():
    rows = ClientRows(("a", "b"), limit=100, panel=100)
    nothing = torch.empty(0, dtype=torch.int64), torch.empty(0)
    a = torch.tensor([7, 2, 5]), torch.tensor([0.7, 0.2, float("nan")])
    b = torch.tensor([2, 9]), torch.tensor([2.5, 9.5])
    named = {rows.pseudonym(client): client for client in (2, 5, 7, 9)}
    found = {named[name]: values for _, name, *values in rows.take(1, {"a": a, "b": b})}
    assert found == {
        2: [pytest.approx(0.2), 2.5],
        5: [None, None],
        7: [pytest.approx(0.7), None],
        9: [None, 9.5],
    }
    assert len(rows.take(2, {"a": nothing, "b": b})) == 2
    assert rows.take(3, {"a": nothing, "b": nothing}) == []


def test_another_run_gives_a_client_another_name():
    assert ClientRows((), 1).pseudonym(7) != ClientRows((), 1).pseudonym(7)


def test_histograms_leave_out_what_was_not_measured():
    counts, _ = histogram(torch.tensor([0.0, float("nan"), 1.0, float("inf")]))
    assert counts.sum() == 2
    assert histogram(torch.tensor([float("nan")])) is None
    assert histogram(torch.empty(0)) is None


def test_more_than_one_number_a_client_is_refused():
    with pytest.raises(ValueError, match="one number a client"):
        histogram(torch.zeros(5, 4))
