"""A toy of assisted learning: organisations whose residuals and fits a server passes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from coterie.core.federation.federation import Federation
from coterie.core.protocol.card import Card
from coterie.core.protocol.client import Client, Middleware
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.messages import (
    Down,
    ListStep,
    PerClient,
    Private,
    Report,
    Reveals,
    Up,
    carries,
    leaves,
)
from coterie.core.protocol.server import Server
from coterie.core.tensors.keys import Key

ROWS = 6


@dataclass(frozen=True)
class Begin(Down):
    """Opens a round."""

    target: Tensor = carries("the server's own numbers")  # (ROWS,)


@dataclass(frozen=True)
class Residual(Up):
    """What an organisation has left to explain: one vector for all others."""

    residual: Tensor = leaves("residual", reveals=Reveals.RESIDUALS, relays=True)  # (ROWS,)
    rows: Tensor = leaves("how many", reveals=Reveals.STEPS)  # ()


@dataclass(frozen=True)
class Others(Down):
    """What others have left, by their numbers."""

    residuals: dict[str, Tensor] = carries("residuals of others", relays=True)
    weight: Tensor = carries("the server's own weight")  # ()


@dataclass(frozen=True)
class Fits(Up):
    """A fit for each organisation that is to get it."""

    fits: dict[str, Tensor] = leaves("a fit for each", reveals=Reveals.FITS, relays=True)


@dataclass(frozen=True)
class Helped(Down):
    """Fits of others, by their numbers."""

    fits: dict[str, Tensor] = carries("fits of others", relays=True)


@dataclass(frozen=True)
class Loss(Report):
    """How much is left."""

    loss: Tensor = leaves("mean square", reveals=Reveals.MEASUREMENT)  # ()


@dataclass(frozen=True)
class Own(Private):
    """What an organisation keeps."""

    residual: Tensor


@dataclass(frozen=True)
class Place:
    """Local data of one organisation."""

    id: int


@dataclass(frozen=True)
class Places:
    """Local data of all."""

    ids: Tensor

    def take(self, index: Tensor) -> Places:
        """A part of them."""
        return Places(self.ids[index])

    def __getitem__(self, place: int) -> Place:
        return Place(int(self.ids[place]))


RESIDUAL = ListStep("residual", Begin, Residual)
FIT = ListStep("fit", Others, Fits)
UPDATE = ListStep("update", Helped, Loss)


class Organisation(Client[Own, Place]):
    """Fits what others have left with a constant, and takes their fits off its own."""

    form = "list"

    def enrol(self, data: Place, key: Key) -> Own:
        return Own(key.normal(ROWS) + data.id)

    @RESIDUAL
    def residual(self, down: Begin, mine: Own, data: Place, key: Key) -> tuple[Residual, None]:
        return Residual(mine.residual - down.target, torch.tensor(ROWS)), None

    @FIT
    def fit(self, down: Others, mine: Own, data: Place, key: Key) -> tuple[Fits, None]:
        means = {one: down.weight * left.mean() for one, left in down.residuals.items()}
        return Fits({one: mean.expand(ROWS).clone() for one, mean in means.items()}), None

    @UPDATE
    def update(self, down: Helped, mine: Own, data: Place, key: Key) -> tuple[Loss, Own]:
        left = mine.residual - 0.1 * sum(down.fits.values())
        return Loss(left.square().mean()), Own(left)


@dataclass(frozen=True)
class Nothing:
    """State of the server."""

    rounds: int = 0


class Relay(Server[Nothing]):
    """Passes everything on; in round ``liar`` it changes a value for the last organisation."""

    def __init__(self, rounds: int, liar: int = 0) -> None:
        self.rounds, self.liar = rounds, liar

    def begin(self, key: Key) -> Nothing:
        return Nothing()

    def start_block(self, state: Nothing, block: int, cohort: Cohort, key: Key) -> Nothing:
        """Ask before the first round too: it counts as the block's round 0."""
        cohort.enrol()
        cohort.ask(RESIDUAL, Begin(torch.zeros(ROWS)))
        return state

    def round(self, state: Nothing, cohort: Cohort, key: Key) -> Nothing:
        left = {str(c): up.residual for c, up in self._residuals(cohort).items()}
        half = torch.tensor(0.5)
        told = {
            int(to): Others({one: r for one, r in left.items() if one != to}, half) for to in left
        }
        if state.rounds + 1 == self.liar:
            last = max(told)
            wrong = {one: r.clone() for one, r in told[last].residuals.items()}
            next(iter(wrong.values()))[0] += 0.5
            told[last] = Others(wrong, half)
        fits = cohort.ask(FIT, PerClient(told)).ups
        helped = {
            c: Helped({str(one): up.fits[str(c)] for one, up in fits.items() if one != c})
            for c in fits
        }
        losses = cohort.ask(UPDATE, PerClient(helped)).ups
        cohort.journal.scalar("eval/loss", torch.stack([up.loss for up in losses.values()]).mean())
        return Nothing(state.rounds + 1)

    def end_block(self, state: Nothing, cohort: Cohort, key: Key) -> Nothing:
        self._residuals(cohort)
        return state

    def _residuals(self, cohort: Cohort) -> dict[int, Residual]:
        return cohort.ask(RESIDUAL, Begin(torch.zeros(ROWS))).ups


def federation(
    ids: Sequence[int] = (2, 5, 9),
    rounds: int = 3,
    liar: int = 0,
    blocks: int = 2,
    middleware: tuple[Middleware, ...] = (),
) -> Federation:
    """A federation of so many blocks, with the same organisations in each."""
    data = [Places(torch.tensor(ids)) for _ in range(blocks)]
    server = Relay(rounds, liar)
    return Federation(server, Organisation(), data, rounds=rounds, middleware=middleware)


def make_client(card: Card, folder: Path) -> Organisation:
    """The client half, for a process of its own."""
    return Organisation()
