"""Split the backbone of a run: the client's half stays in it, the server's is reached by a channel.

One process plays all clients and the coordinator. The middle is in it as well, or, with
``--split.server``, in another process or on another machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from coterie.core.errors import UserError
from coterie.llm.adapter import Adapter
from coterie.llm.backbones.base import Backbone
from coterie.llm.settings.run import Settings
from coterie.llm.split.channel import Channel, LocalChannel
from coterie.llm.split.cut import Cut
from coterie.llm.split.remote.serving import cut_backbone, make_middle, rounds_to_keep
from coterie.llm.split.training import Limits


class MiddleRounds(Protocol):
    """What the coordinator asks of the middle, see `coterie.llm.split.middle.Middle`."""

    @property
    def round(self) -> int:
        """The last committed round; -1 before the first."""
        ...

    def begin(self, round: int) -> None:
        """Begin a round."""
        ...

    def trained(self, ids: Sequence[int]) -> Tensor:
        """Give what clients trained, ``(n, d)``."""
        ...

    def commit(self, round: int, rows: Tensor, ids: Sequence[int]) -> None:
        """End a round with the mixed rows ``(n, d)``."""
        ...

    def keep_best(self) -> None:
        """Keep the rows of the last round as the best."""
        ...

    def to_plain(self) -> dict[str, Any]:
        """Give what the run's checkpoint must hold."""
        ...

    def load_plain(self, plain: Mapping[str, Any]) -> None:
        """Restore it."""
        ...


@dataclass(frozen=True)
class Halves:
    """A backbone in two halves.

    Attributes:
        channel: from the clients to the middle; the backbone runs over it.
        rounds: the middle, as the coordinator sees it.
        start: ``(d,)`` what every client's part of the middle starts from.
    """

    channel: Channel
    rounds: MiddleRounds
    start: Tensor


def split_backbone(backbone: Backbone, settings: Settings) -> Halves | None:
    """Split a backbone as the settings say; None where they do not split it.

    Args:
        backbone: whole; left with the client's half.
        settings: with the reading's choices resolved.

    Raises:
        UserError: k is out of range, the backbone cannot be split, or no server answers.
    """
    split = settings.split
    if split.k is None:
        return None
    parts = cut_backbone(backbone, split.k, settings)
    assert parts.stack is not None
    start = Adapter(parts.stack.named_parameters()).row()
    if split.server is not None:
        return _remote(parts, settings, start)
    middle = make_middle(parts, settings, Limits(keep=rounds_to_keep(settings)))
    channel = LocalChannel(middle, split.wire)
    parts.connect(channel)
    return Halves(channel, middle, start)


def _remote(parts: Cut, settings: Settings, start: Tensor) -> Halves:
    from coterie.llm.split.remote.channel import GrpcChannel, GrpcRounds
    from coterie.llm.split.remote.link import Link, Tls
    from coterie.llm.split.remote.tokens import admin_token, client_token, read_secret

    split = settings.split
    if split.server is None or split.secret is None:
        raise UserError("--split.server needs --split.secret, the file that the server has written")
    secret = read_secret(Path(split.secret).expanduser())
    tls = Tls(_path(split.ca), _path(split.cert), _path(split.key)) if split.ca else None
    link = Link(split.server, tls=tls, deadline=split.deadline)
    channel = GrpcChannel(link, parts.model, lambda c: client_token(secret, c), split.wire)
    parts.connect(channel)
    parts.release()
    return Halves(channel, GrpcRounds(link, admin_token(secret), rounds_to_keep(settings)), start)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text).expanduser()
