"""What the server keeps for every client, round by round, so that a round can be taken back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.local_training.row_optimizer import RowState
from coterie.core.tensors import tree

BEFORE = -1  # the round before the first


@dataclass(frozen=True)
class ClientState:
    """One client's part of the middle; never changed in place.

    Attributes:
        row: ``(d,)`` trained parameters.
        optimizer: of C = 1 row; None before the first step.
    """

    row: Tensor
    optimizer: RowState | None = None


@dataclass(frozen=True)
class Generation:
    """All clients after a round. A client that is not in it still has the common start.

    Attributes:
        round: the last one that took part.
        clients: by id.
        best: rows of the best round so far, by id; None if none was kept.
    """

    round: int = BEFORE
    clients: dict[int, ClientState] = field(default_factory=dict)
    best: dict[int, Tensor] | None = None


class Generations:
    """The last committed rounds, newest last. States are shared between them, not copied.

    Args:
        start: ``(d,)`` where every client begins.
        keep: how many rounds are kept, at least 2.

    Raises:
        UserError: fewer are to be kept.
    """

    def __init__(self, start: Tensor, keep: int = 2) -> None:
        if keep < 2:
            raise UserError(f"{keep} kept rounds are too few to take one back: keep at least 2")
        self.start = start
        self.keep = keep
        self.all = [Generation()]

    @property
    def latest(self) -> Generation:
        """The last committed round."""
        return self.all[-1]

    def state(self, client: int) -> ClientState:
        """Give the state of a client after the last committed round."""
        return self.latest.clients.get(client) or ClientState(self.start)

    def best(self, client: int) -> Tensor:
        """Give the row ``(d,)`` that a client had in the best round.

        Raises:
            UserError: none was kept.
        """
        if self.latest.best is None:
            raise UserError("the server has kept no best round yet")
        return self.latest.best.get(client, self.start)

    def rewind(self, round: int) -> None:
        """Go back to the state after ``round``, and forget the later ones.

        Raises:
            UserError: it is not among those kept.
        """
        kept = [generation.round for generation in self.all]
        if round not in kept:
            raise UserError(
                f"the server has the middle after rounds {_rounds(kept)}, not after "
                f"{_rounds([round])}: resume the run of this server, or start it with an empty "
                "--state"
            )
        self.all = self.all[: kept.index(round) + 1]

    def append(self, round: int, changed: Mapping[int, ClientState]) -> None:
        """Commit a round."""
        clients = self.latest.clients | dict(changed)
        self.all = [*self.all, Generation(round, clients, self.latest.best)][-self.keep :]

    def keep_best(self) -> None:
        """Keep the rows of the last committed round as the best."""
        best = {client: state.row for client, state in self.latest.clients.items()}
        self.all = [*self.all[:-1], replace(self.latest, best=best)]

    def to_plain(self) -> dict[str, Any]:
        """Give tensors and plain values, for a checkpoint of the run."""
        return {"start": self.start, "rounds": [_plain(generation) for generation in self.all]}

    def load_plain(self, plain: Mapping[str, Any]) -> None:
        """Restore what `to_plain` gave.

        Raises:
            UserError: it is of a middle of another size.
        """
        if plain["start"].shape != self.start.shape:
            raise UserError(
                f"the checkpoint has {plain['start'].numel()} trained numbers in the middle, the "
                f"model has {self.start.numel()}: use the settings it was made with"
            )
        self.start = plain["start"]
        self.all = [_generation(one) for one in plain["rounds"]]


def _plain(generation: Generation) -> dict[str, Any]:
    clients = {
        client: {"row": state.row, "optimizer": tree.to_plain(state.optimizer)}
        for client, state in generation.clients.items()
    }
    return {"round": generation.round, "clients": clients, "best": generation.best}


def _generation(plain: Mapping[str, Any]) -> Generation:
    clients = {
        int(client): ClientState(
            state["row"], None if state["optimizer"] is None else RowState(**state["optimizer"])
        )
        for client, state in plain["clients"].items()
    }
    return Generation(plain["round"], clients, plain["best"])


def _rounds(rounds: Sequence[int]) -> str:
    return ", ".join("none" if round == BEFORE else str(round) for round in rounds)


def check_rows(rows: Tensor, ids: Sequence[int], width: int) -> None:
    """Refuse mixed rows that do not fit.

    Args:
        rows: ``(n, d)``.
        ids: n clients.
        width: d.

    Raises:
        UserError: shape, a number that is not finite, or a client twice.
    """
    if rows.shape != (len(ids), width):
        raise UserError(
            f"rows of the middle are {tuple(rows.shape)}, expected {(len(ids), width)}: use the "
            "backbone and LoRA settings of the server"
        )
    if len(set(ids)) != len(ids):
        raise UserError("a client is given twice: name every client once")
    if not bool(torch.isfinite(rows).all()):
        raise UserError("rows of the middle are not finite: lower the learning rate")
