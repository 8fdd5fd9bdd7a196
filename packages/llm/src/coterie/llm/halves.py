"""Split the backbone of a run: the client's half stays in it, the server's is reached by a channel.

One process plays all clients and the coordinator. The middle is in it as well, or, with
``--split.server``, in another process or on another machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.core.errors import UserError
from coterie.core.files import sha256
from coterie.core.registry.data_sets import data_sets, default_core
from coterie.core.settings.schema import values_of
from coterie.llm.adapter import Adapter
from coterie.llm.backbone_settings import SplitSettings
from coterie.llm.backbones.base import Backbone
from coterie.llm.settings import FederatedDataSettings, Settings
from coterie.llm.split.channel import Channel, Traffic
from coterie.llm.split.cut import Cut, cut
from coterie.llm.split.kept_parts import OwnLayers
from coterie.llm.split.middle import Middle, Training
from coterie.llm.split.part import ServerLayers
from coterie.llm.split.sessions import Limits

if TYPE_CHECKING:
    from coterie.llm.split.remote.link import Link

_SHARED = ("model.", "expert.", "pretrain.", "lora.")  # sections both sides must agree on
# Of the data: what decides which examples the backbone is pre-trained on, and how they are read.
_PUBLIC = ("columns", "min_rating", "public", "max_history", "min_history", "span", "stride")


@dataclass(frozen=True)
class Halves:
    """A backbone in two halves.

    Attributes:
        channel: from the clients to the middle; the backbone runs over it.
        layers: the middle as the coordinator sees it.
        size: numbers of a client's adapter that are the middle's.
        said: bytes between coordinator and middle; None where both are in this process.
    """

    channel: Channel
    layers: ServerLayers
    size: int
    said: Traffic | None = None


def split_backbone(backbone: Backbone, settings: Settings) -> Halves:
    """Split a backbone as the settings say, and leave the client's half in it.

    Raises:
        UserError: k is out of range, the backbone cannot be split, or no server answers.
    """
    split = settings.split
    if split.k is None:
        raise UserError("'split.k' is missing, the number of the client's layers")
    parts = cut_backbone(backbone, split.k, settings)
    assert parts.stack is not None
    size = Adapter(parts.stack.named_parameters(), may_be_empty=True).size
    if split.server is not None:
        return _remote(parts, settings, size)
    middle = make_middle(parts, settings)
    channel = Channel(middle, split.wire)
    parts.connect(channel)
    kept = settings.train.keep_optimizer
    return Halves(channel, OwnLayers(middle, settings.data.clients, optimizer=kept), size)


def cut_backbone(backbone: Backbone, k: int, settings: Settings) -> Cut:
    """Cut a backbone in two, as `coterie.llm.split.cut.cut`, with the settings' agreement.

    Raises:
        UserError: k is out of range, or the layers are of a kind that cannot be split.
    """
    return cut(backbone, k, settings=agreement(settings))


def make_middle(parts: Cut, settings: Settings, limits: Limits | None = None) -> Middle:
    """Make the server's half of a backbone that is cut.

    Raises:
        UserError: the middle is not here.
    """
    if parts.stack is None:
        raise UserError("the middle is not here: it is the server's")
    return Middle(parts.stack, training_of(settings), limits=limits)


def training_of(settings: Settings) -> Training:
    """Give the way the middle is trained: as the client trains its own part."""
    mu = settings.train.mu if settings.method == "fedprox" else 0.0
    return Training(settings.train.lr, mu=mu)


def agreement(settings: Settings) -> str:
    """Write down what client and server must agree on, for `coterie.llm.split.cut.cut`."""
    how = training_of(settings)
    shared = {n: v for n, v in values_of(settings).items() if n.startswith(_SHARED)}
    shared |= {"seed": settings.seed, "dtype": settings.engine.dtype}
    shared |= {"data": _public_data(settings.data), "lr": how.lr, "mu": how.mu}
    shared |= {"on_inputs": settings.train.on_inputs}
    return json.dumps(shared, sort_keys=True, default=str)


def client_half(backbone: Backbone, settings: Settings, tokens: Path) -> Channel:
    """Leave a client's half in a backbone, and give its way to the split server.

    It knows the tokens in a file of its own, neither the server's secret nor the coordinator's.

    Raises:
        UserError: as `split_backbone`, or the file is missing.
    """
    from coterie.llm.split.remote.channel import link_to
    from coterie.llm.split.remote.tokens import read_tokens

    split = settings.split
    assert split.k is not None
    parts, link = cut_backbone(backbone, split.k, settings), link_to(split)
    return _connected(parts, split, link, read_tokens(tokens))


def _connected(
    parts: Cut, split: SplitSettings, link: Link, token: Callable[[int], str]
) -> Channel:
    from coterie.llm.split.remote.channel import GrpcSessions

    channel = Channel(GrpcSessions(link, parts.model, token), split.wire)
    parts.connect(channel)
    parts.release()
    return channel


def _remote(parts: Cut, settings: Settings, size: int) -> Halves:
    from coterie.llm.split.remote.channel import GrpcLayers, link_to, secret_of
    from coterie.llm.split.remote.tokens import admin_token, client_token

    split = settings.split
    secret = secret_of(split)
    link = link_to(split)
    channel = _connected(parts, split, link, lambda client: client_token(secret, client))
    clients, kept = settings.data.clients, settings.train.keep_optimizer
    layers = GrpcLayers(link, parts.model, admin_token(secret), clients, optimizer=kept)
    return Halves(channel, layers, size, layers.said)


def _public_data(data: FederatedDataSettings) -> dict[str, Any]:
    """Describe the public slice: the same wherever the data lie, another if it is another."""
    least = default_core(data.name) if data.min_interactions is None else data.min_interactions
    chosen = {name: getattr(data, name) for name in _PUBLIC}
    return {"source": _source(data.name), "min_interactions": least, **chosen}


def _source(name: str) -> str:
    """A known name, or for a file of the user's own the digest of what is in it."""
    path = Path(name).expanduser()
    if name in data_sets() or not path.is_file():
        return name
    return sha256(path)
