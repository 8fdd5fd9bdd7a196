"""The server of the list: this machine alone, runs by their ids, damaged folders, many runs."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tests.core.looking.folders import make_run, scores

from coterie.core.cli.main import main
from coterie.core.looking.facts import RunFacts
from coterie.core.looking.report import report
from coterie.core.looking.server import app
from coterie.core.looking.shelf import Shelf
from coterie.core.run.lock import held


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_run(tmp_path, "page/done", metrics=scores(0.7))
    make_run(tmp_path, "page/open", seed=1)
    (tmp_path / "page" / "empty").mkdir()
    return tmp_path


@pytest.fixture
def client(root: Path) -> TestClient:
    made = TestClient(app(root), base_url="http://127.0.0.1:8001")
    while "unread" in made.get("/runs.json").text:  # until the papers are imported
        pass
    return made


def test_runs_are_listed_as_they_stand(client: TestClient, root: Path) -> None:
    rows = {row["name"]: row for row in client.get("/runs.json").json()}
    assert {name: row["state"] for name, row in rows.items()} == {
        "page/done": "finished",
        "page/open": "unfinished",
    }
    assert rows["page/done"]["measure"] == "server accuracy"
    assert rows["page/open"]["value"] == 0.55
    with held(root / "page" / "open"), (root / "page" / "open" / "metrics.csv").open("a") as file:
        file.write("4,0,0.65,2,0,4000,4000,0.5,2.0\n")
        file.flush()
        row = next(row for row in client.get("/runs.json").json() if row["name"] == "page/open")
        assert (row["state"], row["rounds"], row["value"]) == ("training", 4, 0.65)
    row = next(row for row in client.get("/runs.json").json() if row["name"] == "page/open")
    assert row["state"] == "unfinished"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8001",
        "127.0.0.1.evil.example",
        "",
        "localhost.evil:1",
        "[::1]evil",
        "10.0.0.1",
    ],
)
def test_other_names_are_refused(client: TestClient, host: str) -> None:
    for path in ("/", "/runs.json", "/compare"):
        answer = client.get(path, headers={"host": host})
        assert (answer.status_code, "runs" in answer.text) == (403, False)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8001", "[::1]:8001", "LOCALHOST:1"])
def test_this_machine_is_answered(client: TestClient, host: str) -> None:
    answer = client.get("/", headers={"host": host})
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "script-src 'unsafe-inline'" not in policy
    assert "access-control-allow-origin" not in answer.headers
    nonce = policy.split("'nonce-")[1].split("'")[0]
    assert f'<script nonce="{nonce}">' in answer.text
    assert client.get("/").headers["content-security-policy"] != policy


def test_it_reads_only(client: TestClient) -> None:
    for path in ("/", "/runs.json", "/compare", "/run/x"):
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert client.request(method, path).status_code == 405


@pytest.mark.parametrize(
    "number", ["../page/done", "..%2f..%2fetc%2fpasswd", "page%2Fdone", "0", "%00", "<script>"]
)
def test_runs_are_called_by_ids_alone(client: TestClient, number: str) -> None:
    answer = client.get(f"/run/{number}")
    assert answer.status_code == 404
    assert "<script>" not in answer.text
    assert client.get("/compare", params={"run": number}).status_code == 404


def test_links_are_not_followed(client: TestClient, root: Path, tmp_path_factory) -> None:
    outside = make_run(tmp_path_factory.mktemp("outside"), "other", metrics=scores(0.1))
    (root / "page" / "link").symlink_to(outside)
    assert len(client.get("/runs.json").json()) == 2


def test_a_report_is_drawn_again_where_a_file_changed(client: TestClient, root: Path) -> None:
    number = next(r["id"] for r in client.get("/runs.json").json() if r["name"] == "page/open")
    first = client.get(f"/run/{number}").text
    assert "3 rounds are done" in first
    began = time.process_time()
    assert client.get(f"/run/{number}").text == first
    assert time.process_time() - began < 0.2
    with (root / "page" / "open" / "metrics.csv").open("a") as file:
        file.write("4,0,0.65,2,0,4000,4000,0.5,2.0\n")
    assert "4 rounds are done" in client.get(f"/run/{number}").text
    shutil.rmtree(root / "page" / "open")
    assert client.get(f"/run/{number}").status_code == 404


def test_what_is_damaged_is_a_line(client: TestClient, root: Path) -> None:
    damages = {
        "config.yaml": "a: [",
        "summary.json": "{",
        "about.json": "[1]",
        "metrics.csv": "round,block,eval/accuracy\n1,0,x\n",
    }
    for file, content in damages.items():
        name = f"bad-{file}"
        make_run(root, name, metrics=scores(0.7) if file != "metrics.csv" else None)
        (root / name / file).write_text(content)
    make_run(root, "nobody", metrics=scores(0.7), paper="nobody")
    binary = make_run(root, "binary", metrics=scores(0.7))
    (binary / "config.yaml").write_bytes(os.urandom(200))
    rows = client.get("/runs.json").json()
    bad = {row["name"]: row["problem"] for row in rows if row["state"] == "damaged"}
    assert set(bad) == {f"bad-{file}" for file in damages} | {"nobody", "binary"}
    assert all("\n" not in why for why in bad.values())
    assert len(rows) == 8
    number = next(row["id"] for row in rows if row["name"] == "bad-summary.json")
    answer = client.get(f"/run/{number}")
    assert (answer.status_code, "is damaged" in answer.text) == (404, True)


def test_many_runs_are_listed_at_once(root: Path) -> None:
    for number in range(398):
        folder = root / "many" / f"r{number}"
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("paper: page")
    shelf = Shelf(root)
    early = shelf.rows(seconds=0.0)
    assert {row["state"] for row in early} == {"unread"}
    assert len(early) == 400
    shelf.rows(seconds=600.0)
    began = time.process_time()
    rows = shelf.rows()
    assert len(rows) == 400
    assert "unread" not in {row["state"] for row in rows}
    assert time.process_time() - began < 0.2  # 0.5 s for a thousand
    assert len({row["id"] for row in rows}) == 400


def test_ctrl_c_ends_it_without_a_word(root: Path) -> None:
    code = "import sys; from coterie.core.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "ui", "--runs", str(root), "--port", "0"]
    quiet = os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "400"}
    for kept in (False, True):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=quiet
        )
        assert process.stdout is not None
        address = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert address is not None
        with socket.create_connection(("127.0.0.1", int(address[1]))) as asking:
            asking.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert asking.recv(12) == b"HTTP/1.1 200"
            if not kept:  # a browser keeps its connection while the page is open
                asking.close()
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)
        assert (process.returncode, said) == (0, ("", ""))


def test_a_report_from_the_list_leads_back_to_it(client: TestClient, root: Path) -> None:
    ids = [row["id"] for row in client.get("/runs.json").json()]
    back = '<a href="/">All runs</a>'
    assert back in client.get(f"/run/{ids[0]}").text
    assert back in client.get("/compare", params={"run": ids}).text
    assert back not in report([RunFacts(root / "page" / "done")])  # a file opens without a server


def test_a_port_that_is_taken_is_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["ui", "--runs", str(root), "--port", str(port)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"port {port} (address already in use)" in line


def test_mistakes_are_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--runs", "gone"], ["--port", "70000"], ["--port", "-1"], ["--host", "0.0.0.0"]):
        assert main(["ui", *words]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
