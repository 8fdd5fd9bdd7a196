"""Requests a second of ``coterie serve``, beside a bare handler whose answer is as long.

``python -m benchmarks.core.serve.load RUN [--requests 2000] [--clients 8]``: both servers are
processes of their own at loopback, with the same settings of uvicorn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from urllib.parse import quote

from coterie.core.cli.command import print_rows, say
from coterie.core.errors import UserError
from coterie.core.front.run import Run

_MOST_SECONDS = 120.0  # of one measurement
_USERS = 1_000  # different ones, asked for in turn
_SERVE = "from coterie.core.cli.main import main; raise SystemExit(main())"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--clients", type=int, default=8)
    given = parser.parse_args(argv)
    frame = Run(given.run).recommend()
    paths = [f"/recommend/{quote(user, safe='')}" for user in frame.user.unique()[:_USERS]]
    unlimited = ["--rate", "1e9", "--max-burst", "1000000000", "--port", "0"]
    with started(
        [sys.executable, "-c", _SERVE, "serve", "--run", str(given.run), *unlimited]
    ) as at:
        answer = asyncio.run(_asked(at, paths[:1], 1))[1]
        rows = [row("coterie serve", at, paths, given.requests, given.clients)]
    with started([sys.executable, "-m", "benchmarks.core.serve.bare", answer]) as at:
        rows.append(row("a bare handler, as long", at, ["/"], given.requests, given.clients))
    print_rows(
        rows, f"{given.requests:,} requests of {given.clients} clients, {len(answer):,} bytes"
    )


def row(
    name: str, port: int, paths: Sequence[str], requests: int, clients: int
) -> dict[str, object]:
    """Ask so many times, by clients that each wait for their answers; some first to warm up."""
    asyncio.run(_load(port, list(islice(cycle(paths), 50)), 1))
    began = time.perf_counter()
    seconds = asyncio.run(_load(port, list(islice(cycle(paths), requests)), clients))
    whole = time.perf_counter() - began
    cuts = statistics.quantiles(seconds, n=100)
    return {
        "name": name,
        "requests/s": len(seconds) / whole,
        "p50 ms": 1e3 * cuts[49],
        "p99 ms": 1e3 * cuts[98],
    }


async def _load(port: int, paths: list[str], clients: int) -> list[float]:
    async with asyncio.timeout(_MOST_SECONDS):
        found = await asyncio.gather(
            *(_asked(port, paths[number::clients], 0) for number in range(clients))
        )
    return [each for seconds, _ in found for each in seconds]


async def _asked(port: int, paths: Sequence[str], keep: int) -> tuple[list[float], str]:
    """Ask over one connection; give the seconds of each answer, and the last one if wanted."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    seconds, body = [], b""
    try:
        for path in paths:
            began = time.perf_counter()
            writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(length)
            seconds.append(time.perf_counter() - began)
            if not head.startswith(b"http/1.1 200"):
                raise UserError(f"{path} was answered {body[:200]!r}")
    finally:
        writer.close()
    return seconds, body.decode() if keep else ""


@contextmanager
def started(command: Sequence[str]) -> Iterator[int]:
    """Start a server that prints its URL; give its port, and end it."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = line.partition("http://127.0.0.1:")[2].partition(";")[0]
            if not found.strip().isdecimal():
                raise UserError(f"{json.dumps(command)[:300]} did not start")
            yield int(found)
        finally:
            process.terminate()


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        say(str(error))
        raise SystemExit(2) from None
