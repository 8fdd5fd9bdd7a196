"""The server's part of a split model: frozen layers, and in a session the row of a client."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.local_training.row_optimizer import RowAdam, RowOptimizer
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.llm.adapter import Adapter
from coterie.llm.split.context import Context, Diverged
from coterie.llm.split.execution import Execution
from coterie.llm.split.part import Part
from coterie.llm.split.sessions import Limits, Session, Sessions
from coterie.llm.split.stacks import Stack


@dataclass(frozen=True)
class Training:
    """How the rows are trained; the same as on the client.

    Attributes:
        lr: learning rate.
        optimizer: one step a call of `Middle.step`.
        mu: FedProx, pull to the row at the start of the session.
    """

    lr: float
    optimizer: RowOptimizer = field(default_factory=RowAdam)
    mu: float = 0.0


class Middle:
    """Train and run the layers between the client's; one object serves all clients.

    The rows of the clients take the places of the trainable parameters call by call, so that calls
    of several clients may interleave. A row is lent for a session, and what the session made of it
    given back: nothing outlasts the next `clear`.

    Args:
        stack: the layers. What is trained of them has ``requires_grad``.
        training: how.
        limits: of a client's use.
        clock: seconds, for what expires.

    Raises:
        UserError: nothing in the layers is trainable.
    """

    def __init__(
        self,
        stack: Stack,
        training: Training,
        *,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = limits or Limits()
        self._execution = Execution(stack, limits.tokens)
        self._training = training
        self._sessions = Sessions(limits, clock)
        self._like = master(self.adapter.row())
        self._lent: dict[int, Part] = {}
        self._trained: dict[int, Part] = {}

    @property
    def adapter(self) -> Adapter:
        """Names and shapes of what a row holds."""
        return self._execution.adapter

    @property
    def size(self) -> int:
        """d, trained numbers a client."""
        return self.adapter.size

    @property
    def ttl(self) -> float:
        """Seconds after which an unused session is dropped."""
        return self._sessions.limits.ttl

    def clear(self) -> None:
        """Forget all that was lent and trained, and drop the sessions that train."""
        self._lent.clear()
        self._trained.clear()
        self._sessions.drop()

    def lend(self, client: int, part: Part) -> None:
        """Lend what a client's next sessions start from, n = 1; what it trained before is lost.

        With an optimizer, what is given back has one too.

        Raises:
            UserError: it does not fit, or is not finite; nothing is changed.
        """
        if client < 0:
            raise UserError(f"client {client} is no client: ids count from 0")
        shapes = {tuple(leaf.shape) for name, leaf in tree.tensors(part) if "steps" not in name}
        if shapes != {(1, self.size)}:
            raise UserError(
                f"rows of the middle are {sorted(shapes)}, expected {(1, self.size)}: use the "
                "backbone and LoRA settings of the server"
            )
        if not _finite(part):
            raise UserError("rows of the middle are not finite: lower the learning rate")
        self._sessions.drop(client)
        self._trained.pop(client, None)
        moved = tree.map_tensors(lambda leaf: leaf.detach().to(self._like.device), part)
        self._lent[client] = replace(moved, rows=moved.rows.to(self._like.dtype))

    def trained(self, client: int) -> Part:
        """Give what a client's session made of the part lent, n = 1.

        Raises:
            UserError: it has not finished.
        """
        if client not in self._trained:
            raise UserError(f"client {client} has not finished training since its part was lent")
        return self._trained[client]

    def open(self, client: int, *, training: bool, key: Key | None = None) -> str:
        """Begin a session of a client and name it; ``key``, a scalar, is that of dropout.

        A row that is trained starts from the one lent, even if the client has already trained in it
        and tries again.

        Raises:
            UserError: nothing was lent for the client, or too many sessions are open.
        """
        lent = self._lent.get(client)
        if lent is None:
            raise UserError(
                f"nothing is lent to the server for client {client} (has it been restarted?): the "
                "coordinator lends before it asks, run again with --resume"
            )
        if training:
            self._sessions.drop(client)
            self._trained.pop(client, None)
        row = lent.rows[0].detach().requires_grad_(training)
        session = Session(client, training, row, lent.rows[0], key, self._sessions.now())
        session.optimizer, session.keep = lent.optimizer, lent.optimizer is not None
        return self._sessions.add(session)

    def forward(self, session: str, hidden: Tensor, context: Context) -> tuple[Tensor, int]:
        """Run the layers on ``(B, T, h)``, of the model's number format or bfloat16.

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
        """Take the gradient of a call's result, ``(B, T, h)``, and add that of the row.

        Returns:
            That of the input, in the format of ``grad``; None if it was not wanted.

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
        new, one.optimizer = how.optimizer.step(params, {"row": grad[None]}, state, how.lr)
        one.row = new["row"][0].requires_grad_()
        one.gradient = None

    def close(self, session: str, *, keep: bool = True) -> None:
        """End a session; what it trained waits until the coordinator asks, or is lost.

        Raises:
            UserError: the session is unknown.
            Diverged: its row, or what is kept of its optimizer, is not finite; both are lost.
        """
        one = self._sessions.remove(session)
        if not (keep and one.training):
            return
        part = Part(one.row.detach()[None], one.optimizer if one.keep else None)
        if not _finite(part):
            raise Diverged(
                f"the middle of client {one.client} is not finite any more and is dropped: lower "
                "the learning rate"
            )
        self._trained[one.client] = part

    def expire(self) -> None:
        """Drop the sessions, and the calls without their gradient, that have waited too long."""
        self._sessions.expire()


def _finite(part: Part) -> bool:
    return all(bool(torch.isfinite(leaf).all()) for _, leaf in tree.tensors(part))


def master(row: Tensor) -> Tensor:
    """Rows are trained in at least float32, as sums of small steps vanish in bfloat16."""
    return row if row.dtype == torch.float64 else row.float()
