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


def test_it_comes_back_after_a_kill_and_ends_cleanly_when_told(folder):
    first = started(folder)
    url = address(first)
    try:
        before = _get(f"{url}/recommend/1").json()
        taken = started(folder, port=int(url.rpartition(":")[2]))
        _, said = taken.communicate(timeout=60)
        assert taken.returncode == 2
        assert "address already in use" in said
        assert said.count("\n") == 1
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    again = started(folder, port=int(url.rpartition(":")[2]))
    try:
        assert address(again) == url
        assert _get(f"{url}/recommend/1").json() == before
        with socket.create_connection(tuple(_parts(url))) as one:  # a request that has begun
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


def _head(request, length):
    head = request + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % length


def _parts(url):
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)


def _get(url):
    deadline = time.monotonic() + 30
    while True:
        try:
            return httpx.get(url, timeout=20)
        except httpx.ConnectError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


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
