"""The server's part of a split model: frozen layers, and in a session the row of a client."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.local_training.row_adam import RowAdam
from coterie.core.local_training.row_optimizer import RowOptimizer, RowState
from coterie.core.tensors import tree
from coterie.core.tensors.device import moved
from coterie.core.tensors.keys import Key
from coterie.core.tensors.saved import digest
from coterie.llm.adapter import Adapter
from coterie.llm.mixing import Mixing, inner_products, received
from coterie.llm.split.channel import Context, Diverged, Opening
from coterie.llm.split.execution import Execution, Stack
from coterie.llm.split.part import Part
from coterie.llm.split.sessions import Limits, Session, Sessions


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
    """Train, run and mix the layers between the client's; one object serves all clients.

    The rows of the clients take the places of the trainable parameters call by call, so that calls
    of several clients may interleave. Sessions start from the part in use, and what they made of it
    waits until it is mixed.

    Args:
        stack: the layers. What is trained of them has ``requires_grad``; that may be nothing.
        training: how.
        limits: of a client's use.
        clock: seconds, for what expires.
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
        self._used: Part | None = None
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

    def start(self, clients: int, *, optimizer: bool) -> Part:
        """Give the part that so many clients start from, ``(clients, d)``."""
        rows = self._like.repeat(clients, 1)
        return Part(rows, self._fresh(rows) if optimizer else None)

    def anew(self, part: Part) -> Part:
        """Give a part with its optimizer, if it has one, as before the first step."""
        return part if part.optimizer is None else Part(part.rows, self._fresh(part.rows))

    def use(self, part: Part) -> None:
        """Let the next sessions start from a part of all clients; what was trained is lost.

        Raises:
            UserError: it does not fit, or is not finite; nothing is changed.
        """
        n = len(part.rows)
        shapes = {tuple(leaf.shape) for name, leaf in tree.tensors(part) if "steps" not in name}
        if shapes != {(n, self.size)} or not n:
            raise UserError(
                f"rows of the middle are {sorted(shapes)}, expected {(n, self.size)}: use the "
                "backbone and LoRA settings of the server"
            )
        if not _finite(part):
            raise UserError("rows of the middle are not finite: lower the learning rate")
        self._sessions.drop()
        self._trained.clear()
        here = tree.map_tensors(lambda leaf: leaf.detach().to(self._like.device), part)
        self._used = replace(here, rows=here.rows.to(self._like.dtype))

    def trained(self, client: int) -> Part:
        """Give what a client's session made of its part, n = 1.

        Raises:
            UserError: it has not finished.
        """
        if client not in self._trained:
            raise UserError(
                f"client {client} has not finished training in the server's layers (have they "
                "been restarted?): run again with --resume"
            )
        return self._trained[client]

    def gram(self, ids: Tensor, changes: bool) -> Tensor:
        """Inner products of what A clients trained, or changed in their part, ``(A, A)``.

        Raises:
            UserError: one of them has not finished.
        """
        rows = self._all_trained(ids).rows
        return inner_products(rows - self._part().rows[ids] if changes else rows).cpu()

    def mix(self, how: Mixing) -> Part:
        """Mix what was trained, each client in its own way, and use that from now on.

        Optimizers are not mixed.

        Raises:
            UserError: a client has not finished, or what is mixed is not finite.
        """
        before, trained = self._part(), self._all_trained(how.ids)
        how = moved(how, self._like.device)
        rows = received(before.rows, trained.rows, how)
        optimizer = before.optimizer
        if optimizer is not None and trained.optimizer is not None:
            optimizer = tree.map_tensors(
                lambda old, new: old.index_copy(0, how.ids, new.to(old)),
                optimizer,
                trained.optimizer,
            )
        self.use(Part(rows, optimizer))
        return self._part()

    def open(self, client: int, *, training: bool, key: Key | None = None) -> Opening:
        """Begin a session of a client; ``key``, a scalar, is that of dropout.

        A row that is trained starts from the part in use, even if the client has already trained in
        it and tries again.

        Raises:
            UserError: there is no part of the client.
        """
        used = self._used
        if used is None or not 0 <= client < len(used.rows):
            raise UserError(
                f"the server has no part for client {client} (has it been restarted?): the "
                "coordinator names one before it asks, run again with --resume"
            )
        if training:
            self._sessions.drop(client)
            self._trained.pop(client, None)
        own = tree.take(used, torch.tensor([client]))
        row = own.rows[0].detach().requires_grad_(training and self.size > 0)
        session = Session(client, training, row, own.rows[0], key, self._sessions.now())
        session.optimizer, session.keep = own.optimizer, own.optimizer is not None
        return Opening(self._sessions.add(session), digest({"row": session.start}))

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
        if one.training and not self.size:
            return  # nothing in these layers is trained
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
        """End a session; what it trained waits until it is mixed, or is lost.

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

    def knows(self, session: str) -> bool:
        """Whether a session of that name is open."""
        return self._sessions.knows(session)

    def expire(self) -> None:
        """Drop the sessions, and the calls without their gradient, that have waited too long."""
        self._sessions.expire()

    def _part(self) -> Part:
        if self._used is None:
            raise UserError("the server has no part in use (has it been restarted?): run again")
        return self._used

    def _all_trained(self, ids: Tensor) -> Part:
        first, *others = (self.trained(client) for client in ids.tolist())
        return reduce(tree.concatenate, others, first)

    def _fresh(self, rows: Tensor) -> RowState:
        return self._training.optimizer.begin({"row": rows})


def _finite(part: Part) -> bool:
    return all(bool(torch.isfinite(leaf).all()) for _, leaf in tree.tensors(part))


def master(row: Tensor) -> Tensor:
    """Rows are trained in at least float32, as sums of small steps vanish in bfloat16."""
    return row if row.dtype == torch.float64 else row.float()
