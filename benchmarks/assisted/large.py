"""A round of ML-10M's size on random data: ``python -m benchmarks.assisted.large``."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cached_property

import torch

from benchmarks.assisted.rounds import Rounds, Watched, first_round
from benchmarks.assisted.sizes import ML_10M, Size, draw_cells
from coterie.assisted.experiment import Experiment
from coterie.assisted.settings import DomainSettings, Settings, TrainSettings
from coterie.core.data.interactions.interactions import Interactions
from coterie.core.tensors.keys import Key

_EPOCHS = 20


class RandomRatings(Experiment):
    """A run on random ratings.

    Attributes:
        size: of the data; a validation set of a ninth comes on top.
    """

    size: Size = ML_10M

    @property
    def source(self) -> str:
        """What the data are."""
        return f"random ratings of {self.size.name}'s size"

    @cached_property
    def interactions(self) -> Interactions:
        """The ratings."""
        size, key = self.size, Key.from_seed(0)
        row, column = draw_cells(replace(size, ratings=size.ratings * 10 // 9), key)
        stars = 1 + key.fold("rating").integers(5, torch.arange(len(row)))
        users, items = (list(map(str, range(n))) for n in (size.rows, size.columns))
        time, rating = torch.zeros_like(row), stars.float()
        return Interactions(row, column, time, rating, users, items, None, None, self.source)


def settings_of(size: Size) -> Settings:
    """Settings of a round of one epoch on random ratings; the test has hardly any of them."""
    data = DomainSettings(domains="uniform", count=size.organisations, test=1e-6)
    return Settings(data=data, train=TrainSettings(epochs=1, batch_rows=size.batch_rows))


def report(kind: type[RandomRatings] = RandomRatings) -> str:
    """Run a round in this process, and say what it took."""
    rounds = Rounds(settings_of(kind.size), Watched, kind)
    use = first_round(rounds)
    steps = sum(one.steps for one in rounds.client.trained)
    return (
        f"{rounds.source}: {use.most / 1e6:,.0f} MB at most, {use.before / 1e6:,.0f} before; "
        f"{use.models / 1e6:,.0f} MB of models a round; {use.seconds:,.1f} CPU s with 1 epoch "
        f"({steps:,} steps), hence {use.seconds_of(_EPOCHS):,.0f} with {_EPOCHS}\n"
    )


if __name__ == "__main__":
    sys.stdout.write(report())
