"""A server as a process: killed and started again, told to end, refused a port."""

import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest


def started(folder, *more, port=0, env=None):
    argv = [
        sys.executable,
        "-c",
        "from coterie.core.cli.main import main; raise SystemExit(main())",
    ]
    argv += ["serve", "--run", str(folder), "--port", str(port), *more]
    return subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env or os.environ
    )


def address(process):
    line = process.stdout.readline()
    assert line.startswith("Serving "), process.communicate()[1]
    return line.split(" at ")[1].split(";")[0]


@pytest.mark.long
def test_it_comes_back_after_a_kill_and_ends_cleanly_when_told(folder):
    first = started(folder)
    url = address(first)
    try:
        before = httpx.get(f"{url}/recommend/1").json()
        taken = started(folder, port=int(url.rpartition(":")[2]))
        _, said = taken.communicate(timeout=60)
        assert taken.returncode == 2
        assert "address already in use" in said
        assert said.count("\n") == 1
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    again = started(folder, "--max-body", "5000", port=int(url.rpartition(":")[2]))
    try:
        assert address(again) == url
        assert httpx.get(f"{url}/recommend/1").json() == before
        be_hostile(again, url)
        with socket.create_connection(_parts(url)) as one:  # a request that has begun
            one.sendall(_head(b"POST /recommend", 33) + b'{"users":["1"],')
            time.sleep(0.3)
            again.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            one.sendall(b'"top":3}          ')
            assert one.makefile("rb").readline().startswith(b"HTTP/1.1 200")
        _, said = again.communicate(timeout=60)
    finally:
        again.kill()
    assert again.returncode == 0
    assert "Traceback" not in said
    assert "private state of" in said
    assert "POST /recommend 200" in said


HOSTILE = [
    (b"GET /recommend/nobody HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    (b"GET /recommend/1 HTTP/1.1\r\nHost: evil.example\r\n\r\n", 400),
    (b"GET /recommend/1?top=-1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 422),
    (b"GET /recommend/%ff%00%0a HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    (b"BREW /recommend/1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    (b"this is no HTTP\r\n\r\n", 400),
    (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", 400),
    (b"POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n", 413),
    (b"POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n12345", 415),
    (b"POST /recommend HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
     + b"ffff\r\n" + b" " * 0xFFFF + b"\r\n", 413),
]  # fmt: skip


def be_hostile(process, url):
    """Send 200 requests that are wrong; each gets its answer, and memory does not grow."""
    before = resident(process.pid)
    for number in range(200):
        content, status = HOSTILE[number % len(HOSTILE)]
        with socket.create_connection(_parts(url), timeout=30) as one:
            one.sendall(content)
            line = one.makefile("rb").readline()
        assert line.startswith(b"HTTP/1.1 %d " % status), (content[:80], line)
    assert resident(process.pid) - before < 50_000
    assert httpx.get(f"{url}/recommend/1", timeout=20).status_code == 200


def resident(pid):
    """KB of memory that a process has."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def _head(request, length):
    head = request + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % length


def _parts(url):
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "without a token only this machine itself is served"),
        (["--token-file", "/no/such/file"], "the token file /no/such/file cannot be read"),
        (["--port", "70000"], "expected a port"),
        (["--rate", "0"], "expected a number above 0"),
    ],
)
def test_what_cannot_be_served_is_one_line(folder, words, said, capsys, monkeypatch):
    from coterie.core.cli.main import main

    monkeypatch.delenv("COTERIE_TOKEN", raising=False)
    assert main(["serve", "--run", str(folder), *words]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_a_run_that_recommends_nothing_or_is_none_is_one_line(tmp_path, capsys):
    from coterie.core.cli.main import main

    assert main(["serve", "--run", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
