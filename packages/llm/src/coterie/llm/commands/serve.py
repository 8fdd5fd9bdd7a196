"""``coterie llm serve``: hold and train the middle layers for clients in other processes."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.core.cli.command import Arguments, positive, say
from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper, load
from coterie.core.settings.configuration import configure

ABOUT = (
    "Serve the layers between the client's: train, mix and keep every client's adapter of them. "
    "Give the settings of `coterie train pplr`, the same as the clients'."
)


def run(argv: Sequence[str]) -> None:
    """Run the command until it is interrupted.

    Raises:
        UserError: an argument or a setting is bad, or the address cannot be listened at.
    """
    given, flags = _parser().parse_known_args(list(argv))
    paper = find_paper("llm")
    settings = configure(paper, flags).settings
    _check_tls(given)
    out = settings.run.folder
    secret = given.secret or out / "pplr" / "server" / "secret"
    state = given.state or out / "pplr" / "server" / "kept"
    server = _server(given, load(paper.experiment)(settings), secret, state)
    signal.signal(signal.SIGTERM, _stop)
    server.start()
    say(f"serving layers {given.layers[0]}:{given.layers[1]} at {server.address}")
    sys.stdout.flush()
    try:
        server.wait()
    except KeyboardInterrupt:
        server.stop()
        say("stopped")


def _parser() -> Arguments:
    parser = Arguments("llm serve", ABOUT)
    parser.add_argument(
        "--layers", type=parse_layers, required=True, metavar="K:N-1", help="the server's, as 2:7"
    )
    parser.add_argument("--host", default="127.0.0.1", help="to listen at (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=50551, help="default: %(default)s; 0: any")
    parser.add_argument("--cert", type=Path, help="certificate of the server (PEM)")
    parser.add_argument("--key", type=Path, help="its key (PEM)")
    parser.add_argument("--client-ca", type=Path, help="demand client certificates that follow")
    parser.add_argument(
        "--secret", type=Path, help="tokens follow from it (default: OUT/pplr/server/secret)"
    )
    parser.add_argument(
        "--state", type=Path, help="where adapters are kept (default: OUT/pplr/server/kept)"
    )
    parser.add_argument("--max-mib", type=positive, default=256, help="largest message")
    parser.add_argument("--ttl", type=positive, default=600, help="seconds until a client is gone")
    return parser


def parse_layers(text: str) -> tuple[int, int]:
    """Read which layers the server has, as ``k:N-1``.

    Raises:
        UserError: it is no such range.

    Example:
        >>> parse_layers("2:7")
        (2, 7)
    """
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if not found or int(found[1]) >= int(found[2]):
        raise UserError(
            f"--layers '{text}' is no range: write the first layer of the server and the one after "
            "its last, from 0, as 2:7"
        )
    return int(found[1]), int(found[2])


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise UserError(f"--port '{text}' is no port: 0 to 65535")
    return int(text)


def _check_tls(given: Any) -> None:
    """Refuse at once what would otherwise be seen after the backbone is built."""
    if given.client_ca and not given.cert:
        raise UserError("--client-ca needs the server's own --cert and --key")
    if (given.cert is None) != (given.key is None):
        raise UserError("--cert and --key belong together: give both or none")


def _server(given: Any, experiment: Any, secret: Path, state: Path) -> Any:
    # Torch and grpc only where they are needed: --help does not wait for them.
    import torch

    from coterie.llm.halves import cut_backbone, make_middle
    from coterie.llm.split.remote.link import Tls
    from coterie.llm.split.remote.server import MiddleServer
    from coterie.llm.split.remote.tokens import make_secret
    from coterie.llm.split.sessions import Limits

    settings = experiment.settings
    tls = Tls(given.client_ca, given.cert, given.key) if given.cert else None
    if tls is not None:
        tls.read()
    torch.set_num_threads(settings.engine.threads)
    first, end = given.layers
    last = len(experiment.backbone.layers) - 1
    if end != last or first < 1:  # the client keeps some lower layers and exactly the last one
        remedy = f"as {min(max(first, 1), last - 1)}:{last}" if last > 1 else "with more layers"
        raise UserError(
            f"--layers {first}:{end} does not fit a model of {last + 1} layers, of which the "
            f"client keeps the lowest and the last: serve it {remedy}"
        )
    parts = cut_backbone(experiment.backbone, first, settings)
    return MiddleServer(
        make_middle(parts, settings, Limits(ttl=float(given.ttl))),
        parts.model,
        make_secret(secret),
        state,
        f"{given.host}:{given.port}",
        tls=tls,
        max_bytes=given.max_mib << 20,
    )


def _stop(*_: object) -> None:
    raise KeyboardInterrupt
