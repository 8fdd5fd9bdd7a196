"""The middle in another process or on another machine, for clients and for the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.llm.split.channel import Channel, Which
from coterie.llm.split.context import Context
from coterie.llm.split.remote.link import Link
from coterie.llm.split.remote.messages import (
    Activation,
    AskStatus,
    Backward,
    Begin,
    Close,
    Commit,
    Done,
    Forward,
    Gradient,
    KeepBest,
    Mixed,
    Open,
    Opened,
    Rows,
    Status,
    Step,
    Trained,
)
from coterie.llm.split.remote.partial_rows import parts


class GrpcChannel(Channel):
    """To a middle behind gRPC.

    Args:
        link: to the server.
        model: fingerprint of the model, `coterie.llm.split.cut.Cut.model`.
        token: gives the token of a client; a real client knows its own only.
        wire: as in `Channel`.
    """

    def __init__(
        self, link: Link, model: str, token: Callable[[int], str], wire: str | None = None
    ) -> None:
        super().__init__(wire)
        self._link, self._model, self._token = link, model, token
        self._session: str | None = None

    def open(
        self, client: int, *, training: bool, which: Which = "current", key: Key | None = None
    ) -> None:
        """Begin a session; see `Channel.open`."""
        if self._session is not None:
            with suppress(UserError):  # it may have expired
                self.close(keep=False)
        seed = None if key is None else int(key.state)
        request = Open(client, training, which, seed, self._model)
        self._session = self._link.call(request, Opened, token=self._token(client)).session

    def step(self) -> None:
        """Let the middle make one optimizer step."""
        self._link.call(Step(), Done, session=self._current())

    def close(self, *, keep: bool = True) -> None:
        """End the session."""
        session, self._session = self._current(), None
        self._link.call(Close(keep), Done, session=session)

    def _forward(self, hidden: Tensor, context: Context) -> tuple[Tensor, int]:
        answer = self._link.call(Forward(hidden, context), Activation, session=self._current())
        _same_form("activation", answer.hidden, hidden)
        return answer.hidden, answer.call

    def _backward(self, call: int, grad: Tensor) -> Tensor | None:
        answer = self._link.call(Backward(call, grad), Gradient, session=self._current())
        if answer.gradient is not None:
            _same_form("gradient", answer.gradient, grad)
        return answer.gradient

    def _current(self) -> str:
        if self._session is None:
            raise UserError("no session is open: open one for the client first")
        return self._session


class GrpcRounds:
    """The coordinator's side of a middle behind gRPC: rounds as in `Middle`.

    Rows of many clients cross in parts, as a message has a largest size.

    Args:
        link: to the server.
        token: of the coordinator.
        keep: committed rounds that the server must keep.
    """

    def __init__(self, link: Link, token: str, keep: int = 2) -> None:
        self._link, self._token, self._keep = link, token, keep

    @property
    def round(self) -> int:
        """The last committed round; -1 before the first."""
        return self.status().round

    @property
    def size(self) -> int:
        """d, trained numbers a client."""
        return self.status().size

    def status(self) -> Status:
        """Ask where the server stands."""
        return self._link.call(AskStatus(), Status, token=self._token)

    def begin(self, round: int) -> None:
        """Begin a round; see `Middle.begin`.

        Raises:
            UserError: the server keeps too few rounds to go on after a kill at any moment.
        """
        kept = self.status().keep
        if kept < self._keep:
            raise UserError(
                f"the split server keeps {kept} rounds (--keep), but this run, with its "
                f"--run.checkpoint_every, may have to go back {self._keep - 1}: start the server "
                f"with --keep {self._keep}"
            )
        self._link.call(Begin(round), Done, token=self._token)

    def trained(self, ids: Sequence[int]) -> Tensor:
        """Get the rows ``(n, d)`` that clients trained; see `Middle.trained`."""
        status, found = self.status(), None
        for clients, columns in parts(len(ids), status.size, self._most(status)):
            request = Trained(_ids(ids[clients]), columns.start, columns.stop)
            rows = self._link.call(request, Rows, token=self._token).rows
            found = rows.new_empty(len(ids), status.size) if found is None else found
            _same_form("part of the rows", rows, found[clients, columns])
            found[clients, columns] = rows
        return torch.empty(0, status.size) if found is None else found

    def commit(self, round: int, rows: Tensor, ids: Sequence[int]) -> None:
        """End a round; see `Middle.commit`. The server has it on its disk when this returns.

        Until the last message, which has no rows, the server is at the round before.
        """
        for clients, columns in parts(len(ids), rows.shape[1], self._most(self.status())):
            part = Mixed(round, rows[clients, columns], _ids(ids[clients]), columns.start)
            self._link.call(part, Done, token=self._token)
        self._link.call(Commit(round, _ids(ids)), Done, token=self._token)

    def keep_best(self) -> None:
        """Keep the rows of the last committed round as the best."""
        self._link.call(KeepBest(), Done, token=self._token)

    def to_plain(self) -> dict[str, Any]:
        """Give nothing: the server keeps its own checkpoint."""
        return {}

    def load_plain(self, plain: Mapping[str, Any]) -> None:
        """Do nothing: `begin` brings the server to the right round."""

    def _most(self, status: Status) -> int:
        """Bytes of a message that both sides take."""
        return min(self._link.max_bytes, status.max_bytes)


def _ids(ids: Sequence[int]) -> Tensor:
    return torch.tensor(list(ids), dtype=torch.int64)


def _same_form(what: str, given: Tensor, like: Tensor) -> None:
    if given.shape != like.shape or given.dtype != like.dtype:
        raise UserError(
            f"the split server sent an {what} of {given.dtype} {tuple(given.shape)}, expected "
            f"{like.dtype} {tuple(like.shape)}"
        )
