"""`coterie node`: what an organisation does with its own data."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
from pathlib import Path

import pytest
import torch

from coterie.core.cli.main import main
from coterie.core.engines.folder import ClientFolder
from coterie.core.engines.position import Position
from coterie.core.engines.serving import serving
from coterie.core.engines.worker import Service, ready
from coterie.core.errors import UserError
from coterie.core.flower.certificates import public_key, write_key
from coterie.core.flower.node_folder import client_folders
from coterie.core.flower.requests import Asked, note
from coterie.core.flower.supervisor import last_line

SMALL = ["--preset", "smoke", "--logger.wandb", "off", "--nodes", "2"]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    root = tmp_path_factory.mktemp("deployed") / "d"
    assert main(["deploy", "page", *SMALL, "--data.clients", "4", "--out", str(root)]) == 0
    return root


def init(deployment: Path, node: Path, *more: str, data: Path | None = None) -> int:
    card, data = deployment / "card.json", data or deployment / "clients" / "clients-0"
    words = [str(card), "--data", str(data), "--out", str(node), "--yes", *more]
    return main(["node", "init", *words])


def test_a_node_of_own_data(deployment, tmp_path, capsys):
    node = tmp_path / "north"
    assert init(deployment, node) == 0
    out = capsys.readouterr().out
    assert "update" in out
    assert "Send the coordinator" in " ".join(out.split())
    given, made = (
        ClientFolder(path) for path in (deployment / "clients/clients-0", node / "clients-0")
    )
    assert made.ids.tolist() == given.ids.tolist()
    assert made.card == given.card
    for name in ("data-0.safetensors",):
        assert (made.path / name).read_bytes() == (given.path / name).read_bytes()
    # Secrets are the system's, not those that follow from the card's seed.
    old, new = (set(one.secrets(one.ids).state.tolist()) for one in (given, made))
    assert not old & new
    assert (node / "node.key").stat().st_mode & 0o077 == 0
    assert public_key((node / "node.key.pub").read_text(), "x").startswith(b"-----BEGIN PUBLIC KEY")
    private = [path for path in made.path.iterdir() if path.name != "card.json"]
    assert not [path for path in private if stat.S_IMODE(path.stat().st_mode) & 0o077]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({}, "leaves as one sum of all clients here."),
        ({"aggregate.rule": "median", "aggregate.over": "nodes"}, "leaves as one sum"),
        ({"aggregate.secret": True}, "leaves as one sum of all clients here, behind masks."),
        ({"aggregate.rule": "median"}, "Each client's upload leaves by itself"),
        ({"aggregate.norm_bound": 2.0}, "Each client's upload leaves by itself"),
        ({"privacy.noise": "laplace", "privacy.clip": 1.0}, "laplace noise is added here"),
        (
            {"privacy.noise": "gaussian", "privacy.clip": 1.0, "privacy.at": "server"},
            "clipped to 1.0; gaussian noise is added by the server, to the sum",
        ),
    ],
)
def test_an_owner_is_told_as_what_uploads_leave(settings, line, deployment, tmp_path, capsys):
    card = json.loads((deployment / "card.json").read_text())
    card["settings"] |= settings
    changed = tmp_path / "card.json"
    changed.write_text(json.dumps(card))
    data = deployment / "clients" / "clients-0"
    words = ["node", "init", str(changed), "--data", str(data), "--out", str(tmp_path / "n")]
    assert main([*words, "--yes"]) in (0, 2)
    assert line in " ".join(capsys.readouterr().out.split())


def test_two_folders_of_clients_in_a_node_have_one_key(deployment, tmp_path):
    node = tmp_path / "both"
    assert init(deployment, node) == 0
    key = (node / "node.key").read_bytes()
    assert init(deployment, node, data=deployment / "clients" / "clients-1") == 0
    assert (node / "node.key").read_bytes() == key
    assert {path.parent.name for path in node.glob("*/own.json")} == {"clients-0", "clients-1"}


def test_one_file_is_enough_and_may_be_named(deployment, tmp_path):
    data = deployment / "clients" / "clients-1" / "data-0.safetensors"
    assert init(deployment, tmp_path / "n", "--name", "clients-1", data=data) == 0
    assert (tmp_path / "n" / "clients-1" / "own.json").is_file()


def test_nothing_is_written_without_consent(deployment, tmp_path, monkeypatch, capsys):
    card, data = deployment / "card.json", deployment / "clients" / "clients-0"
    words = ["node", "init", str(card), "--data", str(data), "--out", str(tmp_path / "n")]
    monkeypatch.setattr("sys.stdin", io.StringIO("no\n"))
    assert main(words) == 2
    assert not (tmp_path / "n").exists()
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(words) == 0
    assert "Take part? [y/N]" in capsys.readouterr().out


def other_paper(deployment, tmp_path):
    path = deployment / "clients" / "clients-0"
    copy = shutil.copytree(path, tmp_path / "copy")
    torch.save({"x": 1}, copy / "data-0.safetensors")
    return copy


def second_block(deployment, tmp_path):
    copy = shutil.copytree(deployment / "clients" / "clients-0", tmp_path / "copy")
    shutil.copy(copy / "data-0.safetensors", copy / "data-7.safetensors")
    return copy


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (lambda d, t: t / "nowhere", "there is no data-0.safetensors in"),
        (lambda d, t: d / "server", "there is no data-0.safetensors in"),
        (other_paper, "data-0.safetensors does not fit the card"),
        (second_block, "is of block 7, and the card has 1 blocks"),
    ],
)
def test_data_that_do_not_fit_leave_nothing_behind(data, line, deployment, tmp_path, capsys):
    node = tmp_path / "n"
    assert init(deployment, node, "--name", "north", data=data(deployment, tmp_path)) == 2
    assert line in capsys.readouterr().err
    assert not list(node.glob("*")) if node.exists() else True
    assert not list(node.glob(".*")) if node.exists() else True


def test_a_card_of_another_version_is_refused(deployment, tmp_path, capsys):
    copy = tmp_path / "card.json"
    plain = json.loads((deployment / "card.json").read_text())
    plain["versions"]["coterie-core"] = "9.9"
    copy.write_text(json.dumps(plain))
    data = deployment / "clients" / "clients-0"
    words = ["node", "init", str(copy), "--data", str(data), "--out", str(tmp_path / "n"), "--yes"]
    assert main(words) == 2
    assert "the card is of coterie-core 9.9, and this client has" in capsys.readouterr().err
    copy.write_text("{}")
    assert main(words) == 2
    assert "is no card" in capsys.readouterr().err


def test_a_card_of_other_constants_is_refused(deployment, tmp_path, capsys):
    copy, node = tmp_path / "card.json", tmp_path / "n"
    plain = json.loads((deployment / "card.json").read_text())
    copy.write_text(json.dumps(plain | {"constants": {"table": "0" * 64}}))
    data = deployment / "clients" / "clients-0"
    words = ["node", "init", str(copy), "--data", str(data), "--out", str(node), "--yes"]
    assert main(words) == 2
    assert "another 'table'" in capsys.readouterr().err
    assert not list(node.glob("clients*"))


def test_status_and_reset(deployment, tmp_path, capsys):
    node = tmp_path / "n"
    assert init(deployment, node) == 0
    folder = node / "clients-0"
    (folder / "position.json").write_text(Position(run="r1", order=(1, 5, 0)).to_json())
    (folder / "state-3.pt").write_bytes(b"x")
    capsys.readouterr()
    assert main(["node", "status", str(node), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["node"] is None
    (row,) = found["clients"]
    assert (row["folder"], row["run"], row["rounds"]) == ("clients-0", "r1", 5)
    assert main(["node", "status", str(node)]) == 0
    assert "is down: say coterie node up" in " ".join(capsys.readouterr().out.split())
    with serving(folder):
        assert main(["node", "reset", str(node)]) == 2
        assert "another process is at work in" in capsys.readouterr().err
        assert (folder / "position.json").exists()
    own = (folder / "own.json").read_bytes()
    assert main(["node", "reset", str(node)]) == 0
    left = {path.name for path in folder.iterdir()}
    assert left == {"card.json", "own.json", "data-0.safetensors", "serving.lock"}
    assert (folder / "own.json").read_bytes() == own


def test_audit(deployment, tmp_path, capsys):
    node = tmp_path / "n"
    assert init(deployment, node) == 0
    note(node, Asked("2026-01-01T00:00:00", "clients-0", "p", "r", turn=1, round=1, step="update"))
    note(node, Asked("2026-01-01T00:00:01", "clients-0", "q", "r", turn=1, round=1, step="leak"))
    capsys.readouterr()
    assert main(["node", "audit", str(node)]) == 0
    out = capsys.readouterr().out
    assert "step 'leak', which the card does not have, was asked for" in out
    assert main(["node", "audit", str(node), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in found["requests"]] == ["update", "leak"]
    assert len(found["remarks"]) == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["fly"], "node has no command 'fly'"),
        (["status", "nowhere"], "nowhere is no folder of a node"),
        (["init", "nowhere.json", "--data", ".", "--out", "x"], "cannot read nowhere.json"),
        (["up", "nowhere", "--superlink", "h:1", "--ca", "x"], "there is no certificate x"),
    ],
)
def test_mistakes_are_one_line(words, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["node", *words]) == 2
    err = capsys.readouterr().err
    assert line in err
    assert err.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_the_last_line_that_says_something(tmp_path):
    log = tmp_path / "log"
    assert last_line(log) == f"see {log}"
    log.write_text("\x1b[92mINFO \x1b[0m:      Failed to activate\n\x1b[92mINFO \x1b[0m:      \n\n")
    assert "Failed to activate" in last_line(log)


def test_a_key_stays_where_its_public_half_is_gone(tmp_path):
    public = write_key(tmp_path / "key")
    line, secret = public.read_text(), (tmp_path / "key").read_bytes()
    public.unlink()
    assert write_key(tmp_path / "key").read_text() == line
    assert (tmp_path / "key").read_bytes() == secret
    (tmp_path / "key").write_text("no key")
    with pytest.raises(UserError, match="is no private key"):
        write_key(tmp_path / "key")


def test_half_a_folder_of_clients_is_none(tmp_path):
    for name in (".clients-1-partial", "clients-0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.json").write_text("{}")
    assert [path.name for path in client_folders(tmp_path)] == ["clients-0"]


def test_one_supervisor_of_a_node(deployment, tmp_path, capsys):
    node = tmp_path / "n"
    assert init(deployment, node) == 0
    authority = tmp_path / "ca.crt"
    authority.write_text("x")
    with serving(node):
        words = ["up", str(node), "--superlink", "h:1", "--ca", str(authority)]
        assert main(["node", *words]) == 2
    assert "another process is at work in" in capsys.readouterr().err


def test_one_process_serves_a_folder(deployment, tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.core.engines.serving._HANDOVER", 0.1)
    folder = shutil.copytree(deployment / "clients" / "clients-0", tmp_path / "clients-0")
    with serving(folder), pytest.raises(UserError, match="another process is at work in"):  # noqa: SIM117
        with ready([Service(folder)]):
            pass
    with ready([Service(folder)]):
        pass
