"""``coterie llm client``: one organisation, in a process and on a machine of its own."""

from __future__ import annotations

import sys
from argparse import SUPPRESS
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

from coterie.core.cli.command import Arguments
from coterie.core.errors import UserError

ABOUT = (
    "Run the client half of one organisation, or of some that share a machine, from their own "
    "folder: card, data, keys and private state, backbone, and for a split model their token. It "
    "answers requests that the coordinator writes to its standard input, on standard output, as "
    "`python -m coterie.core.engines.worker` does, such as through ssh; nothing else leaves but "
    "what the split server gets. It knows neither the server's secret nor the coordinator's token."
)

_OWN = {
    "server": "host:port of the split server (default: the card's)",
    "ca": "certificate that the server's must follow from (PEM)",
    "cert": "certificate of this side, if the server demands one (PEM)",
    "key": "its key (PEM)",
}
"""Settings of the split that each side has its own of."""


def run(argv: Sequence[str]) -> None:
    """Run the command until standard input ends.

    Raises:
        UserError: the folder is not complete, or the split server cannot be reached.
    """
    parser = Arguments("llm client", ABOUT)
    parser.add_argument("--folder", type=Path, required=True, help="the clients' own")
    for name, text in _OWN.items():
        parser.add_argument(f"--split.{name}", dest=name, help=text)
        parser.add_argument(f"--{name}", dest=name, default=SUPPRESS, help=SUPPRESS)
    given = parser.parse_args(list(argv))
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    with redirect_stdout(sys.stderr):  # for people; replies are for the coordinator
        import_module("coterie.core.engines.worker").serve([_service(given)], requests, replies)


def _service(given: Any) -> Any:
    # Torch only where it is needed: --help does not wait for it.
    from dataclasses import replace

    from coterie.core.engines.folder import ClientFolder
    from coterie.core.engines.worker import Service
    from coterie.llm.client import make_client, organisation
    from coterie.llm.readings import resolve
    from coterie.llm.settings import Settings

    card = ClientFolder(given.folder).card
    if card.paper != "pplr":
        raise UserError(f"{given.folder} is a client's of {card.paper}, not of pplr")
    settings: Settings = resolve(card.read(Settings))
    own = {name: getattr(given, name) for name in _OWN}
    own = {name: value for name, value in own.items() if value is not None}
    if settings.split.k is None:
        if own:
            raise UserError(
                "--split.server, --split.ca, --split.cert and --split.key are for a split model; "
                "the card's is not"
            )
        return Service(given.folder, make_client(card, given.folder))
    # Files that the card names are on the coordinator's machine.
    plain = replace(settings.split, ca=None, cert=None, key=None, secret=None)
    settings = replace(settings, split=replace(plain, **own))
    return Service(given.folder, organisation(settings, card, given.folder))
