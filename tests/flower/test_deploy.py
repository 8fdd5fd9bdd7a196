"""`coterie deploy`: an ordinary Flower app, the server's folder, and nothing of anybody in it."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch
import yaml
from cryptography import x509

from coterie.core.cli.main import main
from coterie.core.engines.folder import ClientFolder
from coterie.core.flower.certificates import write_authority
from coterie.core.flower.programs import environment, program
from coterie.core.protocol.card import Card
from coterie.core.registry.papers import find_paper, load
from coterie.core.settings.configuration import read_config

SMALL = ["--preset", "smoke", "--logger.wandb", "off"]


def deploy(root: Path, *words: str, nodes: int = 2) -> int:
    return main(["deploy", *words, *SMALL, "--nodes", str(nodes), "--out", str(root)])


def test_an_app_and_a_server_s_folder(tmp_path):
    root = tmp_path / "d"
    assert deploy(root, "page", "--data.clients", "5", "--engine.min_clients", "3") == 0
    project = tomllib.loads((root / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"] == {"server": "", "resume": False}
    assert project["project"]["dependencies"][0] == "flwr>=1.42,<1.43"
    for name in ("server_app.py", "client_app.py"):
        text = (root / "coterie_app" / name).read_text()
        compile(text, name, "exec")
        assert len(text.splitlines()) < 20
    assert "Apache License" in (root / "LICENSE").read_text()
    card = Card.from_json((root / "card.json").read_text())
    assert card == Card.from_json((root / "server" / "card.json").read_text())
    paper = find_paper("page")
    values = read_config(root / "server/config.yaml", load(paper.settings), "page").values
    assert values["engine.name"] == "flower"
    assert values["engine.min_clients"] == 3.0
    assert values["engine.deadline"] == 600.0
    ids = [ClientFolder(path).ids for path in sorted((root / "clients").iterdir())]
    assert torch.cat(ids).sort().values.tolist() == list(range(5))
    assert not (root / "server" / "runs").exists()


def test_what_flower_sends_holds_nobody_s_data_and_no_path(tmp_path):
    root = tmp_path / "d"
    assert deploy(root, "page", "--data.clients", "4") == 0
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        [program("flwr"), "build", "--app", str(root)],
        env={**os.environ, **environment(home)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    (fab,) = tmp_path.glob("*.fab")
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(fab) as packed:
        names = set(packed.namelist())
        text = b"".join(packed.read(name) for name in names)
    assert {name for name in names if not name.startswith(".info")} == {
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "card.json",
        *(f"coterie_app/{name}.py" for name in ("__init__", "client_app", "server_app")),
    }
    assert str(tmp_path).encode() not in text
    assert b"safetensors" not in text.replace(b"data-0.safetensors", b"")


@pytest.mark.long
def test_the_list_form_has_a_folder_a_client(tmp_path):
    root = tmp_path / "d"
    assert deploy(root, "pplr", "--data.clients", "3") == 0
    folders = sorted((root / "clients").iterdir())
    assert len(folders) == 3
    assert all(ClientFolder(path).ids.numel() == 1 for path in folders)


def test_a_certificate_is_for_this_machine_and_for_what_is_named(tmp_path):
    write_authority(tmp_path, names=("superlink", "10.0.0.7"))
    found = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "superlink"]
    addresses = names.get_values_for_type(x509.IPAddress)
    assert [str(one) for one in addresses] == ["127.0.0.1", "10.0.0.7"]


def test_the_proxy_publishes_what_nodes_need_alone(tmp_path):
    root = tmp_path / "d"
    assert deploy(root, "page", "--data.clients", "4") == 0
    services = yaml.safe_load((root / "compose.yaml").read_text())["services"]
    assert "ports" not in services["superlink"]
    assert services["superlink"]["environment"]["FLWR_HOME"] == "/deployment/flower"
    known = tomllib.loads((root / "flower" / "config.toml").read_text())["superlink"]
    assert known[known["default"]]["address"] == "127.0.0.1:8000"
    command = services["superlink"]["command"].split()
    for word in ("--enable-supernode-auth", "--database", "--ssl-certfile"):
        assert word in command
    assert "--insecure" not in command
    assert all(one["restart"] == "unless-stopped" for one in services.values())
    places = (root / "proxy.conf").read_text().split("location ")[1:]
    assert [place.split()[0] for place in places] == ["/v1/fleet/", "/"]
    assert "return 403;" in places[1]
    assert "proxy_pass" not in places[1]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["page", "--nodes", "2"], "--out"),
        (["page", "--out", "x"], "--nodes"),
        (["page", "--nodes", "2", "--out", "there"], "there is there already"),
        (["page", "--nodes", "2", "--out", "x", "--engine.processes", "2"], "say coterie deploy"),
        (["pgae", "--nodes", "2", "--out", "x"], "did you mean 'page'"),
        (["up", "nowhere", "--local", "2"], "nowhere is no deployment"),
        (["status", "nowhere"], "nowhere is no deployment"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(words, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert main(["deploy", *words]) == 2
    err = capsys.readouterr().err
    assert line in err
    assert err.count("\n") == 1
    assert os.listdir(tmp_path) == ["there"]


def test_other_commands_know_that_nothing_is_here(tmp_path, capsys):
    words = ["train", "page", *SMALL, "--engine.name", "flower", "--run.out", str(tmp_path)]
    assert main(words) == 2
    assert "train by coterie deploy page" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_status_says_when_nobody_is_alive(tmp_path, capsys):
    root = tmp_path / "d"
    assert deploy(root, "page", "--data.clients", "4") == 0
    capsys.readouterr()
    assert main(["deploy", "status", str(root)]) == 2
    assert "no run of" in capsys.readouterr().err
    when = (datetime.now(UTC) - timedelta(seconds=60)).isoformat(timespec="seconds")
    node = {"node": "clients-0", "here": False, "why": "it gave no answer", "waiting": 2}
    facts = {"paper": "page", "run": "run-1", "state": "training", "round": 3, "error": ""}
    told = {**facts, "nodes": [node], "refused": [], "metrics": {}, "time": when, "pid": 1}
    (root / "server" / "status.json").write_text(json.dumps(told))
    assert main(["deploy", "status", str(root)]) == 0
    out = capsys.readouterr().out
    assert "page, run-1: no sign of life, round 3" in out
    assert "it gave no answer" in out
    assert main(["deploy", "status", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == [node]
