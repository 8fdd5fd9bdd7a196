"""A server's life: its address, its signals, its end."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from coterie.core.serve.app import make_app
from coterie.core.serve.limits import Limits, Token
from coterie.core.serve.metrics import Metrics
from coterie.core.serve.opened import OpenedRun


@dataclass(frozen=True)
class Serving:
    """How a run is served.

    Attributes:
        token: what whoever asks must know; None serves this machine alone.
        limits: what is taken.
        watch: seconds between two looks for a newer state of the run.
        behind_proxy: whether a proxy on this machine says in X-Forwarded-For who asks.
    """

    token: Token | None = None
    limits: Limits = field(default_factory=Limits)
    watch: float = 2.0
    behind_proxy: bool = False


def serve(
    folder: Path, taken: socket.socket, how: Serving, ready: Callable[[OpenedRun], None]
) -> None:
    """Serve a run until the process is told to end, by Ctrl-C or SIGTERM.

    Requests that have begun are answered before it ends.

    Args:
        folder: of the run.
        taken: the address, see `coterie.core.serve.limits.bound_socket`.
        how: it is served.
        ready: called with the opened run before the first request.

    Raises:
        UserError: as `OpenedRun`.
    """
    run = OpenedRun(folder, Metrics())
    try:
        taken.listen()  # who reads that it serves may ask at once
        ready(run)
        run.watch(how.watch)
        _serve(run, how, taken)
    finally:
        run.close()


def _serve(run: OpenedRun, how: Serving, taken: socket.socket) -> None:
    app: Any = make_app(run, how.limits, how.token)
    config = uvicorn.Config(app, **settings_of(how))
    with _told_by_signals(), logged():
        uvicorn.Server(config).run(sockets=[taken])


def settings_of(how: Serving) -> dict[str, Any]:
    """Settings of uvicorn; a benchmark's bare server has the same.

    h11 is the parser that bounds a request's head.
    """
    return {
        "http": "h11",
        "ws": "none",
        "lifespan": "off",
        "log_config": None,
        "access_log": False,  # it would name users
        "server_header": False,
        "proxy_headers": how.behind_proxy,
        "forwarded_allow_ips": "127.0.0.1,::1",
        "limit_concurrency": how.limits.connections,
        "timeout_graceful_shutdown": round(how.limits.timeout) + 5,
    }


@contextmanager
def _told_by_signals() -> Iterator[None]:
    """Let uvicorn end by itself: it repeats a signal once it is done, which would kill."""
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.signal(each, lambda *_: None) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def logged() -> Iterator[None]:
    """Write what the server logs to standard error, a line each, without tracebacks."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(message)s"))
    own, other = logging.getLogger("coterie.serve"), logging.getLogger("uvicorn.error")
    own.setLevel(logging.INFO)
    other.setLevel(logging.WARNING)
    for each in (own, other):
        each.addHandler(handler)
        each.propagate = False
    try:
        yield
    finally:
        for each in (own, other):
            each.removeHandler(handler)
            each.propagate = True


class _OneLine(logging.Formatter):
    def formatException(self, ei: Any) -> str:  # logging's name
        return ""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(super().format(record).split())
