"""What a reader of residuals learns of the ratings that they were made of."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coterie.assisted.algorithm import Relay, RelayState
from coterie.assisted.client_halves import client_half
from coterie.assisted.data import OwnDomain
from coterie.assisted.experiment import Experiment
from coterie.assisted.learner import DAMPING, Learner
from coterie.assisted.receiver import middle_of
from coterie.assisted.routes import align
from coterie.assisted.settings import Settings
from coterie.assisted.weighing import Law, frequencies, law_of, most_likely
from coterie.core.data.interactions.column_partitions import Alignment
from coterie.core.privacy.build import middleware
from coterie.core.protocol.cohort import Cohort
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors.keys import Key

# Ratings and labels read off residuals.
#
# Of squared loss a residual is 2 (R - F⁰). Where F⁰ is the same in a whole column the differences
# of its ratings are exact, and where they span the scale of ratings, so are the ratings. Where F⁰
# is the same in all columns (start constant, which the public card says), one such column tells of
# all. Where F⁰ adds damped deviations of rows and columns, residuals add up to multiples of these,
# which so follow too. Of logistic loss the sign of a residual is the label.

SLOPES = 2.0, 1.0
"""Of a residual in the rating: squared loss, Huber's loss. Nobody says which one it has."""
PRIOR = 0.575
"""Where a column's mean is guessed to be between lowest and highest rating: 3.3 of 1 to 5."""
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Reading:
    """What a column's residuals say of its ratings.

    Attributes:
        ratings: ``(n,)`` guessed ones, values of the scale.
        certain: ``(n,)`` bool, whether nothing else is possible.
        slope: of the residuals, by which most columns fit the scale.
    """

    ratings: Tensor
    certain: Tensor
    slope: float


@dataclass(frozen=True)
class Received:
    """Residuals of an organisation, and where they are.

    Attributes:
        residuals: ``(n,)`` float64.
        rows: ``(n,)`` int64.
        columns: ``(n,)`` int64.
        align: what rows are.
        alike: whether all are of one number F⁰.
    """

    residuals: Tensor
    rows: Tensor
    columns: Tensor
    align: Alignment = "user"
    alike: bool = False


def read_ratings(received: Received, scale: Tensor) -> Reading:
    """Guess ratings knowing nothing but the scale.

    Of several losses and base models that there may be, that by which most ratings are on the scale
    is taken. What is added to a column is such that its lowest rating is on the scale and, if
    possible, all others are too; of several such the nearest to the `PRIOR`, and where there is
    none, that.

    Args:
        received: of one organisation.
        scale: ``(G,)`` float64 ascending.

    Example:
        >>> residuals = 2 * torch.tensor([5.0, 1.0, 2.0, 4.0, 3.0]) - torch.tensor([6, 6, 6, 7, 7])
        >>> row, column = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([0, 0, 0, 1, 1])
        >>> received = Received(residuals.double(), row, column)
        >>> found = read_ratings(received, torch.arange(1.0, 6.0).double())
        >>> found.ratings.tolist(), found.certain.tolist()
        ([5.0, 1.0, 2.0, 4.0, 3.0], [True, True, True, False, False])
    """
    best, most = None, -1
    for slope in SLOPES:
        above = received.residuals / slope
        all_alike = torch.zeros_like(received.columns)
        for values, columns in (
            (above, all_alike if received.alike else received.columns),
            (above + _deviations(above, received), all_alike),
        ):
            found, fitting = _read(values, columns, scale, slope)
            if fitting > most:
                best, most = found, fitting
    assert best is not None
    return best


def _deviations(above: Tensor, received: Received) -> Tensor:
    """Deviations of row and column, ``(n,)``, by what ratings are above F⁰ (`rating_deviations`).

    What is fitted last, users, is fitted to a mean with a damping of d ratings: what is left of a
    user's ratings adds up to d times the user's deviation. What is left of an item's adds up to d
    times its own, less those of its users.
    """
    places = received.rows, received.columns
    user, item = places if received.align == "user" else places[::-1]
    of_user = _sums(above, user) / DAMPING
    of_item = (_sums(above, item) + _sums(of_user[user], item)) / DAMPING
    return of_user[user] + of_item[item]


def _sums(values: Tensor, group: Tensor) -> Tensor:
    n_groups = int(group.max()) + 1 if group.numel() else 0
    return values.new_zeros(n_groups).index_add_(0, group, values)


def _read(values: Tensor, columns: Tensor, scale: Tensor, slope: float) -> tuple[Reading, int]:
    """Guess ratings from what they are above an unknown number of their column.

    Returns:
        The guess, and the number of cells in columns that fit the scale.
    """
    n_columns = int(columns.max()) + 1 if columns.numel() else 0
    prior = float(scale[0]) + PRIOR * float(scale[-1] - scale[0])
    lowest = values.new_full((n_columns,), math.inf).scatter_reduce(0, columns, values, "amin")
    best, possible = torch.full_like(lowest, math.inf), torch.zeros(n_columns, dtype=torch.int64)
    for rating in scale.tolist():
        mean = rating - lowest
        off = (values + mean[columns] - nearest(values + mean[columns], scale)).abs()
        worst = torch.zeros_like(lowest).scatter_reduce(0, columns, off, "amax")
        fits = worst < _TOLERANCE
        possible += fits
        best = torch.where(fits & ((mean - prior).abs() < (best - prior).abs()), mean, best)
    best = torch.where(possible > 0, best, prior)
    ratings = nearest(values + best[columns], scale)
    fitting = int((possible > 0)[columns].sum())
    return Reading(ratings, (possible == 1)[columns], slope), fitting


def with_means(residuals: Tensor, base: Tensor, scale: Tensor, slope: float) -> Tensor:
    """Guess ratings, ``(n,)``, knowing the base model F⁰ ``(n,)`` of every cell's column."""
    return nearest(residuals / slope + base, scale)


def read_labels(residuals: Tensor) -> Tensor:
    """Guess labels, ``(n,)`` 0 or 1, by the sign of their residuals."""
    return (residuals > 0).to(residuals)


def nearest(values: Tensor, scale: Tensor) -> Tensor:
    """The value of the scale that is nearest to each, ``(n,)``.

    Example:
        >>> nearest(torch.tensor([-3.0, 1.4, 9.0]), torch.tensor([1.0, 2.0])).tolist()
        [1.0, 1.0, 2.0]
    """
    return scale[torch.bucketize(values, (scale[1:] + scale[:-1]) / 2)]


# What a reader, the server or an organisation, receives in the first round of a run.
#
# Nothing is trained: the residuals of round 1 follow from data and base model. They are had from
# the steps of the clients themselves, through the same protections, noise and keys. Asking for them
# again gives other draws for the same residuals.


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
        middle: ``(n,)`` of the scale, where residuals are of that, which all know; None: of F⁰.
        law: of the noise on residuals.
        alike: whether F⁰ is one number, as the public card says.
    """

    rows: Tensor
    columns: Tensor
    residuals: Tensor
    ratings: Tensor
    base: Tensor
    held: int
    align: Alignment = "user"
    middle: Tensor | None = None
    law: Law = field(default_factory=Law)
    alike: bool = False

    @property
    def of(self) -> Tensor:
        """What residuals are of, ``(n,)``."""
        return self.base if self.middle is None else self.middle

    def mean(self, draws: int) -> Received:
        """What is received on average over so many draws."""
        mean = self.residuals[:draws].mean(0)
        return Received(mean, self.rows, self.columns, self.align, self.alike)


class Eavesdropper(Relay):
    """A server that only asks for residuals, time and again.

    Attributes:
        heard: those of every ask, by their senders; the first as a run sends them.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.heard: list[dict[int, Tensor]] = []

    def start_block(self, state: RelayState, block: int, cohort: Cohort, key: Key) -> RelayState:
        """Let organisations meet; where residuals are sent once, that is when."""
        state = self.met(state, cohort)
        if self.settings.method == "residuals":
            self._hear(state, cohort)
        return state

    def round(self, state: RelayState, cohort: Cohort, key: Key) -> RelayState:
        """Ask for the residuals of round 1, with the noise of the next round."""
        self._hear(state, cohort)
        return replace(state, round=state.round + 1)

    def _hear(self, state: RelayState, cohort: Cohort) -> None:
        ups = self.residuals(state, cohort).ups
        self.heard.append({k: up.values for k, up in ups.items()})


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
        client = client_half(settings)
        layers = middleware(settings.privacy, client.steps())
        federation = replace(
            experiment.federation(), server=server, client=client, middleware=layers
        )
    run = FederatedRun(federation)
    while len(server.heard) < draws:
        run.advance()
    numbers = align({one.id: one.rows for one in each})
    known = None if reader is None else numbers[reader][numbers[reader] >= 0]
    heard = server.heard[:draws]
    return [
        _heard(Learner(settings, one), numbers[one.id], known, [up[one.id] for up in heard])
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
    ratings, base, middle = (
        each[sent][read].double()
        for each in (cells.values, learner.base.at(cells), middle_of(learner))
    )
    settings = learner.settings
    of_middle = middle if settings.protect.centre == "receiver" else None
    clean = learner.objective.residual(ratings, base if of_middle is None else middle)
    law, align = law_of(settings, clean), settings.data.align
    alike = settings.start == "constant" and of_middle is None
    return Overheard(
        rows, columns, residuals, ratings, base, len(cells), align, of_middle, law, alike
    )


def rating_scale(each: Sequence[OwnDomain]) -> Tensor:
    """The ratings that can be given, ``(G,)`` float64 ascending: everybody knows them."""
    cells = [part.values for one in each for part in (one.train, one.valid, one.test)]
    return torch.cat(cells).double().unique()


def shares_of_ratings(heard: Sequence[Overheard], draws: int, scale: Tensor) -> dict[str, float]:
    """Shares of the received cells whose rating is recovered exactly.

    Args:
        heard: of each organisation.
        draws: of how many draws the mean is taken.
        scale: ``(G,)`` the ratings that can be given.

    Returns:
        ``certain``: nothing else was possible; ``guessed``: with a guess of what residuals are of;
        ``known``: with that known, as the middle of the scale always is; ``weighed``: beside that,
        how frequent ratings are. Without residuals: ``frequent``, always the most frequent rating;
        ``rounded``, the known mean of the column, rounded; ``unheard``, the most frequent rating of
        columns of about that mean.
    """
    names = "certain", "guessed", "known", "weighed"
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    ratings, base = (
        torch.cat([getattr(one, name) for one in heard]) for name in ("ratings", "base")
    )
    every = frequencies(ratings, base, scale)
    priors = every.split([len(one.ratings) for one in heard], 1)
    for one, prior in zip(heard, priors, strict=True):
        received = one.mean(draws)
        read = read_ratings(received, scale)
        right = read.ratings == one.ratings
        with_mean = with_means(received.residuals, one.of, scale, read.slope) == one.ratings
        found["certain"].append(right & read.certain)
        found["guessed"].append(right if one.middle is None else with_mean)
        found["known"].append(with_mean)
        sent = one.residuals[:draws]
        likely = most_likely(sent, one.of, scale, read.slope, one.law, prior)
        found["weighed"].append(likely == one.ratings)
    rounded = nearest(base, scale)
    return {
        **{name: _share(torch.cat(parts)) for name, parts in found.items()},
        "frequent": _most_frequent(ratings),
        "rounded": _share(rounded == ratings),
        "unheard": _share(scale[every.argmax(0)] == ratings),
    }


def shares_of_labels(heard: Sequence[Overheard], draws: int) -> dict[str, float]:
    """Shares of the received cells whose label is recovered.

    Returns:
        ``labels``: by the sign of the mean over so many draws; ``frequent``: without residuals,
        always the most frequent label.
    """
    right = [read_labels(one.mean(draws).residuals) == one.ratings for one in heard]
    labels = torch.cat([one.ratings for one in heard])
    return {"labels": _share(torch.cat(right)), "frequent": _most_frequent(labels)}


def share_of_pattern(heard: Sequence[Overheard]) -> float:
    """Share of all cells of which the reader is told that they are rated."""
    return sum(one.ratings.numel() for one in heard) / max(sum(one.held for one in heard), 1)


def _most_frequent(values: Tensor) -> float:
    counts = values.unique(return_counts=True)[1]
    return float(counts.max()) / values.numel() if values.numel() else 0.0


def _share(right: Tensor) -> float:
    return float(right.double().mean()) if right.numel() else 0.0
