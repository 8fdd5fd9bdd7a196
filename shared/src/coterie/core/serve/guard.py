"""What stands before every request: who may ask, how much at a time, and what is written of it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from coterie.core.serve.limits import Limits, Rates, Token
from coterie.core.serve.metrics import Metrics

log = logging.getLogger("coterie.serve")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

HEALTH, METRICS = "/healthz", "/metrics"
MISTAKE = "the server has made a mistake"
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_OWN_NAMES = {"127.0.0.1", "localhost", "[::1]", "::1"}


class Refused(Exception):
    """A request that is not answered.

    Args:
        status: of HTTP.
        why: one line.
        headers: of the answer.
    """

    def __init__(self, status: int, why: str, **headers: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Guard:
    """An application behind limits, with one line of log for each answer.

    Neither the log nor the counts say who asked or what for: only the route's template.

    Args:
        app: an ASGI application.
        limits: what is taken.
        metrics: what is counted.
        token: what must be known; None asks for none, and then only for this machine's own names.
    """

    def __init__(self, app: App, limits: Limits, metrics: Metrics, token: Token | None) -> None:
        self.app, self.limits, self.metrics, self.token = app, limits, metrics, token
        self._rates = Rates(limits)
        self._in_flight = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), [0]

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
            await send(message)

        try:
            await self._answer(scope, receive, noted)
        except Refused as refused:
            if not status[0]:
                await _refuse(refused, noted)
        except Exception as error:
            # Neither its message nor a traceback: there may be somebody's history in them.
            log.error("internal error: %s at %s", type(error).__name__, _where(error))
            if not status[0]:
                await _refuse(Refused(500, MISTAKE), noted)
        self._count(scope, status[0], time.perf_counter() - began)

    async def _answer(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == HEALTH:
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        self._check(scope, headers)
        if path != METRICS and self._in_flight >= self.limits.in_flight:
            raise Refused(503, "the server is busy: come again", retry_after="1")
        self._in_flight += 1
        self.metrics.in_flight.set(self._in_flight)
        try:
            async with asyncio.timeout(self.limits.timeout):
                body = await self._body(headers, receive)
                if body:
                    _check_form(headers)
                await self.app(scope, _given(body, receive), send)
        except TimeoutError:
            why = f"it took longer than {self.limits.timeout:g} seconds: come again"
            raise Refused(503, why, retry_after="1") from None
        finally:
            self._in_flight -= 1
            self.metrics.in_flight.set(self._in_flight)

    def _check(self, scope: MutableMapping[str, Any], headers: dict[bytes, bytes]) -> None:
        address = (scope.get("client") or ("",))[0]
        if not self._rates.allow(address):
            raise Refused(429, "too many requests of one address: come again", retry_after="1")
        if self.token is not None and not self.token.opens(headers.get(b"authorization", b"")):
            raise Refused(
                401, "give the token: Authorization: Bearer TOKEN", www_authenticate="Bearer"
            )
        # A page of the web whose name leads to this machine is no user of it.
        host = headers.get(b"host", b"").decode("latin-1")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self.token is None and name not in _OWN_NAMES:
            raise Refused(400, "without a token ask by 127.0.0.1 or localhost")

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """Read the body, of a known length or not, up to what is taken."""
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:18]) > self.limits.body:
            raise self._too_large()
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "the request was cut short")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.limits.body:
                raise self._too_large()
            if not message.get("more_body"):
                return b"".join(parts)

    def _too_large(self) -> Refused:
        return Refused(413, f"a body has at most {self.limits.body:,} bytes", connection="close")

    def _count(self, scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other").replace(":path", "")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self.metrics.requests.labels(route, method, str(status)).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        log.info("%s %s %d %.1f ms", method, route, status, 1000 * seconds)


def _given(body: bytes, receive: Receive) -> Receive:
    """Give a body that was read; then whatever comes, which is that the client has gone."""
    left = [body]

    async def again() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return again


def _check_form(headers: dict[bytes, bytes]) -> None:
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise Refused(415, "a body is JSON: Content-Type: application/json")


async def _refuse(refused: Refused, send: Send) -> None:
    body = json.dumps({"error": refused.why}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    named = (headers | refused.headers).items()
    await send(
        {
            "type": "http.response.start",
            "status": refused.status,
            "headers": [(name.encode(), value.encode()) for name, value in named],
        }
    )
    await send({"type": "http.response.body", "body": body})


def _where(error: BaseException) -> str:
    """The place in the code that an error came from."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "an unknown place"
    return f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
