"""Worlds of scenarios that agree as far as is wished: what federated learning can win, and lose.

All scenarios see the same random features of an impression, ``φ = tanh(1.5 h W + c)``, where h is
half by the embeddings of the ids and half by a projection of the numbers. Scenario j scores them

    y_j = φ · θ_j    θ_j = √(1-shift²) θ + shift δ_j

and y' likewise, with all of its own, so ``shift`` is how far scenarios disagree about what is liked
(concept shift): 0 = they agree, 1 = they have nothing in common. Inputs and labels are those of
`coterie.msmt.data.drawn`; ``cov_shift`` is how far inputs differ.
"""

from __future__ import annotations

import math
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


# Labels by a network of PF-MSMTrec's own shape, whose scenarios share a template and nothing else.
#
# In a world of `coterie.msmt.data.worlds` embeddings and expert weights are what transfers, and
# those the method keeps local. Here a teacher of the form of Eq. 4 scores an impression of scenario
# j: with blocks ``x = [E_1j[c_1], …, E_Fj[c_F], numbers V_j]``, each d wide, and experts n,
#
#     H_n = ReLU(x (W_jn ⊗ W_s) + b_jn)    a = softmax(x (G_j ⊗ w_s))    y_j = (Σ_n a_n H_n) · θ_j
#
# and y' by another tower. Embeddings E, V, expert weights W_jn, gates G and towers θ are drawn anew
# for every scenario: their values in one say nothing about those in another. Common is the template
# alone, constant along the hidden units (``1 + u_a + v_b`` with v = 0, as a factored generator
# has):
#
#     W_s[a, b] = w_s[a] = 1 + u_a = √(K/R) where coordinate a belongs to a relevant block, else 0
#
# R of the K blocks are relevant, so all else in an impression is noise. A scenario with few samples
# fits that noise, as it cannot tell what is relevant; all scenarios together can, since the
# multiplier of a relevant coordinate grows wherever it is learned, whatever the weights beside it.
# A model that is averaged as a whole learns nothing, because the same value of a relevant field is
# liked in one scenario and disliked in the next.
#
# Block k is relevant in scenario j if ``√(1-shift²) g_k + shift g_jk``, with g normal, is among the
# R largest: with ``shift`` scenarios disagree about the template too. Inputs and labels are those
# of `coterie.msmt.data.drawn`; inputs have the same law everywhere.

_FORM = Form((20,) * 16, 8)
_NOISE = Noise(snr=1.2)


@dataclass(frozen=True)
class Teacher:
    """How labels are made.

    Attributes:
        form: of the inputs.
        relevant: R, blocks that matter.
        shift: share of the scenarios' own in what is relevant, in [0, 1].
        noise: how scores become labels.
        width: d of an embedding.
        experts: N.
        units: of an expert.
    """

    form: Form = _FORM
    relevant: int = 2
    shift: float = 0.0
    noise: Noise = _NOISE
    width: int = 8
    experts: int = 2
    units: int = 32

    @property
    def blocks(self) -> int:
        """K: one for each categorical field, one for all numbers."""
        return len(self.form.values) + (self.form.n_numbers > 0)


def make_teacher(
    teacher: Teacher,
    amounts: Amounts,
    key: Key,
    dtype: torch.dtype = torch.float32,
    name: str = "teacher",
) -> Task:
    """Draw the samples that the teacher labels; as `coterie.msmt.data.worlds.make_world`.

    Example:
        >>> task = make_teacher(Teacher(), Amounts((10, 20), 5, 5), Key.from_seed(0))
        >>> task.clients.lengths.tolist(), task.truth.shape
        ([10, 20], torch.Size([10, 2]))
    """
    laws = teacher_laws(teacher, len(amounts.train), key.fold("law"))
    return draw(name, teacher.form, laws, amounts, key.fold("samples"), dtype)


def teacher_laws(teacher: Teacher, n_scenarios: int, key: Key) -> list[Law]:
    """Give the laws of the scenarios; that of one does not depend on how many there are."""
    return laws_of(_teachers_law, teacher, n_scenarios, key)


def _teachers_law(teacher: Teacher, key: Key, own: Key) -> Law:
    inputs = Inputs(teacher.form, key.fold("inputs"), own.fold("inputs"), 0.0)
    network = Network(teacher, relevant_blocks(teacher, key, own), own.fold("network"))
    return Law(inputs, Funnel(inputs, network, teacher.noise, own.fold("scale")))


def relevant_blocks(teacher: Teacher, shared: Key, own: Key) -> Tensor:
    """Which blocks are relevant in a scenario, ``(K,)`` bool.

    Args:
        teacher: says how many, and how far scenarios disagree.
        shared: key of what all scenarios share.
        own: key of the scenario.
    """
    first, second = (
        key.fold("relevance").normal(teacher.blocks, dtype=torch.float64) for key in (shared, own)
    )
    chosen = mix(first, second, teacher.shift).argsort(descending=True)[: teacher.relevant]
    return torch.zeros(teacher.blocks, dtype=torch.bool).index_fill_(0, chosen, True)


class Network:
    """The teacher of one scenario, `coterie.msmt.data.drawn.Scores`.

    Args:
        teacher: its sizes.
        relevant: ``(K,)`` bool.
        key: of its weights.

    Attributes:
        template: w_s, ``(K d,)``, the multiplier of each coordinate.
        local: W of all experts side by side, ``(K d, N units)``.
    """

    def __init__(self, teacher: Teacher, relevant: Tensor, key: Key) -> None:
        def normal(name: str, *shape: int) -> Tensor:
            return key.fold(name).normal(*shape, dtype=torch.float64)

        form, width, experts, units = teacher.form, teacher.width, teacher.experts, teacher.units
        total, most = teacher.blocks * width, max(form.n_numbers, 1)
        self._tables = [
            _standard(normal(f"table {k}", n, width)) for k, n in enumerate(form.values)
        ]
        self._of_numbers = normal("numbers", form.n_numbers, width) / (0.32 * most**0.5)
        scale = math.sqrt(teacher.blocks / teacher.relevant)
        self.template = (relevant * scale).repeat_interleave(width)
        self.local = normal("experts", total, experts * units) / total**0.5
        self._weights = self.local * self.template[:, None]
        self._bias = 0.5 * normal("bias", experts * units)
        self._gate = normal("gate", total, experts) / total**0.5 * self.template[:, None]
        self._towers = normal("towers", units, 2)

    def __call__(self, ids: Tensor, numbers: Tensor) -> Tensor:
        """Scores ``(n, 2)`` of ids ``(n, F)`` and numbers ``(n, P)``."""
        columns = zip(ids.unbind(1), self._tables, strict=True)
        parts = [table[column] for column, table in columns]
        if numbers.shape[1]:
            parts.append((numbers - 0.28) @ self._of_numbers)
        x = torch.cat(parts, 1)
        hidden = torch.addmm(self._bias, x, self._weights).relu_()
        shares = (x @ self._gate).softmax(1)
        mixed = (hidden.view(len(x), shares.shape[1], -1) * shares[:, :, None]).sum(1)
        return mixed @ self._towers


def _standard(table: Tensor) -> Tensor:
    """Make each column's mean 0 and variance 1, so that blocks weigh alike."""
    centred = table - table.mean(0)
    return centred / centred.std(0, correction=0).clamp(min=1e-12)
