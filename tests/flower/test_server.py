"""The ServerApp: a run folder as of `coterie train`, resumed, one at a time, epoch by epoch."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import yaml
from flwr.app import Context, RecordDict
from tests.flower.fake_grid import FakeGrid, by_service, key_of, quick

from coterie.core.cli.main import main
from coterie.core.engines.envelope import Parcel
from coterie.core.engines.serving import serving
from coterie.core.errors import UserError
from coterie.core.flower import server
from coterie.core.flower.certificates import write_key
from coterie.core.flower.client_app import unpacked
from coterie.core.flower.names import VARIABLE
from coterie.core.flower.server import serve
from coterie.core.run.runfolder import RunFolder

SMALL = ["--preset", "smoke", "--data.clients", "4", "--logger.wandb", "off"]
ROUNDS = 2


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    quick(monkeypatch)


def deployed(root: Path, *more: str) -> Path:
    words = ["page", "--method", "scaffold", "--rounds", str(ROUNDS), *SMALL, *more]
    assert main(["deploy", *words, "--nodes", "2", "--out", str(root)]) == 0
    return root


def grid_for(root: Path) -> FakeGrid:
    """A node for each folder of clients, whose keys the server gets."""
    lines, nodes = {}, {}
    for number, folder in enumerate(sorted((root / "clients").iterdir()), start=1):
        key = root / "keys" / folder.name
        nodes[number] = (key_of(key), by_service([folder]))
        lines[folder.name] = write_key(key / "key").read_text()
    (root / "server" / "keys.json").write_text(json.dumps(lines))
    return FakeGrid(nodes)


def start(root: Path, grid: FakeGrid, **config: bool | str) -> None:
    given = {"server": str(root / "server"), "resume": False, **config}
    serve(grid, Context(1, 2, {}, RecordDict(), given))


def status(root: Path) -> dict:
    return json.loads((root / "server" / "status.json").read_text())


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def without_costs(run: Path) -> list[dict[str, str]]:
    left_out = ("cost/", "fed/online", "fed/late")
    return [{n: v for n, v in row.items() if not n.startswith(left_out)} for row in rows(run)]


def run_of(root: Path, number: int = 1) -> Path:
    return root / "server" / "runs" / "page" / f"run-{number}"


class Stopped(BaseException):
    """As Flower ends a ServerApp."""


def cut_off(root: Path) -> list:
    """Start a run that is ended after some messages; gives them."""
    grid, asked = grid_for(root), []
    push = grid.push_messages

    def ended(messages):
        asked.extend(messages)
        if len(asked) > 9:
            raise Stopped
        return push(messages)

    grid.push_messages = ended
    with pytest.raises(BaseException):  # noqa: B017
        start(root, grid)
    return asked


@pytest.mark.long
def test_a_run_as_of_coterie_train(tmp_path, capsys):
    root = deployed(tmp_path / "d")
    start(root, grid_for(root))
    run = run_of(root)
    assert {"config.yaml", "metrics.csv", "ledger.json", "summary.json", "curves.png"} <= {
        path.name for path in run.iterdir()
    }
    assert RunFolder.open(run).settings.engine.name == "flower"
    words = ["train", "page", "--method", "scaffold", "--rounds", str(ROUNDS), *SMALL]
    processes = ["--engine.name", "processes", "--engine.processes", "2"]
    assert main([*words, *processes, "--run.out", str(tmp_path / "p")]) == 0
    (other,) = (tmp_path / "p").glob("*/*")
    assert without_costs(run) == without_costs(other)
    assert json.loads((run / "ledger.json").read_text()) == json.loads(
        (other / "ledger.json").read_text()
    )
    for row in rows(run):
        assert (row["fed/online"], row["fed/late"]) == ("4", "0")
        assert float(row["cost/sent_bytes"]) > 1000.0
        assert 0.0 < float(row["cost/wait_seconds"]) <= float(row["cost/seconds"])
    text = (run / "metrics.prom").read_text()
    assert f"coterie_round {ROUNDS}\n" in text
    assert "\ncoterie_fed_online 4.0\n" in text
    found = status(root)
    assert (found["state"], found["round"], found["epoch"]) == ("finished", ROUNDS, 1)
    assert [node["here"] for node in found["nodes"]] == [True, True]
    capsys.readouterr()
    assert main(["evaluate", "--run", str(run)]) == 2
    assert "are on other machines" in capsys.readouterr().err


def test_it_goes_on_after_it_was_ended_and_nodes_refuse_the_older_start(tmp_path, monkeypatch):
    whole, cut = deployed(tmp_path / "whole"), deployed(tmp_path / "cut")
    start(whole, grid_for(whole))
    asked = cut_off(cut)
    assert status(cut)["state"] != "finished"
    with pytest.raises(UserError, match="run-1 is unfinished: go on by"):
        start(cut, grid_for(cut))
    assert status(cut)["state"] == "failed"
    again = grid_for(cut)
    start(cut, again, resume=True)
    assert without_costs(run_of(cut)) == without_costs(run_of(whole))
    assert status(cut)["epoch"] == 2
    newest = [Parcel.read(unpacked(message)) for message in again.pushed]
    assert {parcel.header.epoch for parcel in newest} == {2}
    old = Parcel.read(unpacked(asked[-2]))
    assert old.header.epoch == 1
    refused = again.nodes[1][1](asked[-2])
    assert b"after one of (2, " in unpacked(refused)


def test_a_second_run_is_another_which_nodes_must_agree_to(tmp_path):
    root = deployed(tmp_path / "d", "--engine.start", "1")
    start(root, grid_for(root))
    with pytest.raises(UserError, match="was tried 3 times in vain"):
        start(root, grid_for(root))
    why = {node["why"] for node in status(root)["nodes"]}
    assert len(why) == 1
    assert "they have private state of run" in why.pop()
    forgotten(root)
    start(root, grid_for(root), resume=True)
    assert rows(run_of(root, 2))[-1] | {"x": ""} != {}
    assert without_costs(run_of(root, 2)) == without_costs(run_of(root))


def test_a_file_of_one_s_own(tmp_path):
    """What its columns are called is nobody's business but its owner's, and in no card."""
    file, root = tmp_path / "mine.csv", tmp_path / "d"
    some = [(user, item) for user in range(12) for item in range(45) if (user + item) % 3]
    lines = [f"{user},{item},{7 * user + 11 * item}" for user, item in some]
    file.write_text("who,what,when\n" + "\n".join(lines) + "\n")
    words = ["f3crec", *SMALL[:2], "--data", str(file), "--data.columns", "user=who,item=what"]
    words[-1] += ",time=when"
    words += ["--data.min_interactions", "1", "--logger.wandb", "off", "--rounds", "1"]
    assert main(["deploy", *words, "--nodes", "2", "--out", str(root)]) == 0
    start(root, grid_for(root))
    assert status(root)["state"] == "finished"


NOISE = ["--privacy.at", "server", "--privacy.noise", "gaussian", "--train.weighting", "equal"]
NOISE += ["--privacy.clip", "1.0", "--privacy.scale", "0.5"]


def forgotten(root: Path) -> None:
    """The owners of all nodes agree to another run."""
    for folder in (root / "clients").iterdir():
        node = root / "nodes" / folder.name
        node.mkdir(parents=True, exist_ok=True)
        folder.rename(node / folder.name)
        assert main(["node", "reset", str(node)]) == 0
        (node / folder.name).rename(folder)


def test_noise_of_the_server_s_is_drawn_by_a_secret_that_no_card_tells(tmp_path):
    """Who knows the card would know it; two runs with the same would give the data away."""
    root = deployed(tmp_path / "d", *NOISE)
    secret, losses, secrets = root / "server" / "secret", [], []
    for number in (1, 2):
        start(root, grid_for(root))
        losses.append(rows(run_of(root, number))[-1]["eval/server_loss"])
        secrets.append(secret.read_bytes())
        forgotten(root)
    assert secret.stat().st_mode & 0o077 == 0
    assert len(set(secrets)) == len(set(losses)) == 2
    spent = [float(row["privacy/epsilon"]) for row in rows(run_of(root))]
    assert 0 < spent[0] < spent[1]


@pytest.mark.long
def test_a_run_whose_secret_is_gone_does_not_go_on(tmp_path, monkeypatch):
    root, whole = deployed(tmp_path / "d", *NOISE), deployed(tmp_path / "whole", *NOISE)
    cut_off(root)
    secret = root / "server" / "secret"
    kept = secret.read_bytes()
    secret.unlink()
    with pytest.raises(UserError, match="secret is gone, by which the server draws its noise"):
        start(root, grid_for(root), resume=True)
    secret.write_bytes(kept)
    start(root, grid_for(root), resume=True)
    assert status(root)["state"] == "finished"
    # As a run that was not cut off, with the same secret; but for ε, which counts the round twice.
    monkeypatch.setattr(
        server, "write_secret", lambda folder: (folder / "secret").write_bytes(kept)
    )
    start(whole, grid_for(whole))
    one, other = (without_costs(run_of(given))[-1] for given in (root, whole))
    assert float(one.pop("privacy/epsilon")) > float(other.pop("privacy/epsilon"))
    assert one == other
    checkpoint = (run_of(root) / "checkpoints" / "last.ckpt").read_bytes()
    assert kept not in checkpoint


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"aggregate": {"rule": "median"}}, "aggregate.rule"),
        ({"privacy": {"noise": "gaussian", "scale": 0.5, "clip": 1.0}}, "privacy.clip"),
        ({"seed": 9}, "seed"),
    ],
)
def test_settings_of_the_server_that_the_card_does_not_have_are_refused(settings, key, tmp_path):
    """All sides go by the card, so that they would be told of and have no effect."""
    root = deployed(tmp_path / "d")
    path = root / "server" / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | settings))
    with pytest.raises(UserError, match=f"'{key}' in .* is not as the card has it"):
        start(root, grid_for(root))
    assert not (root / "server" / "runs").exists()


def test_one_server_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.core.engines.serving._HANDOVER", 0.1)
    root = deployed(tmp_path / "d")
    grid = grid_for(root)
    with serving(root / "server"), pytest.raises(UserError, match="another process is at work in"):
        start(root, grid)
    assert not grid.pushed
    assert not (root / "server" / "status.json").exists()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda keys: {}, "no node has registered for 'clients-0'"),
        (lambda keys: keys | {"clients-1": "ssh-rsa AAAA"}, "the public key of 'clients-1' in"),
        (lambda keys: list(keys), "must name, for each folder of clients"),
    ],
)
def test_keys_that_are_missing_or_none(change, line, tmp_path):
    root = deployed(tmp_path / "d")
    grid = grid_for(root)
    path = root / "server" / "keys.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(UserError, match=line):
        start(root, grid)
    assert line in status(root)["error"]
    assert not grid.pushed


def test_the_server_s_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    context = Context(1, 2, {}, RecordDict(), {"server": ""})
    with pytest.raises(UserError, match=f"start the SuperLink with {VARIABLE}"):
        serve(FakeGrid({}), context)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match="is no folder of a server"):
        serve(FakeGrid({}), context)


@pytest.mark.long
def test_a_new_key_keeps_the_state(tmp_path):
    """Its owner makes another key, which the coordinator writes down; the run goes on."""
    whole, cut = deployed(tmp_path / "whole"), deployed(tmp_path / "cut")
    start(whole, grid_for(whole))
    grid = grid_for(cut)
    push = grid.push_messages
    grid.push_messages = lambda messages: _until(9, grid, messages, push)
    with pytest.raises(BaseException):  # noqa: B017
        start(cut, grid)
    for folder in (cut / "keys").iterdir():
        for path in folder.iterdir():
            path.unlink()
    again = grid_for(cut)
    assert {key for key, _ in again.nodes.values()} & {k for k, _ in grid.nodes.values()} == set()
    start(cut, again, resume=True)
    assert without_costs(run_of(cut)) == without_costs(run_of(whole))


def _until(count, grid, messages, push):
    if len(grid.pushed) > count:
        raise Stopped
    return push(messages)
