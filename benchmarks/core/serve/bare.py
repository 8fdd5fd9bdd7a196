"""A server whose one handler returns a constant: what FastAPI and uvicorn cost by themselves."""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI, Response

from coterie.core.cli.command import say
from coterie.core.serve.limits import bound_socket
from coterie.core.serve.server import Serving, settings_of


def main(answer: str) -> None:
    """Serve an answer until the process is ended."""
    app = FastAPI()

    @app.get("/")
    async def constant() -> Response:
        return Response(answer, media_type="application/json")

    with bound_socket("127.0.0.1", 0) as taken:
        taken.listen()
        say(f"http://127.0.0.1:{taken.getsockname()[1]};")
        sys.stdout.flush()
        uvicorn.Server(uvicorn.Config(app, **settings_of(Serving()))).run(sockets=[taken])


if __name__ == "__main__":
    main(sys.argv[1])
