"""A few organisations with random ratings, small enough for a dense loop."""

import torch

from coterie.assisted.algorithm import Relay
from coterie.assisted.client import Organisation
from coterie.assisted.data import Organisations, OwnDomain
from coterie.assisted.readings import resolve
from coterie.assisted.settings import (
    AssistSettings,
    DomainSettings,
    ModelSettings,
    Settings,
    TrainSettings,
)
from coterie.core.data.interactions.cells import Cells, Domain
from coterie.core.federation.federation import Federation
from coterie.core.run.driver import FederatedRun

N_ROWS = 12
WIDTHS = (5, 3, 4)
SMALL = ModelSettings(hidden=6, code=4, dropout=0.0)
WHOLE = TrainSettings(epochs=3, batch_rows=N_ROWS)


def cells_of(mask, values):
    rows, columns = mask.nonzero(as_tuple=True)
    return Cells.from_pairs(rows, columns, values[mask], *mask.shape)


def make_domain(number, width, dtype=torch.float64, binary=False, rows=N_ROWS):
    generator = torch.Generator().manual_seed(100 + number)
    part = torch.randint(0, 6, (rows, width), generator=generator)  # 0: not rated
    part[0] = 1  # every column has cells to train on, row 0 in every domain
    part[1, :] = 5
    part[2, :] = 4
    high = 2 if binary else 6
    stars = torch.randint(0 if binary else 1, high, (rows, width), generator=generator).to(dtype)
    train, valid, test = ((part >= 1) & (part <= 3), part == 4, part == 5)
    cut = [cells_of(mask, stars) for mask in (train, valid, test)]
    return Domain(f"d{number}", torch.arange(rows), torch.arange(width), *cut)


def make_organisations(dtype=torch.float64, binary=False, names=None, widths=WIDTHS):
    return Organisations.of(
        [
            OwnDomain(
                k,
                1000 + torch.arange(N_ROWS) if names is None else names[k],
                make_domain(k, width, dtype, binary),
            )
            for k, width in enumerate(widths)
        ]
    )


def make_settings(feedback="explicit", **more):
    chosen = {"model": SMALL, "train": WHOLE, "rounds": 3, "assist": AssistSettings()} | more
    return resolve(Settings(data=DomainSettings(feedback=feedback), **chosen))


def make_run(settings, data=None, client=None, middleware=()):
    data = data or make_organisations(binary=settings.data.feedback == "implicit")
    server = Relay(settings)
    return FederatedRun(
        Federation(
            server=server,
            client=client or Organisation(settings),
            blocks=[data],
            seed=3,
            rounds=settings.rounds,
            monitor=server.monitor,
            middleware=middleware,
        )
    )


def finished(run):
    while not run.finished:
        run.advance()
    return run


def state_of(run, k):
    return run.store.take(torch.tensor([k]))
