"""The middle in another process or on another machine, for clients and for the coordinator."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.llm.backbone_settings import SplitSettings
from coterie.llm.mixing import Mixing
from coterie.llm.split.channel import Context, Opening, Traffic
from coterie.llm.split.part import Kept
from coterie.llm.split.remote import messages
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


M = TypeVar("M")


class GrpcSessions:
    """The clients' side of a middle behind gRPC: `coterie.llm.split.channel.Served`.

    Args:
        link: to the server.
        model: its fingerprint, `coterie.llm.split.cut.Cut.model`.
        token: gives the token of a client; a real client knows its own only.
    """

    def __init__(self, link: Link, model: str, token: Callable[[int], str]) -> None:
        self._link, self._model, self._token = link, model, token

    def open(self, client: int, *, training: bool, key: Key | None = None) -> Opening:
        """Begin a session; see `Middle.open`."""
        seed = None if key is None else int(key.state)
        request, token = messages.Open(training, seed, self._model), self._token(client)
        opened = self._link.call(request, messages.Opened, token=token, client=client)
        return Opening(opened.session, opened.part)

    def forward(self, session: str, hidden: Tensor, context: Context) -> tuple[Tensor, int]:
        """Run the layers; see `Middle.forward`."""
        sent = messages.Forward(hidden, context)
        answer = self._link.call(sent, messages.Activation, session=session)
        _same_form("activation", answer.hidden, hidden)
        return answer.hidden, answer.call

    def backward(self, session: str, call: int, grad: Tensor) -> Tensor | None:
        """Take and give gradients; see `Middle.backward`."""
        sent = messages.Backward(call, grad)
        answer = self._link.call(sent, messages.Gradient, session=session)
        if answer.gradient is not None:
            _same_form("gradient", answer.gradient, grad)
        return answer.gradient

    def step(self, session: str) -> None:
        """Make one optimizer step; see `Middle.step`."""
        self._link.call(messages.Step(), messages.Done, session=session)

    def close(self, session: str, *, keep: bool = True) -> None:
        """End a session; see `Middle.close`."""
        self._link.call(messages.Close(keep), messages.Done, session=session)


class GrpcLayers:
    """The coordinator's side of a middle behind gRPC: `coterie.llm.split.part.ServerLayers`.

    Args:
        link: to the server.
        model: its fingerprint.
        token: of the coordinator.
        clients: K.
        optimizer: whether its state is kept from round to round.

    Attributes:
        said: bytes to the server, "down", and from it.
    """

    def __init__(
        self, link: Link, model: str, token: str, clients: int, *, optimizer: bool
    ) -> None:
        self.said = Traffic()
        self._link, self._model, self._token = link, model, token
        self._clients, self._optimizer = clients, optimizer
        self._used: Kept | None = None  # the server drops it only when it stops, which is noticed

    def begin(self) -> Kept:
        """Name a new run; the server makes its start by itself."""
        return Kept(run=secrets.token_hex(8))

    def use(self, kept: Kept) -> None:
        """Name what the next sessions start from, unless it is in use."""
        if kept == self._used:
            return
        clients, optimizer = self._clients, self._optimizer
        asked = messages.Use(self._model, kept.run, kept.number, clients, optimizer, kept.anew)
        self._say(asked, messages.Done, "version")
        self._used = kept

    def gram(self, ids: Tensor, changes: bool) -> Tensor:
        """Ask for inner products."""
        found = self._say(messages.Gram(ids, changes), messages.Products, "gram").gram
        if found.shape != (len(ids), len(ids)) or found.dtype != torch.float64:
            raise UserError("the split server sent inner products of another form")
        return found

    def mix(self, kept: Kept, how: Mixing, number: int, *, floor: int, best: int) -> Kept:
        """Send the weights."""
        self._say(messages.Mix(how, number, floor, best), messages.Done, "weights")
        self._used = replace(kept, number=number, anew=False)
        return self._used

    def anew(self, kept: Kept) -> Kept:
        """The same, to be used with a new optimizer."""
        return replace(kept, anew=True)

    def _say(self, message: Any, answer: type[M], field: str) -> M:
        def count(sent: int, got: int) -> None:
            self.said.count("down", field, sent)
            self.said.count("up", field, got)

        try:
            return self._link.call(message, answer, token=self._token, count=count)
        except UserError:
            self._used = None
            raise


def _same_form(what: str, given: Tensor, like: Tensor) -> None:
    if given.shape != like.shape or given.dtype != like.dtype:
        raise UserError(
            f"the split server sent an {what} of {given.dtype} {tuple(given.shape)}, expected "
            f"{like.dtype} {tuple(like.shape)}"
        )
