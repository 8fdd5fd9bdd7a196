"""The runs of a folder in a browser: a list that is live, comparisons, reports. It reads only.

It answers this machine alone. Requests with another machine's name are refused, so that no page of
the internet can read the runs by a name that it lets point here. No other origin is allowed, and a
page may load nothing but what stands in it.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import uvicorn
from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse

from coterie.core.errors import UserError
from coterie.core.looking.comparison import read_runs
from coterie.core.looking.report import rendered, report
from coterie.core.looking.shelf import Shelf, Signature, signed
from coterie.core.registry.papers import papers

ADDRESS = "127.0.0.1"
_NAMES = {ADDRESS, "localhost", "[::1]"}
_MOST_COMPARED = 100
_KEPT = 32  # pages
_FILES = (
    *("config.yaml", "summary.json", "about.json", "metrics.csv", "ledger.json"),
    *("clients.json", "clients.npz", "parties.json", "certificate.json", "attack.json"),
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def serve(folder: Path, port: int, tell: Callable[[str], None]) -> None:
    """Answer until Ctrl-C.

    Args:
        folder: of the runs.
        port: of this machine; 0 takes a free one.
        tell: is told where the page is.

    Raises:
        UserError: the port is taken.
    """
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((ADDRESS, port))
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise UserError(
                f"cannot listen on port {port} ({why}): choose another one by --port, 0 for any"
            ) from None
        listening.listen()
        papers()  # imported before anybody waits for a list
        made = app(folder)
        server = uvicorn.Server(
            uvicorn.Config(made, log_level="warning", access_log=False, lifespan="off")
        )
        with suppress(KeyboardInterrupt):  # before uvicorn listens to it, or raised again by it
            tell(f"Runs of {folder}: http://{ADDRESS}:{listening.getsockname()[1]} (Ctrl-C ends)")
            server.run(sockets=[listening])


def app(folder: Path) -> FastAPI:
    """The application; it holds nothing but what it has read of the folder."""
    made = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    pages = _Pages(Shelf(folder))
    made.middleware("http")(_guarded)
    made.exception_handler(UserError)(_refused)

    @made.get("/")
    def home(request: Request) -> HTMLResponse:
        nonce = request.state.nonce
        return HTMLResponse(rendered("list.html.j2", folder=str(folder), nonce=nonce))

    @made.get("/runs.json")
    def runs() -> JSONResponse:
        return JSONResponse(pages.rows())

    @made.get("/run/{number}")
    def run(number: str) -> HTMLResponse:
        return HTMLResponse(pages.page([number]))

    @made.get("/compare")
    def compare(run: Annotated[list[str], Query()] = []) -> HTMLResponse:  # noqa: B006
        return HTMLResponse(pages.page(run))

    return made


class _Pages:
    """Reports, each drawn again only where a file of its runs has changed."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._kept: dict[tuple[str, ...], tuple[list[Signature], str]] = {}
        self._lock = threading.Lock()

    def rows(self) -> list[dict[str, object]]:
        with self._lock:
            return self._shelf.rows()

    def page(self, numbers: list[str]) -> str:
        if not numbers:
            raise UserError("no run was chosen: tick some in the list")
        if len(numbers) > _MOST_COMPARED:
            raise UserError(f"more than {_MOST_COMPARED} runs were chosen: tick fewer")
        with self._lock:  # one page is drawn at a time
            paths = [self._path(number) for number in numbers]
            key, now = tuple(numbers), [signed(path, _FILES) for path in paths]
            kept = self._kept.get(key)
            if kept is None or kept[0] != now:
                kept = (now, report(read_runs(paths), listed=True))
                self._kept[key] = kept
                while len(self._kept) > _KEPT:
                    self._kept.pop(next(iter(self._kept)))
            return kept[1]

    def _path(self, number: str) -> Path:
        path = self._shelf.path(number)
        if path is None:
            self._shelf.rows()
            path = self._shelf.path(number)
        if path is None:
            raise UserError("there is no such run: look into the list again")
        return path


def _refused(request: Request, error: Exception) -> Response:
    text = " ".join(str(error).split())
    return HTMLResponse(rendered("refused.html.j2", text=text), status_code=404)


async def _guarded(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
    """Refuse what is not for this machine; say what a page may load."""
    host = request.headers.get("host", "").rsplit(":", 1)
    name = host[0] if len(host) == 1 or host[1].isdecimal() else ":".join(host)
    request.state.nonce = secrets.token_urlsafe(16)
    if name.lower() not in _NAMES:
        answer: Response = PlainTextResponse("this server answers its own machine alone", 403)
    else:
        answer = await call(request)
    policy = (
        f"default-src 'none'; script-src 'nonce-{request.state.nonce}'; "
        "style-src 'unsafe-inline'; connect-src 'self'; img-src data:; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    )
    answer.headers.update({**_HEADERS, "Content-Security-Policy": policy})
    return answer
