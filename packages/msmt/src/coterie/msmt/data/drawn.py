"""Draw the samples of scenarios by laws: what they look like, and how they are labelled.

An impression has category ids and numbers. A law gives it the scores y and y'; z is y with mean 0
and deviation 1 in its scenario, z' is so what of y' does not go with y. With ``σ = snr π/√3`` (the
noise of a logistic model has the standard deviation π/√3),

    P(click) = sigmoid(σ z + b)    P(conversion | click) = sigmoid(σ (rho z + √(1-rho²) z') + b')

where b and b' make the mean probabilities of the labels ``ctr`` (click) and ``ctcvr`` (click and
conversion) equal to the base rates. So rho is the correlation of what the tasks depend on: at 1 the
same is clicked and bought, at -1 what is clicked is not bought. What a sample is depends on its
scenario, its part and its number alone: more scenarios or samples leave the others as they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.tensors.device import default_device
from coterie.core.tensors.keys import Key, unit
from coterie.msmt.data.task import Schema, Task

W = TypeVar("W")

TASKS = ("ctr", "ctcvr")
NOISE = math.pi / math.sqrt(3.0)
"""Standard deviation of the logistic distribution."""

_PIECE = 8192  # samples at a time, which bounds the memory of the scores
_CALIBRATION = 8192  # samples by which a scenario's scores are scaled
_STEPS = 60  # of a bisection

Scores = Callable[[Tensor, Tensor], Tensor]
"""Scores ``(n, 2)`` float64 of ids ``(n, F)`` int64, from 0, and numbers ``(n, P)`` float64."""


@dataclass(frozen=True)
class Form:
    """What the inputs look like; by default as in a public sample of AliExpress.

    Attributes:
        values: ``(F,)`` how many values each categorical field has.
        n_numbers: P.
        zeros: about which share of the numbers is 0; the others are in (0, 1].
    """

    values: tuple[int, ...] = (10, 4, 6, 2, 21, 7, 50, 8, 7, *(2,) * 7)
    n_numbers: int = 63
    zeros: float = 0.44


ALIEXPRESS = Form()


@dataclass(frozen=True)
class Amounts:
    """How many samples are drawn.

    Attributes:
        train: ``(S,)`` training samples of each scenario.
        valid: validation samples of every scenario; None = the test samples take their place.
        test: test samples of every scenario.
    """

    train: tuple[int, ...]
    valid: int | None
    test: int


class Inputs:
    """Ids and numbers of the impressions in one scenario.

    Field f takes the value v with probability ``softmax(√(1-c²) a_f + c a_fj)_v``. Number p is 0
    with probability ``sigmoid(logit(zeros) + 0.5 e_p)``, else ``u^exp(0.5 e'_p)`` with u uniform,
    where e and e' are mixed as the logits a are: a share c² of their variance is the scenario's
    own.

    Args:
        form: of the inputs.
        shared: key of what scenarios share.
        own: key of what scenario j has for itself.
        cov_shift: c in [0, 1].
    """

    def __init__(self, form: Form, shared: Key, own: Key, cov_shift: float) -> None:
        def mixed(name: str, count: int) -> Tensor:
            first, second = (
                key.fold(name).normal(count, dtype=torch.float64) for key in (shared, own)
            )
            return mix(first, second, cov_shift)

        self._bounds = [
            mixed(f"field {number}", count).softmax(0).cumsum(0)[:-1]
            for number, count in enumerate(form.values)
        ]
        odds = math.log(form.zeros / (1.0 - form.zeros))
        self._zero = (odds + 0.5 * mixed("zeros", form.n_numbers)).sigmoid()
        self._power = (0.5 * mixed("powers", form.n_numbers)).exp()

    def draw(self, key: Key, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Draw the samples ``start`` to ``stop``.

        Returns:
            ids ``(n, F)`` int64 from 0, and numbers ``(n, P)`` float64 that float32 holds exactly.
        """
        place = uniforms(key.fold("ids"), start, stop, len(self._bounds))
        columns = (
            torch.bucketize(values.contiguous(), bounds, right=True)
            for values, bounds in zip(place.unbind(1), self._bounds, strict=True)
        )
        u = uniforms(key.fold("numbers"), start, stop, len(self._zero))
        above = ((u - self._zero) / (1.0 - self._zero)).clamp_(min=0.0)
        return torch.stack(list(columns), 1), above.pow_(self._power).float().double()


@dataclass(frozen=True)
class Noise:
    """How scores become labels.

    Attributes:
        rho: correlation of what the tasks depend on, in [-1, 1].
        snr: deviation of the scores against that of the noise.
        rates: base rates of `TASKS`; conversions are fewer than clicks.
    """

    rho: float = 0.5
    snr: float = 0.9
    rates: tuple[float, float] = (0.3, 0.1)


USUAL = Noise()


class Funnel:
    """The probabilities of clicks and conversions in one scenario.

    Args:
        inputs: of the scenario.
        scores: y and y' of the scenario, at any scale.
        noise: how they become labels.
        key: of the samples by which scores are scaled.
    """

    def __init__(self, inputs: Inputs, scores: Scores, noise: Noise, key: Key) -> None:
        self._scores = scores
        found = scores(*inputs.draw(key, 0, _CALIBRATION))
        self._mean = found.mean(0)
        # (z, z') = (y - mean, y' - mean) L^-T, where L L^T is the covariance
        root = torch.linalg.cholesky(found.T.cov())
        tasks = [[1.0, noise.rho], [0.0, math.sqrt(1.0 - noise.rho**2)]]
        turned = torch.linalg.solve_triangular(root.T, torch.tensor(tasks).double(), upper=True)
        self._turn = noise.snr * NOISE * turned
        click, conversion = ((found - self._mean) @ self._turn).unbind(1)
        first = intercept(click, noise.rates[0])
        second = intercept(conversion, noise.rates[1], (click + first).sigmoid())
        self._intercepts = torch.tensor([first, second], dtype=torch.float64)

    def probabilities(self, ids: Tensor, numbers: Tensor) -> Tensor:
        """P(click) and P(click and conversion), ``(n, 2)`` float64."""
        return self.logits(ids, numbers).sigmoid().cumprod(1)

    def logits(self, ids: Tensor, numbers: Tensor) -> Tensor:
        """Logits of P(click) and P(conversion | click), ``(n, 2)`` float64."""
        return (self._scores(ids, numbers) - self._mean) @ self._turn + self._intercepts


@dataclass(frozen=True, eq=False)
class Law:
    """By what the samples of one scenario are drawn."""

    inputs: Inputs
    labels: Funnel


def laws_of(make: Callable[[W, Key, Key], Law], world: W, n_scenarios: int, key: Key) -> list[Law]:
    """Give the laws of scenarios; that of one does not depend on how many there are.

    They are kept for a process: the runs of a table ask for the same again and again.

    Args:
        make: gives the law of a scenario, by the key of all scenarios and its own.
        world: what it is of; hashable.
        n_scenarios: how many.
        key: of all draws.
    """
    where, numbers = default_device(), range(n_scenarios)
    return [_law(make, world, int(key.state), number, where) for number in numbers]


@lru_cache(maxsize=256)
def _law(
    make: Callable[[Any, Key, Key], Law], world: Any, state: int, number: int, device: torch.device
) -> Law:
    key = Key(torch.tensor(state))
    return make(world, key, key.fold("scenario", number))


def mix(shared: Tensor, own: Tensor, share: float) -> Tensor:
    """``√(1-share²) shared + share own``, of variance 1 where both are."""
    return math.sqrt(1.0 - share**2) * shared + share * own


def uniforms(key: Key, start: int, stop: int, width: int) -> Tensor:
    """Rows ``start`` to ``stop`` of endless uniform numbers, ``(stop - start, width)`` float64."""
    counter = torch.arange(start * width, stop * width)
    return unit(key.bits(counter), torch.float64).view(stop - start, width)


def intercept(logits: Tensor, rate: float, weights: Tensor | None = None) -> float:
    """Find b with ``mean(weights · sigmoid(logits + b)) = rate`` by bisection.

    Args:
        logits: ``(n,)`` float64.
        rate: below the mean of the weights.
        weights: ``(n,)``; 1 by default.

    Example:
        >>> round(intercept(torch.zeros(3, dtype=torch.float64), 0.2), 6)  # log(0.2 / 0.8)
        -1.386294
    """
    low, high = -100.0, 100.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        found = (logits + middle).sigmoid()
        mean = float((found if weights is None else found * weights).mean())
        low, high = (middle, high) if mean < rate else (low, middle)
    return (low + high) / 2


def draw(
    name: str, form: Form, laws: Sequence[Law], amounts: Amounts, key: Key, dtype: torch.dtype
) -> Task:
    """Draw the samples of all scenarios.

    Args:
        name: of the data set.
        form: of the inputs.
        laws: of the scenarios.
        amounts: how many samples.
        key: of all draws.
        dtype: of the numbers, which are the same in all.
    """
    test, truth = _part(laws, (amounts.test,) * len(laws), key.fold("test"), dtype)
    train, _ = _part(laws, amounts.train, key.fold("train"), dtype)
    valid = test
    if amounts.valid is not None:
        valid, _ = _part(laws, (amounts.valid,) * len(laws), key.fold("valid"), dtype)
    names = tuple(f"scenario {number + 1}" for number in range(len(laws)))
    vocabularies = tuple(count + 1 for count in form.values)  # id 0 is for unknown values
    schema = Schema(TASKS, names, vocabularies, form.n_numbers, funnel=True)
    return Task(name, schema, SplitSamples(train, valid, test), truth)


def _part(
    laws: Sequence[Law], sizes: Sequence[int], key: Key, dtype: torch.dtype
) -> tuple[SampleData, Tensor]:
    """One part of all scenarios, and the true probabilities of its labels, ``(n, 2)``."""
    clients, truth = [], []
    for number, (law, size) in enumerate(zip(laws, sizes, strict=True)):
        own = key.fold(number)
        pieces = [
            _piece(law, own, start, min(start + _PIECE, size)) for start in range(0, size, _PIECE)
        ]
        ids, numbers, labels, chances = (torch.cat(each) for each in zip(*pieces, strict=True))
        scenario = torch.full((size,), number)
        samples = {"ids": ids, "numbers": numbers.to(dtype), "scenario": scenario, "labels": labels}
        clients.append(samples)
        truth.append(chances)
    return SampleData.from_clients(clients), torch.cat(truth)


def _piece(law: Law, key: Key, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    ids, numbers = law.inputs.draw(key, start, stop)
    chances = law.labels.probabilities(ids, numbers)
    # One uniform number decides both labels, since P(click and conversion) <= P(click).
    u = uniforms(key.fold("labels"), start, stop, 1)
    return (ids + 1).int(), numbers.float(), (u < chances).byte(), chances
