"""The middle in another process or on another machine, for clients and for the coordinator."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.wire.codec import Header, ProtocolError, decode, encode
from coterie.llm.split.channel import Traffic
from coterie.llm.split.context import Context
from coterie.llm.split.part import Part
from coterie.llm.split.remote import messages
from coterie.llm.split.remote.link import Link


class GrpcSessions:
    """The clients' side of a middle behind gRPC: `coterie.llm.split.channel.Served`.

    Args:
        link: to the server.
        model: its fingerprint, `coterie.llm.split.cut.Cut.model`.
        token: gives the token of a client; a real client knows its own only.
    """

    def __init__(self, link: Link, model: str, token: Callable[[int], str]) -> None:
        self._link, self._model, self._token = link, model, token

    def open(self, client: int, *, training: bool, key: Key | None = None) -> str:
        """Begin a session; see `Middle.open`."""
        seed = None if key is None else int(key.state)
        request = messages.Open(client, training, seed, self._model)
        return self._link.call(request, messages.Opened, token=self._token(client)).session

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


class GrpcMiddle:
    """The coordinator's side of a middle behind gRPC: `coterie.llm.split.part.Borrower`.

    It counts the bytes of the parts as ``traffic``, "down" to the middle and "up" from it.
    """

    def __init__(self, link: Link, model: str, token: str) -> None:
        self.traffic = Traffic()
        self._link, self._model, self._token = link, model, token

    def clear(self) -> None:
        """Forget all that was lent and trained; see `Middle.clear`."""
        self._link.call(messages.Clear(self._model), messages.Done, token=self._token)

    def lend(self, client: int, part: Part) -> None:
        """Lend one client's part; see `Middle.lend`."""
        data = encode(part, Header("lend", (), client))
        self._link.stream(messages.LEND, data, token=self._token)
        self.traffic.count("down", "rows", len(data))

    def trained(self, client: int) -> Part:
        """Give back what a client's session made of it; see `Middle.trained`."""
        asked = encode(messages.Trained(client), Header("Trained", ()))
        data = self._link.stream("Trained", asked, token=self._token)
        self.traffic.count("up", "rows", len(data))
        try:
            return decode(data, Part, max_bytes=len(data))[0]
        except ProtocolError as error:
            raise UserError(f"the split server sent a part that is none: {error}") from None


def _same_form(what: str, given: Tensor, like: Tensor) -> None:
    if given.shape != like.shape or given.dtype != like.dtype:
        raise UserError(
            f"the split server sent an {what} of {given.dtype} {tuple(given.shape)}, expected "
            f"{like.dtype} {tuple(like.shape)}"
        )
