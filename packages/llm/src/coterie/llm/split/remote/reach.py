"""The connection that the settings of a split run name."""

from __future__ import annotations

from pathlib import Path

from coterie.core.errors import UserError
from coterie.llm.settings.backbone import SplitSettings
from coterie.llm.split.remote.link import Link, Tls
from coterie.llm.split.remote.tokens import read_secret


def answers(split: SplitSettings) -> None:
    """See that the split server is there, before anything is built.

    Raises:
        UserError: it does not answer within seconds, or an address or a certificate is none.
    """
    link = link_to(split)
    link.connect()
    link.close()


def secret_of(split: SplitSettings) -> str:
    """Read the secret from which tokens follow.

    Raises:
        UserError: there is none.
    """
    if split.secret is None:
        raise UserError("--split.server needs --split.secret, the file that the server has written")
    return read_secret(Path(split.secret).expanduser())


def link_to(split: SplitSettings) -> Link:
    """Connect to the split server that the settings name.

    Raises:
        UserError: the address or a certificate is none.
    """
    if split.server is None:
        raise UserError("clients that run apart reach the server's layers by --split.server only")
    tls = Tls(_path(split.ca), _path(split.cert), _path(split.key)) if split.ca else None
    return Link(split.server, tls=tls, deadline=split.deadline)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text).expanduser()
