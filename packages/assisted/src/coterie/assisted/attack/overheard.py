"""What a reader, the server or an organisation, receives in the first round of a run.

Nothing is trained: the residuals of round 1 follow from data and base model. They are had from
the steps of the clients themselves, through the same protections, noise and keys. Asking for them
again gives other draws for the same residuals.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.assisted.algorithm import Relay, RelayState
from coterie.assisted.attack.reconstruction import Received
from coterie.assisted.client import Organisation
from coterie.assisted.data.organisations import OwnDomain
from coterie.assisted.experiment import Experiment
from coterie.assisted.learner import Learner
from coterie.assisted.routes import align
from coterie.assisted.settings.run import Settings
from coterie.core.data.interactions.alignment import Alignment
from coterie.core.privacy.build import middleware
from coterie.core.protocol.cohort import Cohort
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class Overheard:
    """What is received of an organisation, beside the truth.

    Attributes:
        rows: ``(n,)`` int64 the organisation's own number of the row of every cell.
        columns: ``(n,)`` int64 that of the column.
        residuals: ``(draws, n)``.
        ratings: ``(n,)`` the truth.
        base: ``(n,)`` F⁰.
        held: number of training cells that the organisation has, received or not.
        align: what rows are.
    """

    rows: Tensor
    columns: Tensor
    residuals: Tensor
    ratings: Tensor
    base: Tensor
    held: int
    align: Alignment = "user"

    def mean(self, draws: int) -> Received:
        """What is received on average over so many draws."""
        return Received(self.residuals[:draws].mean(0), self.rows, self.columns, self.align)


class Eavesdropper(Relay):
    """A server that only asks for residuals, time and again.

    Attributes:
        heard: those of every round, by their senders.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.heard: list[dict[int, Tensor]] = []

    def round(self, state: RelayState, cohort: Cohort, key: Key) -> RelayState:
        """Ask for the residuals of round 1, with the noise of the next round."""
        ups = self.residuals(state, cohort).ups
        self.heard.append({k: up.values for k, up in ups.items()})
        return replace(state, round=state.round + 1)


def overhear(
    experiment: Experiment, settings: Settings, draws: int, reader: int | None = None
) -> list[Overheard]:
    """Give what a reader receives of each organisation but itself.

    Args:
        experiment: with the data.
        settings: how residuals are protected; with the reading's choices resolved.
        draws: how often the same residuals are received.
        reader: number of an organisation; None for the server, which receives all.
    """
    each = experiment.organisations.each
    # One round more than there are: at the end the server would have the run tested.
    server = Eavesdropper(replace(settings, rounds=draws + 1, patience=draws + 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # noise leaves outputs open, which are not read here
        layers = middleware(settings.privacy, Organisation.steps())
        federation = replace(
            experiment.federation(), server=server, client=Organisation(settings), middleware=layers
        )
    run = FederatedRun(federation)
    while len(server.heard) < draws:
        run.advance()
    numbers = align({one.id: one.rows for one in each})
    known = None if reader is None else numbers[reader][numbers[reader] >= 0]
    return [
        _heard(Learner(settings, one), numbers[one.id], known, [up[one.id] for up in server.heard])
        for one in each
        if one.id != reader
    ]


def _heard(
    learner: Learner, numbers: Tensor, known: Tensor | None, received: Sequence[Tensor]
) -> Overheard:
    """Bring what an organisation sent beside its cells.

    Args:
        learner: of the organisation.
        numbers: ``(m,)`` of its rows, -1 where nobody else has the row.
        known: numbers of the rows that the reader has; None for all.
        received: what it sent, each ``(c,)``, of the cells in common rows.
    """
    cells = learner.data.train
    row = numbers[cells.rows]
    sent = row >= 0
    read = torch.ones_like(row[sent], dtype=torch.bool)
    if known is not None:
        read = torch.isin(row[sent], known)
    rows, columns = (each[sent][read] for each in (cells.rows, cells.columns.values))
    residuals = torch.stack([values[read] for values in received]).double()
    ratings, base = (each[sent][read].double() for each in (cells.values, learner.base.at(cells)))
    align = learner.settings.data.align
    return Overheard(rows, columns, residuals, ratings, base, len(cells), align)


def rating_scale(each: Sequence[OwnDomain]) -> Tensor:
    """The ratings that can be given, ``(G,)`` float64 ascending: everybody knows them."""
    cells = [part.values for one in each for part in (one.train, one.valid, one.test)]
    return torch.cat(cells).double().unique()
