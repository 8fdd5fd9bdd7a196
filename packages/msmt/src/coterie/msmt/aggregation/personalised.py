"""Personalised aggregation (section 3.3.3, Eqs. 12, 14, 18, 21): a round of the server, and ψ.

A tree is a dict of tensors ``(S, K, ...)``: of S clients, each with K parts. Parts of the experts
are the N experts' scenario parameters W_j^n, parts of the towers the T tasks' towers Θ_{i,j}. A
round of the server is, with the numbers of the paper's equations,

    Δ        increments of the uploads             Eq. 14
    ΔW̄       their mean                            Eq. 12
    U*       their coordinated direction           Eqs. 13 to 17
    W ← W + ΔW̄ + ψ U*                              Eqs. 18, 21

where the server makes ΔW̄ and U* (`personalised`), and the client, who alone knows ψ and with it
its W, the rest (`applied`). The paper writes Δ and W̄ for two things each, so there are two readings
of Eq. 14: increments of each client's parameters, as Eqs. 11 and 12 have them, and, as printed,
differences of averages over all clients (`average_increments`). The latter are the same for all
clients, so that U* = (1 + c) ΔW̄ whatever the clients sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from coterie.core.tensors import tree
from coterie.msmt.aggregation.coordination import Centre, Coordinated, combined, coordinate, gram_of
from coterie.msmt.aggregation.fedbn import Affine, normalised_average, statistics
from coterie.msmt.settings import AggregationOptions

Tree = dict[str, Tensor]


@dataclass(frozen=True)
class Rule:
    """How uploads are aggregated; the defaults are the recommended reading for the experts.

    Attributes:
        increments: what Δ is: "parameters", each client's own (Eqs. 11, 12), or "averages", the
            difference of the averages W̄ of two rounds (Eq. 14 as printed).
        fedbn: what federated batch normalisation is for: "increment" whitens the increments by σ_g
            before they are coordinated, so that the ball is round there; "literal" makes W̄ the
            average of the normalised parameters (Eq. 10), which is β_g; "off" for neither.
        coordinate: whether U* is the coordinated direction; ΔW̄ if not.
        c: radius of the ball around the increments' mean, over its length.
        centre: of the ball, see `coterie.msmt.aggregation.coordination.coordinate`.
        grouping: "all" coordinates (and averages) all S·K increments together, as Eqs. 10, 12 and
            15 do; "separate" has a problem for each of the K parts over the S clients.
        eps: ε_g, over the mean σ_g²: increments are small, and beside batch normalisation's usual
            1e-5 nothing would be whitened.
    """

    increments: Literal["parameters", "averages"] = "parameters"
    fedbn: Literal["increment", "literal", "off"] = "increment"
    coordinate: bool = True
    c: float = 0.4
    centre: Centre = "global"
    grouping: Literal["all", "separate"] = "all"
    eps: float = 1e-3

    def for_towers(self) -> Rule:
        """Give the rule for towers: each task over the clients (Eq. 21), nothing is normalised."""
        return replace(self, fedbn="off", grouping="separate")


RECOMMENDED = Rule()
LITERAL = Rule(increments="averages", fedbn="literal")
"""All equations as printed."""


@dataclass(frozen=True)
class Aggregated:
    """What the server sends; trees of ``(S, K, ...)``, which may be views: not to be written to.

    Attributes:
        mean: [ΔW̄]^r.
        direction: U*.
        average: W̄, each ``(K, ...)``: what Eq. 23 pulls towards, and `personalised`'s ``before`` of
            the next round.
        found: the conflicts, one for each problem.
    """

    mean: Tree
    direction: Tree
    average: Tree
    found: tuple[Coordinated, ...] = ()

    def stepped(self, lr: float) -> Aggregated:
        """Let the server go ``lr`` times as far along ΔW̄, and W̄ with it (Reddi et al. 2021).

        Example:
            >>> one = {"w": torch.ones(2, 1)}
            >>> found = Aggregated(one, one, {"w": torch.tensor([5.0])}).stepped(3.0)
            >>> found.mean["w"].flatten().tolist(), found.average["w"].tolist()
            ([3.0, 3.0], [7.0])
        """
        if lr == 1.0:
            return self
        mean = {name: lr * value for name, value in self.mean.items()}
        average = {n: old + mean[n][0] - self.mean[n][0] for n, old in self.average.items()}
        return replace(self, mean=mean, average=average)


def personalised(
    increments: Mapping[str, Tensor],
    held: Mapping[str, Tensor],
    rule: Rule,
    *,
    affine: Affine | None = None,
    before: Mapping[str, Tensor] | None = None,
    sound: Tensor | None = None,
) -> Aggregated:
    """Aggregate the uploads of a round (Eqs. 12 to 18, or 21).

    Args:
        increments: of the clients' parameters in the round, each ``(S, K, ...)`` (Eq. 11).
        held: what they began from, [W]^{r-1}, as far as the server knows it, ``(S, K, ...)``;
            statistics and averages are of the sum of both.
        rule: how.
        affine: γ_j and β_j of the clients, ``(S, d_in)``; needed with ``fedbn`` "literal". A tensor
            that has not d_in rows takes their means over the inputs.
        before: W̄ of the round before, each ``(K, ...)``; needed with ``increments`` "averages". In
            the first round it is `average` of what clients begin with.
        sound: ``(S,)`` bool, clients whose upload counts, default all; mean and direction are made
            for the others too.

    Raises:
        ValueError: what the rule needs is not given, no upload counts, or one that does is not
            finite.
    """
    counts = _all_of(increments) if sound is None else sound
    own = _cleared(increments, counts)
    uploaded = {name: held[name] + value for name, value in own.items()}
    mean = average(uploaded, rule, affine=affine, sound=counts)
    if rule.increments == "averages":
        if before is None:
            raise ValueError("the averages of the round before are needed: begin with `average`")
        own = average_increments(mean, before, len(counts))
    scales = _scales(uploaded, rule, counts) if rule.fedbn == "increment" else None
    found = _coordinated(own, rule, counts, scales)
    added = _of_problems(own, rule, lambda p, part: combined(found[p].mean, part)[None])
    direction = _of_problems(own, rule, lambda p, part: found[p].direction(part))
    return Aggregated(added, direction, mean, found)


def applied(base: Mapping[str, Tensor], direction: Mapping[str, Tensor], psi: Tensor) -> Tree:
    """Give the client's parameters, W = [W]^{r-1} + ΔW̄ + ψ U* (Eqs. 18, 21).

    Args:
        base: [W]^{r-1} + ΔW̄, each ``(K, ...)``, or ``(C, K, ...)`` of several clients.
        direction: likewise.
        psi: ``(K,)`` or ``(C, K)``, a number for each expert or task; it never leaves the client.

    Example:
        >>> psi = torch.tensor([0.0, 2.0])
        >>> applied({"w": torch.zeros(2, 3)}, {"w": torch.ones(2, 3)}, psi)["w"].tolist()
        [[0.0, 0.0, 0.0], [2.0, 2.0, 2.0]]
    """
    return {
        name: value + psi[(..., *[None] * (value.dim() - psi.dim()))] * direction[name]
        for name, value in base.items()
    }


def average(
    uploaded: Mapping[str, Tensor],
    rule: Rule,
    *,
    affine: Affine | None = None,
    sound: Tensor | None = None,
) -> Tree:
    """Average W̄ of the uploads (Eq. 10), each ``(K, ...)``; arguments as of `personalised`.

    With ``fedbn`` "literal" the average is of the normalised parameters, β_g; otherwise of the
    parameters, over all parts or for each as the rule groups them.

    Raises:
        ValueError: there are no γ and β, or no upload counts.
    """
    counts = _all_of(uploaded) if sound is None else sound
    if not counts.any():
        raise ValueError("no upload is sound: leave the parameters as they are")
    if rule.fedbn != "literal":
        return _plain_average(uploaded, rule, counts)
    if affine is None:
        raise ValueError("γ and β of the clients are needed where FedBN is literal")
    everyone = Affine(affine.gamma[counts], affine.beta[counts]).average()
    return {
        name: normalised_average(_fitting(everyone, value[0, 0]), value[0, 0]).expand_as(value[0])
        for name, value in uploaded.items()
    }


def average_increments(
    now: Mapping[str, Tensor], before: Mapping[str, Tensor], n_clients: int
) -> Tree:
    """Differences of the averages of two rounds (Eq. 14 as printed), the same for all S clients.

    Args:
        now: [W̄]^r, each ``(K, ...)``.
        before: [W̄]^{r-1}.
        n_clients: S.

    Returns:
        ``(S, K, ...)`` each, views.
    """
    changes = {name: value - before[name] for name, value in now.items()}
    return {name: value.expand(n_clients, *value.shape) for name, value in changes.items()}


def federated_average(
    increments: Mapping[str, Tensor], shares: Tensor, *, sound: Tensor | None = None
) -> Tree:
    """Mean increments over the clients, part by part (FedAvg), each ``(S, K, ...)``, views.

    Args:
        increments: each ``(S, K, ...)``.
        shares: ``(S,)`` weights, as numbers of samples; equal ones are the plain mean.
        sound: as of `personalised`.

    Raises:
        ValueError: the weights of the uploads that count sum to 0.
    """
    counts = _all_of(increments) if sound is None else sound
    weights = shares.double() * counts
    if not float(weights.sum()) > 0.0:
        raise ValueError("no upload has a weight: leave the parameters as they are")
    weights = weights / weights.sum()
    return {
        name: combined(weights, value).expand_as(value)
        for name, value in _cleared(increments, counts).items()
    }


def _plain_average(uploaded: Mapping[str, Tensor], rule: Rule, sound: Tensor) -> Tree:
    weights = sound.double() / sound.sum()
    parts = {n: combined(weights, value) for n, value in _cleared(uploaded, sound).items()}
    if rule.grouping == "separate":
        return parts
    return {name: value.mean(0).expand_as(value) for name, value in parts.items()}


def _coordinated(
    increments: Tree, rule: Rule, sound: Tensor, scales: Tree | None
) -> tuple[Coordinated, ...]:
    """Solve each problem (Eqs. 13 to 17).

    To whiten increments, coordinate and undo it for U* is to coordinate with the whitened ones'
    inner products.
    """
    problems = {name: _problems(value, rule) for name, value in increments.items()}
    first = next(iter(problems.values()))
    parts = next(iter(increments.values())).shape[1]
    members = sound if rule.grouping == "separate" else sound.repeat_interleave(parts)
    scaling = None if scales is None else [scales[name] for name in problems]
    return tuple(
        coordinate(
            gram_of([value[number] for value in problems.values()], scaling),
            rule.c if rule.coordinate else 0.0,
            centre=rule.centre if rule.coordinate else "global",
            sound=members,
        )
        for number in range(len(first))
    )


def _scales(uploaded: Mapping[str, Tensor], rule: Rule, sound: Tensor) -> Tree:
    """1 / sqrt(σ_g² + ε_g) over the N·S parameters that count (Eq. 7)."""
    counted = uploaded if bool(sound.all()) else {n: value[sound] for n, value in uploaded.items()}
    found = {n: statistics(value.flatten(0, 1)).variance for n, value in counted.items()}
    mean = sum(float(v.double().sum()) for v in found.values()) / sum(
        v.numel() for v in found.values()
    )
    least = torch.finfo(next(iter(found.values())).dtype).tiny
    eps = rule.eps * mean + least if mean > 0.0 else 1.0  # nothing differs: nothing is whitened
    return {name: (value + eps).rsqrt() for name, value in found.items()}


def _problems(leaf: Tensor, rule: Rule) -> Tensor:
    """Increments ``(S, K, ...)`` by problems, ``(P, M, ...)``."""
    return leaf.transpose(0, 1) if rule.grouping == "separate" else leaf.flatten(0, 1)[None]


def _of_problems(increments: Tree, rule: Rule, solve: Callable[[int, Tensor], Tensor]) -> Tree:
    """Put what each problem gives, ``(1, ...)`` or ``(M, ...)``, where its increments stand."""

    def of_leaf(leaf: Tensor) -> Tensor:
        parts = [solve(number, part) for number, part in enumerate(_problems(leaf, rule))]
        if rule.grouping == "all":
            return (
                parts[0]
                .expand(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])
                .unflatten(0, leaf.shape[:2])
            )
        return torch.stack(parts, 1).expand_as(leaf)

    return {name: of_leaf(leaf) for name, leaf in increments.items()}


def _cleared(values: Mapping[str, Tensor], sound: Tensor) -> Tree:
    """Put 0 where a client's part is not sound: 0 times NaN would be NaN."""
    if bool(sound.all()):
        return dict(values)
    return {
        name: torch.where(tree.columns(sound, value), value, value.new_zeros(()))
        for name, value in values.items()
    }


def _fitting(affine: Affine, parameter: Tensor) -> Affine:
    has_inputs = parameter.dim() > 0 and len(parameter) == affine.beta.shape[-1]
    return affine if has_inputs else affine.scalar()


def _all_of(values: Mapping[str, Tensor]) -> Tensor:
    first = next(iter(values.values()))
    return first.new_ones(len(first), dtype=torch.bool)


# How the server aggregates, by the options of a run.


def rule_of(options: AggregationOptions) -> Rule:
    """The rule for the experts' scenario parameters; the reading must be resolved."""
    assert options.increments is not None
    assert options.fedbn is not None
    return Rule(
        increments=options.increments,
        fedbn=options.fedbn,
        eps=options.eps,
        coordinate=options.coordinate,
        c=options.c,
        centre=options.centre,
        grouping="separate" if options.per_expert else "all",
    )
