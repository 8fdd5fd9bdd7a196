"""Worlds of scenarios that agree as far as is wished: what federated learning can win, and lose.

All scenarios see the same random features of an impression, ``φ = tanh(1.5 h W + c)``, where h is
half by the embeddings of the ids and half by a projection of the numbers. Scenario j scores them

    y_j = φ · θ_j    θ_j = √(1-shift²) θ + shift δ_j

and y' likewise, with all of its own, so ``shift`` is how far scenarios disagree about what is liked
(concept shift): 0 = they agree, 1 = they have nothing in common. Inputs and labels are those of
`coterie.msmt.data.drawn`; ``cov_shift`` is how far inputs differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from coterie.core.tensors.device import default_device
from coterie.core.tensors.keys import Key
from coterie.msmt.data.drawn import (
    ALIEXPRESS,
    USUAL,
    Amounts,
    Form,
    Funnel,
    Inputs,
    Law,
    Noise,
    draw,
    laws_of,
    mix,
)
from coterie.msmt.data.task import Task

_STEEPNESS = 1.5
_CENTRE, _SPREAD = 0.28, 0.32  # about mean and deviation of a number


@dataclass(frozen=True)
class World:
    """How the samples of scenarios are made.

    Attributes:
        form: of the inputs.
        shift: share of the scenarios' own taste, in [0, 1].
        cov_shift: share of the scenarios' own inputs, in [0, 1].
        noise: how scores become labels.
        width: of h.
        features: of φ.
    """

    form: Form = ALIEXPRESS
    shift: float = 0.3
    cov_shift: float = 0.3
    noise: Noise = USUAL
    width: int = 8
    features: int = 32


def make_world(
    world: World,
    amounts: Amounts,
    key: Key,
    dtype: torch.dtype = torch.float32,
    name: str = "world",
) -> Task:
    """Draw the samples of a world.

    Args:
        world: how they are made.
        amounts: how many samples of how many scenarios.
        key: of all draws.
        dtype: of the numbers, which are the same in all.
        name: of the data set.

    Example:
        >>> task = make_world(World(), Amounts((10, 20), 5, 5), Key.from_seed(0))
        >>> task.clients.lengths.tolist(), task.truth.shape
        ([10, 20], torch.Size([10, 2]))
    """
    laws = world_laws(world, len(amounts.train), key.fold("law"))
    return draw(name, world.form, laws, amounts, key.fold("samples"), dtype)


def world_laws(world: World, n_scenarios: int, key: Key) -> list[Law]:
    """Give the laws of a world's scenarios; that of one does not depend on how many there are."""
    return laws_of(_worlds_law, world, n_scenarios, key)


def _worlds_law(world: World, key: Key, own: Key) -> Law:
    inputs = Inputs(world.form, key.fold("inputs"), own.fold("inputs"), world.cov_shift)
    tastes = mix(_tastes(world, key), _tastes(world, own), world.shift)
    scores = _Scores(_features(world, int(key.state), default_device()), tastes)
    return Law(inputs, Funnel(inputs, scores, world.noise, own.fold("scale")))


@lru_cache(maxsize=16)  # the scenarios of a world share them
def _features(world: World, state: int, device: torch.device) -> _Features:
    return _Features(world, Key(torch.tensor(state)))


class _Features:
    """The random features ``(n, m)`` that all scenarios share."""

    def __init__(self, world: World, key: Key) -> None:
        def normal(name: str, *shape: int) -> Tensor:
            return key.fold(name).normal(*shape, dtype=torch.float64)

        form, width = world.form, world.width
        fields, numbers = len(form.values), max(form.n_numbers, 1)
        self._tables = [
            normal(f"table {number}", count, width) / (2 * fields) ** 0.5
            for number, count in enumerate(form.values)
        ]
        self._of_numbers = normal("numbers", form.n_numbers, width) / (2 * numbers) ** 0.5
        self._weights = _STEEPNESS * normal("weights", width, world.features) / width**0.5
        self._bias = normal("bias", world.features)

    def __call__(self, ids: Tensor, numbers: Tensor) -> Tensor:
        h = ((numbers - _CENTRE) / _SPREAD) @ self._of_numbers
        for column, table in zip(ids.unbind(1), self._tables, strict=True):
            h += table[column]
        return torch.addmm(self._bias, h, self._weights).tanh_()


class _Scores:
    """The scores of one scenario, `coterie.msmt.data.drawn.Scores`."""

    def __init__(self, features: _Features, tastes: Tensor) -> None:
        self._features, self._tastes = features, tastes

    def __call__(self, ids: Tensor, numbers: Tensor) -> Tensor:
        return self._features(ids, numbers) @ self._tastes


def _tastes(world: World, key: Key) -> Tensor:
    """Two tastes θ, ``(m, 2)``; those of a scenario's own come from its own key."""
    return key.fold("tastes").normal(world.features, 2, dtype=torch.float64)
