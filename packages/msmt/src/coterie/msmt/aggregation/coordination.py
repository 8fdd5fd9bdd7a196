"""Conflict coordination (section 3.3.2, Eqs. 13 to 17): the dual of CAGrad, solved with a bound.

The direction U* that is wanted lies in a ball around a centre g_0 and helps the increment most that
it helps least (Eq. 13): max over ‖U - g_0‖ <= c ‖g_0‖ of min_m ⟨g_m, U⟩. Its dual is

    min over w of F(w) = ⟨U_w, g_0⟩ + c ‖g_0‖ ‖U_w‖,   U_w = Σ w_m g_m,   w >= 0, Σ w_m = 1

(Eqs. 15, 16), and U* = g_0 + c ‖g_0‖ U_w / ‖U_w‖ (Eq. 17). Since F is homogeneous its gradient is
⟨g_m, U(w)⟩: F(w) - min_m ⟨g_m, U(w)⟩ bounds how far both are from the optimum.

All this is about inner products, so it is computed from the Gram matrix ``(M, M)`` in float64,
over its mean diagonal and the length of g_0: increments of 1e-12 or 1e8 give the same weights. The
public code of CAGrad computes in the increments' own scale, and gives uniform weights for small
ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from coterie.core.solvers import minimise
from coterie.core.tensors.device import CPU, computing_on

Centre = Literal["global", "own"]
TOLERANCE = 1e-9
"""Gap, over ‖g_0‖², at which to stop; what is reported is the gap itself."""
_STAGES = ((0.3, 1e-3), (0.1, 1e-4), (0.03, 1e-5), (0.01, 1e-6), (1e-3, 1e-7), (0.0, 1e-9))
"""δ, and the gap at which the search over the smoothed F stops."""
_STEPS = 100
_NOTHING = 1e-14  # of the mean ‖g_m‖²: rounding of what cancels
_UNSOLVED = 1e-6  # of 1
_ROUNDING = 1e-14
_BLOCK = 1 << 15  # numbers of an increment, converted at a time


class Conflict:
    """F(w) of Eq. 15 as an `coterie.core.solvers.Objective`, over ‖g_0‖.

    Args:
        gram: ``(M, M)`` float64 inner products of the increments, its mean diagonal 1.
        centre: ``(M,)`` weights a of the centre g_0 = Σ a_m g_m, which is not 0.
        c: radius of the ball over the length of its centre.
        smooth: δ, with which ‖U_w‖ is sqrt(‖U_w‖² + δ²); F itself has a kink where U_w = 0.
    """

    convex = True

    def __init__(self, gram: Tensor, centre: Tensor, c: float, smooth: float = 0.0) -> None:
        self.n, self.c, self.smooth, self.gram = len(gram), c, smooth, gram
        towards = gram @ centre
        self.length = math.sqrt(float(centre @ towards))
        self.towards = towards / self.length

    def smoothed(self, smooth: float) -> Conflict:
        """Give the same with another δ."""
        other = copy(self)
        other.smooth = smooth
        return other

    def slope(self, p: Tensor) -> tuple[float, Tensor]:
        """F(w) / ‖g_0‖ at ``p``, ``(M,)``, and its gradient; at a kink a subgradient."""
        along = self.gram @ p
        length = math.sqrt(max(0.0, float(p @ along)) + self.smooth**2)
        value = float(self.towards @ p) + self.c * length
        if length == 0.0:
            return value, self.towards
        return value, torch.add(self.towards, along, alpha=self.c / length)

    def answer(self, weights: Tensor, step: Tensor | None = None) -> Answer:
        """Judge weights ``(M,)`` with the direction of Eq. 17, or one that steps elsewhere.

        Args:
            weights: w, the sum 1.
            step: ``(M,)`` weights s, from g_0 / ‖g_0‖, by default c U_w / ‖U_w‖ (0 if U_w = 0).
        """
        length = math.sqrt(max(0.0, float(weights @ self.gram @ weights)))
        if step is None:
            step = weights * (self.c / length if length > 0.0 else 0.0)
        helps = self.towards + self.gram @ step
        gap = float(self.towards @ weights) + self.c * length - float(helps.min())
        return Answer(gap / self.length, weights, step, helps)


class Answer(NamedTuple):
    """Weights and a direction of one problem.

    Attributes:
        gap: bound, over ‖g_0‖², of what either misses.
        weights: ``(M,)`` w.
        step: ``(M,)`` s: the direction is g_0 + ‖g_0‖ Σ s_m g_m, with the normalised increments.
        helps: ``(M,)`` ⟨g_m, U⟩ / ‖g_0‖.
    """

    gap: float
    weights: Tensor
    step: Tensor
    helps: Tensor


@dataclass(frozen=True)
class Coordinated:
    """What `coordinate` found; P is 1 for one centre, or M where each increment is a centre.

    Attributes:
        mix: ``(P, M)`` float64: U* = Σ mix_m g_m.
        weights: ``(P, M)`` float64 w* on the simplex, 0 for what is not sound.
        gap: ``(P,)`` float64: no direction of the ball is better by more, in units of ‖g_0‖².
        length: ``(P,)`` float64 ‖g_0‖.
        mean: ``(M,)`` float64 weights of the plain mean of the increments that are sound.
        cosine: mean cosine of two increments; NaN where less than two are sound and not 0.
        opposed: share of such pairs whose cosine is below 0.
    """

    mix: Tensor
    weights: Tensor
    gap: Tensor
    length: Tensor
    mean: Tensor
    cosine: float
    opposed: float

    def direction(self, increments: Tensor) -> Tensor:
        """U* of increments ``(M, ...)``, those that are not sound set to 0; ``(P, ...)``."""
        return combined(self.mix, increments)


def coordinate(
    gram: Tensor,
    c: float,
    *,
    centre: Centre = "global",
    sound: Tensor | None = None,
    tolerance: float = TOLERANCE,
) -> Coordinated:
    """Find the direction in the ball that helps all of M increments (Eqs. 13 to 17).

    Increments of 0 (or 1e-7 of the others' length) are neither helped nor harmed: they count in the
    mean and have no weight. Where increments cancel (U_w = 0) Eq. 17 says 0 / 0; then U* is an
    optimum of Eq. 13 inside the ball, which is g_0 if nothing that cancels is along it. U* is g_0
    too where c is 0, and where g_0 is 0, for which any weights do.

    Args:
        gram: ``(M, M)`` of `gram_of`, whatever its scale.
        c: radius of the ball over the length of its centre, at least 0; the paper has 0.4.
        centre: "global": the mean g_0 of the increments (Eq. 13, as CAGrad); "own": one problem an
            increment, around itself (Eqs. 15 to 17 as printed).
        sound: ``(M,)`` bool, increments that take part, default all; with "own" the ball of the
            others is the global one.
        tolerance: see `TOLERANCE`.

    Raises:
        ValueError: c is below 0, nothing is sound, or an inner product of what is sound is not
            finite.

    Example:
        >>> found = coordinate(torch.tensor([[1.0, -0.5], [-0.5, 1.0]]), c=0.4)
        >>> found.weights.tolist(), found.gap.item() < 1e-9, found.cosine
        ([[0.5, 0.5]], True, -0.5)
        >>> found.direction(torch.eye(2))  # (1 + c) g_0, both being as far from it
        tensor([[0.7000, 0.7000]])
    """
    if not c >= 0.0:
        raise ValueError(f"c must be at least 0, not {c}")
    with computing_on(CPU):
        gram = gram.to(CPU, torch.float64)
        n = len(gram)
        kept = torch.arange(n) if sound is None else sound.to(CPU).nonzero().flatten()
        if not len(kept):
            raise ValueError("no increment is sound: leave the parameters as they are")
        part = gram[kept][:, kept]
        if not part.isfinite().all():
            raise ValueError("increments are not finite: leave them out by `sound`")
        mean = torch.full((len(kept),), 1.0 / len(kept), dtype=torch.float64)
        found = _solved(part, mean[None], c, tolerance)
        if centre == "own":
            shared = [value.repeat(n, *[1] * (value.dim() - 1)) for value in found]
            own = _solved(part, torch.eye(len(kept), dtype=torch.float64), c, tolerance)
            found = _Solved(*(a.index_copy(0, kept, b) for a, b in zip(shared, own, strict=True)))
        mix, weights, gap, length = found
        mix, weights, mean = (_widened(value, kept, n) for value in (mix, weights, mean))
        return Coordinated(mix, weights, gap, length, mean, *_cosines(part))


def gram_of(parts: Sequence[Tensor], scales: Sequence[Tensor] | None = None) -> Tensor:
    """Inner products of M increments that may have several parts, ``(M, M)`` float64.

    Float32 numbers are multiplied as float64, a block at a time: nothing over- or underflows, and
    what nearly cancels in the mean keeps its digits.

    Args:
        parts: each ``(M, ...)``.
        scales: of each part ``(...)``, by which the increments are multiplied; default 1.

    Example:
        >>> gram_of([torch.tensor([[1.0, 2.0], [0.0, 3.0]])]).tolist()
        [[5.0, 6.0], [6.0, 9.0]]
    """
    first = parts[0]
    gram = torch.zeros(len(first), len(first), dtype=torch.float64, device=first.device)
    for number, part in enumerate(parts):
        flat = part.flatten(1)
        scale = None if scales is None else scales[number].flatten()
        for start in range(0, flat.shape[1], _BLOCK):
            block = flat[:, start : start + _BLOCK].double()
            if scale is not None:
                block = block * scale[start : start + _BLOCK]
            gram.addmm_(block, block.T)
    return gram


def combined(mix: Tensor, increments: Tensor) -> Tensor:
    """Sums Σ_m mix_m g_m of increments ``(M, ...)`` by ``(M,)`` or ``(P, M)``: ``(P, ...)``."""
    return torch.tensordot(mix.to(increments), increments, 1)


class _Solved(NamedTuple):
    """As of `Coordinated`."""

    mix: Tensor
    weights: Tensor
    gap: Tensor
    length: Tensor


def _solved(gram: Tensor, centres: Tensor, c: float, tolerance: float) -> _Solved:
    """Solve a problem for each of P centres, ``(P, M)``."""
    size = float(gram.diagonal().mean())
    gram = gram / size if size > 0.0 else gram
    there = (gram.diagonal() > _NOTHING).nonzero().flatten()
    rows = []
    for centre in centres:
        square = float(centre @ gram @ centre)
        mix, weights, gap = centre.clone(), centre.clone(), 0.0
        if square > _NOTHING:
            conflict = Conflict(gram[there][:, there], centre[there], c)
            found = _best(conflict, tolerance)
            gap = max(0.0, found.gap)
            mix.index_add_(0, there, found.step, alpha=conflict.length)
            weights.zero_().index_copy_(0, there, found.weights)
        rows.append((mix, weights, gap, math.sqrt(max(0.0, square) * size)))
    mixes, all_weights, gaps, lengths = zip(*rows, strict=True)
    numbers = (torch.tensor(row, dtype=torch.float64) for row in (gaps, lengths))
    return _Solved(torch.stack(mixes), torch.stack(all_weights), *numbers)


def _best(conflict: Conflict, tolerance: float) -> Answer:
    """Solve one problem.

    The search finds which increments matter; their weights then have a closed form. F is smoothed
    less and less, until the gap of either is small. It begins where orthogonal increments end.
    """
    if conflict.c == 0.0:
        weights = torch.zeros_like(conflict.towards)
        weights[conflict.towards.argmin()] = 1.0
        return conflict.answer(weights)
    weights = 1.0 / conflict.gram.diagonal()
    weights = weights / weights.sum()
    best = conflict.answer(weights)
    for smooth, fine in _STAGES:
        weights = minimise(conflict.smoothed(smooth), weights, fine, _STEPS).p
        best = min(best, conflict.answer(weights), _exact(conflict, weights), key=_gap)
        if best.gap <= tolerance:
            break
    return best


def _exact(conflict: Conflict, weights: Tensor) -> Answer:
    """Find which increments matter, beginning with those that have a weight; an active set.

    Those whose weight turns out to be below 0 leave, and the one that is helped least comes in.
    """
    best, places = conflict.answer(weights), (weights > 0.0).nonzero().flatten()
    for _ in range(3 * conflict.n):
        found = _alike(conflict, places, weights[places]) if len(places) else None
        if found is None:
            break
        ours, inwards = found
        if not float(ours.min()) >= 0.0:
            places = places[ours > 0.0]
            continue
        nothing = torch.zeros_like(weights)
        step = None if inwards is None else nothing.index_copy(0, places, inwards)
        answer = conflict.answer(nothing.index_copy(0, places, ours / ours.sum()), step)
        best, least = min(best, answer, key=_gap), answer.helps.argmin()
        if best.gap <= _ROUNDING or bool((places == least).any()):
            break
        places = torch.cat([places, least[None]]).sort().values
    return best


def _gap(answer: Answer) -> float:
    return answer.gap


def _alike(
    conflict: Conflict, places: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor | None] | None:
    """Weights, but for their sum, with which U* helps some increments alike, by ν; None if none do.

    For the helps b of g_0, the step s and G of these increments: G s = ν 1 - b and s'G s = c². So
    s = ν y - z with G y = 1 and G z = b, and the square of ν is solved for; w is s over its sum. If
    G y = 1 has no solution the increments cancel: ν is 0, w has U_w = 0, and the step is -z, which
    is given too since it leads inside the ball.
    """
    gram, towards = conflict.gram[places][:, places], conflict.towards[places]
    inverse = torch.linalg.pinv(gram, hermitian=True)
    y, z = inverse.sum(1), inverse @ towards
    yy, yz, rest = float(y.sum()), float(y @ towards), conflict.c**2 - float(z @ towards)
    if float((gram @ y - 1.0).abs().max()) > _UNSOLVED:
        return (weights - inverse @ (gram @ weights), -z) if rest >= 0.0 else None
    inner = yz**2 + yy * rest
    if yy <= 0.0 or inner < 0.0:
        return None
    step = (yz + math.sqrt(inner)) / yy * y - z
    return (step, None) if float(step.sum()) > 0.0 else None


def _widened(values: Tensor, kept: Tensor, n: int) -> Tensor:
    """Put ``(..., K)`` at K of n places, and 0 at the others."""
    return values.new_zeros(*values.shape[:-1], n).index_copy_(-1, kept, values)


def _cosines(gram: Tensor) -> tuple[float, float]:
    """Mean cosine of the pairs, and the share of those below 0."""
    there = gram.diagonal() > 0.0
    lengths = gram.diagonal()[there].sqrt()
    cosines = gram[there][:, there] / lengths / lengths[:, None]
    pairs = cosines[tuple(torch.triu_indices(len(lengths), len(lengths), 1))]
    return float(pairs.mean()), float((pairs < 0).double().mean())
