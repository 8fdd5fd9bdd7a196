"""Games of PAGE among a few clients with labelled samples, played by the real halves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.core.methods.labelled_clients import (
    CLASSES,
    Run,
    Softmax,
    labelled,
    run,
    samples_of,
    split,
)

from coterie.page.data.task import Task
from coterie.page.experiment import halves
from coterie.page.readings import resolve
from coterie.page.settings import AgentOptions, GameSettings, Settings, TrainSettings

AGENT = AgentOptions(
    critic_lr=1e-2, actor_lr=1e-2, tau=0.1, warm_up=2, batch_size=4, hidden=(6, 5), capacity=50
)
# Measuring takes as long as the rest of a stage: tests that look at it, or need it, ask for it.
TRAIN = TrainSettings(
    epochs=3, batch_size=3, lr=0.5, weight_decay=0.0, clip=None, evaluate_every=50
)
MEASURED = {"evaluate_every": 1}
HELD = samples_of(labelled([30], "server"), 0)
TEST = samples_of(labelled([25], "server's test"), 0)
LENGTHS = [5, 3, 6, 4]


def settings(reading: str = "recommended", train: Any = None, agent: Any = AGENT, **game: Any):
    """Settings of a game with little to compute; ``train`` is a dict of changes to `TRAIN`."""
    return resolve(
        Settings(
            reading=reading,  # type: ignore[arg-type]
            train=replace(TRAIN, **(train or {})),
            game=GameSettings(**{"lr_min": 0.01, "steps": 100} | game),
            client_agent=agent,
            server_agent=agent,
        )
    )


def game(chosen: Settings, data: Any, build: Any = Softmax):
    """The server and the client half; the server chooses by `HELD` and reports on `TEST`."""
    dtype = data.train.samples["x"].dtype
    held, test = ({"x": one["x"].to(dtype), "y": one["y"]} for one in (HELD, TEST))
    task = Task("small", data, held, test, CLASSES)
    return halves(chosen, build, task)


def play(chosen: Settings, rounds: int, data=None, build=Softmax, chunk=None) -> Run:
    """Play some stages among clients with `LENGTHS` samples."""
    data = split(LENGTHS) if data is None else data
    return run(*game(chosen, data, build), data, rounds, chunk)


def pairs(journal: Any, name: str) -> dict[int, float]:
    """A measurement of every client, by id."""
    ids, values = journal.clients[name]
    return dict(zip(ids.tolist(), values.tolist(), strict=True))
