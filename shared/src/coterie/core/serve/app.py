"""The routes of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from coterie.core.serve.guard import HEALTH, METRICS, MISTAKE, Guard, Refused
from coterie.core.serve.limits import Limits, Token
from coterie.core.serve.lists import Answer, listed, listed_newcomer, unlisted
from coterie.core.serve.messages import (
    Batch,
    Health,
    Listed,
    ListedUser,
    Lists,
    NewUser,
    Refusal,
    Top,
)
from coterie.core.serve.opened import OpenedRun, State
from coterie.core.serve.page import page
from coterie.core.serve.together import Together

T = TypeVar("T")
_SAID = {
    400: "the request is malformed",
    401: "no token, or a wrong one",
    404: "no such user",
    409: "the run has no list for this user, and says why",
    413: "the body is too large",
    415: "the body is not JSON",
    422: "a value is out of its limits",
    429: "too many requests of one address",
    503: "busy, or too slow",
}


def make_app(run: OpenedRun, limits: Limits, token: Token | None = None) -> Guard:
    """Make the application that serves a run.

    Args:
        run: that is served.
        limits: what is taken.
        token: what whoever asks must know; None asks for none.
    """
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"model": Refusal, "description": why} for status, why in _SAID.items()
    }
    app = FastAPI(
        title="coterie serve",
        description="Recommendations of a trained run.",
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=refusals,
    )
    _add_lists(app, run, limits)
    _add_others(app, run)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(Exception, _mistake)  # it is raised again, to be logged
    return Guard(app, limits, run.metrics, token)


def _add_lists(app: FastAPI, run: OpenedRun, limits: Limits) -> None:
    together = Together(run)

    @app.get("/recommend/{user:path}", response_model=ListedUser)
    async def recommend(user: str, top: Top = 10) -> Response:
        """Recommend to a user of the run what they have not had."""
        _at_most("top", top, limits.top)
        return _json(await asyncio.wrap_future(together.ask(user, top)))

    @app.post("/recommend", response_model=Lists)
    async def recommend_to_many(asked: Batch) -> Response:
        """Recommend to several users of the run; a user without a list is told why."""
        _at_most("top", asked.top, limits.top)
        _at_most("the number of users", len(asked.users), limits.users)
        users = list(dict.fromkeys(asked.users))

        def lists(state: State) -> list[Answer]:
            found = zip(users, listed(state, users, asked.top), strict=True)
            return [
                unlisted(state, user, one) if isinstance(one, Refused) else one
                for user, one in found
            ]

        return _json({"lists": await _computed(run, lists)})

    @app.post("/new-user", response_model=Listed)
    async def recommend_to_new_user(asked: NewUser) -> Response:
        """Recommend to someone new by what they had; nothing of it is kept."""
        _at_most("top", asked.top, limits.top)
        longest = max(map(len, asked.history.values()))
        _at_most("the length of a history", longest, limits.history)
        return _json(await _computed(run, lambda state: listed_newcomer(state, asked)))


def _add_others(app: FastAPI, run: OpenedRun) -> None:
    @app.get(HEALTH)
    async def health() -> Health:
        """Say whether the server answers; needs no token."""
        return Health(status="ok", round=run.state.round)

    @app.get(METRICS, include_in_schema=False)
    async def metrics() -> Response:
        return Response(run.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return HTMLResponse(page(app.openapi()), headers=headers)


async def _computed(run: OpenedRun, work: Callable[[State], T]) -> T:
    return await asyncio.wrap_future(run.submit(work))


def _json(answer: Answer) -> Response:
    return Response(to_json(answer), media_type="application/json")


def _at_most(what: str, given: int, most: int) -> None:
    if given > most:
        raise Refused(422, f"{what} is at most {most:,}")


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    return JSONResponse({"error": str(error.detail)}, error.status_code, headers)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refused)
    return JSONResponse({"error": error.why}, error.status, error.headers)


async def _mistake(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": MISTAKE}, 500)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """Say which value is wrong, not what it is: it may be a part of somebody's history."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return JSONResponse({"error": "the body is no JSON"}, 400)
    where = ".".join(str(part)[:40] for part in first["loc"][:4])
    return JSONResponse({"error": f"{where}: {first['msg']}"[:300]}, 422)
