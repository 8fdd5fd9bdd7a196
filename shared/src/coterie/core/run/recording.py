"""Clients in this process of whom one is looked at: what it was asked, and what it answered."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from coterie.core.federation.exchange import Answers, Request
from coterie.core.federation.in_process import InProcess, Tried
from coterie.core.protocol.messages import Aligned
from coterie.core.tensors import tree


@dataclass(frozen=True)
class Turn:
    """One ask that a client answered.

    All trees are of this client alone, without the client axis of the stacked form; changes of rows
    and ragged lists have one client.

    Attributes:
        step: name of what was asked for.
        when: block, round in it; round 0 opens the block.
        draw: how many asks for this step came before in the round.
        received: the message from the server.
        before: private state.
        made: the upload as the step gave it; None where it gives none.
        sent: the same as it left, clipped and noised where settings say so; None if it was refused.
        after: private state.
        refused: why the answer does not count; empty where it does.
    """

    step: str
    when: tuple[int, ...]
    draw: int
    received: Any
    before: Any
    made: Any
    sent: Any
    after: Any
    refused: str = ""


@dataclass
class Recording(InProcess):
    """Clients in this process, of whom one is written down; nothing is computed otherwise.

    Attributes:
        watched: the client.
        turns: what it answered since the list was last emptied.
        answered: everybody who answered since the set was last emptied.
    """

    watched: int = -1
    turns: list[Turn] = field(default_factory=list)
    answered: set[int] = field(default_factory=set)

    @staticmethod
    def of(clients: InProcess, watched: int) -> Recording:
        """The same clients, of whom one is watched."""
        given = {one.name: getattr(clients, one.name) for one in fields(InProcess)}
        return Recording(**{**given, "kept": clients.store}, watched=watched)

    def mine(self) -> Any:
        """Private state of the client that is watched; None before it is enrolled."""
        ids = torch.tensor([self.watched])
        if self.store.newcomers(ids).numel():
            return None
        return self._alone(self.store.take(ids))

    def _settle(self, request: Request, tried: Tried) -> Answers:
        self.answered.update(tried.ids.tolist())
        place = (tried.ids == self.watched).nonzero().flatten()
        if not place.numel():
            return super()._settle(request, tried)
        before = self.mine()
        answers = super()._settle(request, tried)
        self.turns.append(
            Turn(
                request.step.name,
                request.when,
                request.draw,
                self._received(request),
                before,
                self._of(tried.up, tried.ids),
                self._of(answers.up, answers.ids),
                self.mine(),
                answers.refused.get(self.watched, ""),
            )
        )
        return answers

    def _received(self, request: Request) -> Any:
        down = request.down_for(torch.tensor([self.watched]))
        return tree.as_one(down) if isinstance(request.down, Aligned) else down

    def _of(self, up: Any, ids: Tensor) -> Any:
        """The part of an upload that is of the client; None where it has none."""
        place = (ids == self.watched).nonzero().flatten()
        if up is None or not place.numel():
            return None
        return up if self.is_list else tree.as_one(tree.take(up, place))

    def _alone(self, private: Any) -> Any:
        return private if self.is_list else tree.as_one(private)
