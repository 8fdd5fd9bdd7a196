"""``coterie serve --run DIR``: recommendations of a run over HTTP."""

from __future__ import annotations

import argparse
import math
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from coterie.core.cli.command import Arguments, positive, say
from coterie.core.extras import require
from coterie.core.registry.papers import heavy
from coterie.core.run.runfolder import paper_of

_LIMITS = {
    "body": "bytes of a request's body",
    "users": "users of a batch",
    "history": "items of someone new",
    "top": "items of a list",
    "in_flight": "requests at a time",
    "burst": "requests of one address at once",
}


def run_serve(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    given = _arguments().parse_args(argv)
    require("serve", "coterie serve", "fastapi", "uvicorn", "prometheus_client")
    paper_of(given.run)
    from coterie.core.serve import limits

    token = limits.read_token(given.token_file)
    limits.check_address(given.host, token)
    wanted = {name: getattr(given, f"max_{name}") for name in _LIMITS}
    wanted |= {"rate": given.rate, "timeout": given.timeout}
    with limits.bound_socket(given.host, given.port) as taken:  # before anything heavy
        server = heavy("coterie.core.serve.server")
        how = server.Serving(
            token=token,
            limits=limits.Limits(**{name: value for name, value in wanted.items() if value}),
            watch=given.watch,
            behind_proxy=given.behind_proxy,
        )
        server.serve(given.run, taken, how, partial(_ready, _url(given.host, taken)))


def _arguments() -> Arguments:
    parser = Arguments("serve", "Serve recommendations of a trained run over HTTP.")
    parser.add_argument("--run", required=True, type=Path, help="folder of the run")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to serve at; another needs a token"
    )
    parser.add_argument("--port", type=_port, default=8000, help="0 takes any (default: 8000)")
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with the token that whoever asks must send; or $COTERIE_TOKEN",
    )
    parser.add_argument(
        "--watch", type=_seconds, default=2.0, help="seconds between looks for a newer round"
    )
    parser.add_argument(
        "--behind-proxy",
        action="store_true",
        help="a proxy on this machine says who asks (X-Forwarded-For)",
    )
    for name, what in _LIMITS.items():
        parser.add_argument(f"--max-{name.replace('_', '-')}", type=positive, help=f"most {what}")
    parser.add_argument("--rate", type=_seconds, help="requests a second of one address")
    parser.add_argument("--timeout", type=_seconds, help="seconds that a request may take")
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, not '{text}'")
    return int(text)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0.0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, not '{text}'")
    return found


def _ready(url: str, run: Any) -> None:
    state = run.state
    module = state.recommender.module
    say(f"Serving {run.folder} (round {state.round}) at {url}; docs at {url}/docs")
    sys.stderr.write(
        f"coterie: this process holds the private state of {len(module.store):,} clients, which "
        "stays with them in a real deployment: see docs/serving.md\n"
    )
    sys.stdout.flush()


def _url(host: str, taken: socket.socket) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{taken.getsockname()[1]}"
