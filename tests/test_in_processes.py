"""`coterie train --engine.name processes`: the numbers of one process, killed and gone on with."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from coterie.core.cli.main import main
from coterie.core.engines.folder import ClientFolder
from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.simulated import count, shards_of
from coterie.core.settings.schema import build
from coterie.core.settings.sections import EngineSettings
from coterie.core.tensors.saved import load as read_file

PATIENCE = 120.0
QUIET = ["--logger.wandb", "off", "--run.progress", "false", "--preset", "smoke"]
SMALL = {
    "f3crec": ["--rounds", "3", "--model.dim", "8"],
    "mtal": ["--rounds", "3", "--model.hidden", "8", "--compare", "false"],
    "page": ["--rounds", "3", "--method", "ditto"],
    "mtal once": ["--variant", "best", "--rounds", "3", "--model.hidden", "8"],
}
PROCESSES = ["--engine.name", "processes", "--engine.processes"]
TIMES = ("cost/seconds", "cost/local_steps", "cost/wait_seconds")
OF_NODES = ("fed/online", "fed/late", "cost/sent_bytes", "cost/received_bytes")


def words(paper: str, out: Path, *more: str) -> list[str]:
    return ["train", paper.split()[0], *QUIET, *SMALL[paper], "--run.out", str(out), *more]


def run_of(out: Path) -> Path:
    (run,) = out.glob("*/*")
    return run


def measured(run: Path) -> list[dict[str, str]]:
    """All digits of all rounds, but for times, steps that are counted where they are, and nodes."""
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [{n: v for n, v in row.items() if not n.startswith((*TIMES, *OF_NODES))} for row in rows]


@pytest.mark.long
@pytest.mark.parametrize("paper", ["f3crec", "mtal", "mtal once"])
def test_one_process_for_all_gives_the_numbers_of_none(paper, tmp_path, capsys):
    """And so does all that is done with the run afterwards."""
    assert main(words(paper, tmp_path / "inside")) == 0
    assert main(words(paper, tmp_path / "outside", *PROCESSES, "1")) == 0
    inside, outside = run_of(tmp_path / "inside"), run_of(tmp_path / "outside")
    assert measured(outside) == measured(inside)
    ledgers = [json.loads((run / "ledger.json").read_text()) for run in (inside, outside)]
    assert ledgers[0] == ledgers[1]
    capsys.readouterr()
    for command in (["evaluate"], ["recommend", "--user", "1"]) if paper == "f3crec" else ():
        said = []
        for run in (inside, outside):
            assert main([*command, "--run", str(run)]) == 0
            said.append(capsys.readouterr().out.replace(str(run), "RUN"))
        assert said[0] == said[1] != ""


@pytest.mark.long
def test_data_secrets_and_private_state_are_with_the_clients_alone(tmp_path):
    assert main(words("page", tmp_path, *PROCESSES, "2")) == 0
    run = run_of(tmp_path)
    store = read_file(run / "checkpoints" / "last.ckpt")["federation"]["store"]
    assert store.keys() == {"heard", "waiting", "requests"}
    assert store["heard"].keys() == {"clients-0", "clients-1"}
    folders = sorted((run / "clients").glob("clients-*"))
    ids = torch.cat([ClientFolder(folder).ids for folder in folders])
    assert ids.unique().numel() == ids.numel() == 100
    for file in (one for folder in folders for one in folder.iterdir()):
        open_to_all = file.stat().st_mode & 0o077
        assert open_to_all == (0o044 if file.name == "card.json" else 0), file


@pytest.mark.long
@pytest.mark.parametrize("more", [["--aggregate.secret", "true"], ["--aggregate.rule", "median"]])
def test_what_needs_processes_to_train_needs_none_afterwards(more, tmp_path, capsys):
    """The end of a run, and who measures it again, have all its clients in one process."""
    pytest.importorskip("flwr")
    over = [] if "true" in more else ["--aggregate.over", "nodes"]
    given = ["train", "page", *QUIET, "--method", "fedavg", *more, *over, *PROCESSES, "3"]
    given += ["--run.out", str(tmp_path), "--rounds", "1"]
    assert main(given) == 0
    run = run_of(tmp_path)
    tested = json.loads((run / "summary.json").read_text())["metrics"]["test/server_accuracy"]
    capsys.readouterr()
    assert main(["evaluate", "--run", str(run), "--json"]) == 0
    assert str(tested) in capsys.readouterr().out
    (run / "summary.json").unlink()  # as if it had been killed before its end
    assert main([*given, "--resume"]) == 0


COTERIE = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from coterie.core.cli.main import main; sys.exit(main(sys.argv[1:]))"
)


def started(*given: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", COTERIE, *given],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def wait_for(true, what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until, what
        time.sleep(0.005)


def workers_of(out: Path) -> list[int]:
    """Processes that serve folders below ``out``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if str(out).encode() in command and b"coterie.core.engines.worker" in command:
            found.append(int(process.name))
    return found


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_killed_goes_on_to_the_same_numbers(how, tmp_path):
    more = ["--rounds", "6"]
    assert main(words("f3crec", tmp_path / "whole", *PROCESSES, "2", *more)) == 0
    again = words("f3crec", tmp_path / "killed", *PROCESSES, "2", *more)
    process = started(*again)
    last = tmp_path / "killed" / "f3crec"
    wait_for(lambda: any(last.glob("*/checkpoints/last.ckpt")), "no checkpoint")
    assert len(workers_of(tmp_path / "killed")) == 2
    os.kill(process.pid, how)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == (-9 if how == signal.SIGKILL else 130)
    if how == signal.SIGINT:
        assert err.startswith("coterie: interrupted; to go on, say: ")
        assert err.count("\n") == 1
    wait_for(lambda: not workers_of(tmp_path / "killed"), "workers that outlive their server")
    done = len(measured(run_of(tmp_path / "killed")))
    assert done < len(measured(run_of(tmp_path / "whole")))
    assert main([*again, "--resume"]) == 0
    assert measured(run_of(tmp_path / "killed")) == measured(run_of(tmp_path / "whole"))
    # Whatever the server that was killed has sent comes from an older one by now.
    clients = run_of(tmp_path / "killed") / "clients"
    assert json.loads((clients / "server.json").read_text())["epoch"] == 2
    assert json.loads((clients / "clients-0" / "position.json").read_text())["order"][0] == 2


@pytest.mark.long
def test_folders_of_other_data_or_settings_are_not_gone_on_with(tmp_path, capsys):
    again = words("page", tmp_path, *PROCESSES, "2")
    assert main([*again, "--trainer.max_epochs", "1"]) == 0
    run = run_of(tmp_path)
    card = run / "clients" / "clients-1" / "card.json"
    card.write_text(card.read_text().replace('"data": "', '"data": "0'))
    capsys.readouterr()
    assert main([*again, "--resume"]) == 2
    assert "were written from other data, settings or versions" in capsys.readouterr().err
    (run / "clients" / "server.json").write_text("{")
    assert main([*again, "--resume"]) == 2
    assert "server.json is damaged" in capsys.readouterr().err
    (run / "clients" / "server.json").unlink()
    assert main([*again, "--resume"]) == 2
    assert "server.json is missing, and the clients have" in capsys.readouterr().err
    assert (run / "clients" / "clients-0" / "position.json").exists()


@pytest.mark.long
def test_a_run_stays_where_its_clients_are(tmp_path, capsys):
    outside = words("page", tmp_path / "outside", *PROCESSES, "2")
    assert main([*outside, "--trainer.max_epochs", "1"]) == 0
    inside = words("page", tmp_path / "inside")
    assert main([*inside, "--trainer.max_epochs", "1"]) == 0
    capsys.readouterr()
    elsewhere = ["--engine.name", "in-process", "--engine.processes", "null"]
    assert main([*words("page", tmp_path / "outside"), *elsewhere, "--resume"]) == 2
    assert "its clients ran in processes of their own" in capsys.readouterr().err
    assert main([*inside, *PROCESSES, "2", "--resume"]) == 2
    assert "its clients ran in one process" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"processes": 2}, r"'engine\.processes' is for clients in processes of their own"),
        ({"deadline": 2.0}, r"'engine\.deadline' is for clients in processes"),
        ({"min_clients": 0.5}, r"'engine\.min_clients' is for clients in processes"),
        ({"name": "processes", "workers": 2}, r"set 'engine\.processes' instead"),
        ({"name": "processes", "patience": 0}, r"'engine\.patience' must be at least 1"),
        ({"name": "processes", "deadline": 0.0}, r"'engine\.deadline' must be above 0"),
    ],
)
def test_settings_without_an_effect_are_refused(values, why):
    with pytest.raises(UserError, match=why):
        EngineSettings(**values)


def test_rounds_are_kept_one_by_one():
    settings = load(find_paper("page").settings)
    with pytest.raises(UserError, match=r"'run\.checkpoint_every' must be 1"):
        build(settings, {"engine.name": "processes", "run.checkpoint_every": 2})


def test_a_split_model_needs_a_server(capsys):
    split = ["--split.k", "1", "--model.layers", "3", "--engine.name", "processes"]
    assert main(["train", "pplr", *QUIET, *split]) == 2
    assert "start one by `coterie llm serve`" in capsys.readouterr().err


def test_work_is_dealt_evenly():
    """By the clients' own estimate, over all blocks, each client to one folder."""
    paper = find_paper("f3crec")
    given = build(load(paper.settings), {"model.dim": 4})
    federation = load(paper.experiment)(given).federation()
    shards = shards_of(federation, 3)
    ids = torch.cat(shards)
    everybody = torch.cat([data.ids for data in federation.blocks]).unique()
    assert ids.sort().values.tolist() == everybody.tolist()
    loads = []
    for shard in shards:
        assert shard.tolist() == sorted(shard.tolist())
        own = [
            data.take(torch.isin(data.ids, shard).nonzero().flatten()) for data in federation.blocks
        ]
        loads.append(sum(float(federation.client.work(data).sum()) for data in own))
    assert max(loads) < 1.02 * min(loads)
    assert count(EngineSettings(name="processes", processes=5), 3) == 3
    assert count(EngineSettings(), 64) == len(os.sched_getaffinity(0))


@pytest.mark.long
def test_folders_that_an_aborted_run_has_not_written_are_written(tmp_path, capsys):
    """Nobody is left out in silence, whichever engine had begun the run."""
    again = words("page", tmp_path, *PROCESSES, "2")
    assert main([*again, "--trainer.max_epochs", "1"]) == 0
    clients = run_of(tmp_path) / "clients"
    for number in (0, 1):  # as if no round had been
        (clients / f"clients-{number}" / "position.json").unlink()
    (run_of(tmp_path) / "checkpoints" / "last.ckpt").unlink()
    shutil.rmtree(clients / "clients-1")
    assert main([*again, "--resume"]) == 0
    assert len(ClientFolder(clients / "clients-1").ids) == 50
    first = measured(run_of(tmp_path))[0]
    assert first["fed/clients"] == "100"
    (clients / "clients-1").rename(clients.parent / "lost")
    capsys.readouterr()
    (run_of(tmp_path) / "summary.json").unlink(missing_ok=True)
    assert main([*again, "--resume"]) == 2
    assert "clients-1 is missing, and its clients had private state" in capsys.readouterr().err
    (clients.parent / "lost").rename(clients / "clients-1")
    (clients / "dealt.json").write_text("two")
    assert main([*again, "--rounds", "9", "--resume"]) == 2
    assert "dealt.json is damaged" in capsys.readouterr().err
