"""The server's part of a split model: frozen layers, and a trained row for every client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.llm.adapter import Adapter
from coterie.llm.split.context import Context
from coterie.llm.split.diverged import Diverged
from coterie.llm.split.execution import Execution
from coterie.llm.split.generations import ClientState, Generations, check_rows
from coterie.llm.split.sessions import Session, Sessions
from coterie.llm.split.stacks import Stack
from coterie.llm.split.state_folder import StateFolder
from coterie.llm.split.training import Limits, Training


class Middle:
    """Train and run the layers between the client's; one object serves all clients.

    The rows of the clients take the places of the trainable parameters call by call, so that calls
    of several clients may interleave.

    Args:
        stack: the layers. What is trained of them has ``requires_grad``; it is the common start.
        training: how.
        limits: of a client's use.
        folder: where committed rounds are kept; None for memory only. What is there is loaded.
        clock: seconds, for what expires.

    Raises:
        UserError: nothing in the layers is trainable, or the folder is of another model.
    """

    def __init__(
        self,
        stack: Stack,
        training: Training,
        *,
        limits: Limits | None = None,
        folder: StateFolder | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = limits or Limits()
        self._execution = Execution(stack, limits.tokens)
        self._training = training
        self._folder = folder
        self._sessions = Sessions(limits.ttl, limits.sessions, limits.pending, clock)
        self._generations = Generations(_master(self.adapter.row()), limits.keep)
        self._pending: dict[int, ClientState] = {}
        self._begun: int | None = None
        if folder is not None:
            folder.load(self._generations)

    @property
    def adapter(self) -> Adapter:
        """Names and shapes of what a row holds."""
        return self._execution.adapter

    @property
    def size(self) -> int:
        """d, trained numbers a client."""
        return self.adapter.size

    @property
    def round(self) -> int:
        """The last committed round; -1 before the first."""
        return self._generations.latest.round

    @property
    def keep(self) -> int:
        """Committed rounds that are kept."""
        return self._generations.keep

    @property
    def ttl(self) -> float:
        """Seconds after which an unused session is dropped."""
        return self._sessions.ttl

    # Sessions ------------------------------------------------------------------------------------

    def open(
        self,
        client: int,
        *,
        training: bool,
        which: Literal["current", "best"] = "current",
        key: Key | None = None,
    ) -> str:
        """Begin a session and name it.

        Args:
            client: its id, from 0.
            training: whether the row is trained: from its state before this round, even if the
                client has already trained in it and tries again.
            which: the row now (what was just trained, until it is mixed), or the best one.
            key: of dropout, a scalar.

        Raises:
            UserError: no round has begun, no best round was kept, or too many sessions are open.
        """
        if client < 0:
            raise UserError(f"client {client} is no client: ids count from 0")
        state = self._generations.state(client)
        if training:
            self._may_train(which)
            self._sessions.drop(client)
            self._pending.pop(client, None)
        elif which == "best":
            state = ClientState(self._generations.best(client))
        else:
            state = self._pending.get(client, state)
        row = state.row.detach().requires_grad_(training)
        session = Session(client, training, row, state.row, key, self._sessions.now())
        if training and self._training.keep_optimizer:
            session.optimizer = state.optimizer
        return self._sessions.add(session)

    def forward(self, session: str, hidden: Tensor, context: Context) -> tuple[Tensor, int]:
        """Run the layers.

        Args:
            session: its name.
            hidden: ``(B, T, h)``, of the model's number format or bfloat16.
            context: of these tokens.

        Returns:
            Hidden states in the format of ``hidden``, and the number of the call.

        Raises:
            UserError: the session is unknown, or too many calls await their gradient.
            ProtocolError: what came does not fit the layers or is not finite.
        """
        one = self._sessions.get(session)
        given, out = self._execution.run(one, hidden, context)
        one.calls += 1
        if out.requires_grad:
            self._sessions.hold(one, given, out)
        return out.detach().to(hidden.dtype), one.calls

    def backward(self, session: str, call: int, grad: Tensor) -> Tensor | None:
        """Take the gradient of a call's result: add that of the row, give that of the input.

        Args:
            session: its name.
            call: the number `forward` gave; its graph is used up.
            grad: ``(B, T, h)``.

        Returns:
            ``(B, T, h)`` in the format of ``grad``, or None if it was not wanted.

        Raises:
            UserError: the session is unknown, or the call is unknown, used up or expired.
            ProtocolError: the gradient is of another shape or not finite.
        """
        one = self._sessions.get(session)
        pending = one.pending.get(call)
        if pending is None:
            raise UserError(f"call {call} is unknown, used up or expired: run the step again")
        of_row, of_input = self._execution.differentiate(one.row, pending.hidden, pending.out, grad)
        del one.pending[call]
        if of_row is not None:
            one.gradient = of_row if one.gradient is None else one.gradient + of_row
        return None if of_input is None else of_input.to(grad.dtype)

    def step(self, session: str) -> None:
        """Make one optimizer step on the session's row.

        Raises:
            UserError: the session is unknown or does not train, or no gradient has come.
        """
        one = self._sessions.get(session)
        if not one.training or one.gradient is None:
            why = "has got no gradient since its last step" if one.training else "does not train"
            raise UserError(f"the session of client {one.client} {why}: nothing to step")
        how = self._training
        row = one.row.detach()
        grad = one.gradient + how.mu * (row - one.start) if how.mu else one.gradient
        params = {"row": row[None]}
        state = one.optimizer or how.optimizer.begin(params)
        new, one.optimizer = how.optimizer.step(
            params, {"row": grad[None]}, state, how.lr, clip=how.clip
        )
        one.row = new["row"][0].requires_grad_()
        one.gradient = None

    def close(self, session: str, *, keep: bool = True) -> None:
        """End a session; what it trained is pending until the round is committed.

        Args:
            session: its name.
            keep: False loses what was trained.

        Raises:
            UserError: the session is unknown.
            Diverged: its row, or what is kept of its optimizer, is not finite; both are lost.
        """
        one = self._sessions.remove(session)
        if not (keep and one.training):
            return
        kept = one.optimizer if self._training.keep_optimizer else None
        state = ClientState(one.row.detach(), kept)
        if not all(bool(torch.isfinite(leaf).all()) for _, leaf in tree.tensors(state)):
            raise Diverged(
                f"the middle of client {one.client} is not finite any more and is dropped: lower "
                "the learning rate"
            )
        self._pending[one.client] = state

    def expire(self) -> None:
        """Drop the sessions, and the calls without their gradient, that have waited too long."""
        self._sessions.expire()

    # Rounds --------------------------------------------------------------------------------------

    def begin(self, round: int) -> None:
        """Begin a round from the state after the one before it.

        If that is not the last one (the coordinator was killed before its own checkpoint), the
        later ones are taken back. What was trained and not committed is lost.

        Raises:
            UserError: the state after ``round - 1`` is not kept.
        """
        self._generations.rewind(round - 1)
        self._begun = round
        self._pending.clear()
        self._sessions.drop()

    def trained(self, ids: Sequence[int]) -> Tensor:
        """Give the rows ``(n, d)`` that these clients trained in this round.

        Raises:
            UserError: one of them has not finished.
        """
        missing = [client for client in ids if client not in self._pending]
        if missing:
            raise UserError(f"client {missing[0]} has not finished training in this round")
        rows = [self._pending[client].row for client in ids]
        return torch.stack(rows) if rows else self._generations.start.new_empty(0, self.size)

    def commit(self, round: int, rows: Tensor, ids: Sequence[int]) -> None:
        """End a round.

        A client that trained and is not named failed or was dropped: its row and the state of its
        optimizer are those before the round.

        Args:
            round: the one that has begun.
            rows: ``(n, d)`` the mixed rows.
            ids: whose.

        Raises:
            UserError: another round has begun, the rows do not fit, or the disk is full; nothing
                is changed.
        """
        self.check_begun(round)
        check_rows(rows, ids, self.size)
        start = self._generations.start
        kept = rows.detach().to(start.device, start.dtype)
        changed = {
            client: ClientState(row.clone(), self._optimizer_of(client))
            for client, row in zip(ids, kept, strict=True)
        }
        with self._saved():
            self._generations.append(round, changed)
        self._begun = None
        self._pending.clear()
        self._sessions.drop()

    def check_begun(self, round: int) -> None:
        """Raise a `UserError` unless this round has begun and has not ended."""
        if self._begun != round:
            raise UserError(f"round {round} has not begun on the server, which has {self._begun}")

    def keep_best(self) -> None:
        """Keep the rows of the last committed round as the best."""
        with self._saved():
            self._generations.keep_best()

    def row(self, client: int, which: Literal["current", "best"] = "current") -> Tensor:
        """Copy a client's committed row out, ``(d,)``."""
        if which == "best":
            return self._generations.best(client).clone()
        return self._generations.state(client).row.clone()

    def to_plain(self) -> dict[str, Any]:
        """Give the committed rounds as tensors and plain values, for the run's checkpoint."""
        return self._generations.to_plain()

    def load_plain(self, plain: Mapping[str, Any]) -> None:
        """Restore what `to_plain` gave.

        Raises:
            UserError: it is of a middle of another size.
        """
        self._generations.load_plain(plain)
        self._begun = None
        self._pending.clear()
        self._sessions.drop()

    # ---------------------------------------------------------------------------------------------

    def _may_train(self, which: str) -> None:
        if self._begun is None:
            raise UserError("no round has begun on the server: the coordinator begins it")
        if which != "current":
            raise UserError("the best adapter cannot be trained further: open the current one")

    def _optimizer_of(self, client: int) -> Any:
        state = self._pending.get(client) or self._generations.state(client)
        return state.optimizer if self._training.keep_optimizer else None

    @contextmanager
    def _saved(self) -> Iterator[None]:
        """Put what the block changes on disk, or take it back."""
        before = self._generations.all
        yield
        try:
            if self._folder is not None:
                self._folder.save(self._generations)
        except UserError:
            self._generations.all = before
            raise


def _master(row: Tensor) -> Tensor:
    """Rows are trained in at least float32, as sums of small steps vanish in bfloat16."""
    return row if row.dtype == torch.float64 else row.float()
