"""Search for the leaders' best deviations, and their regrets on fresh seeds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.core.tensors.keys import Key
from coterie.page.certificate.certificate import NAN, Gain
from coterie.page.certificate.game import Deviation, Game
from coterie.page.certificate.rollouts import Rollouts, mean_or_worst


def stage_table(game: Game, candidates: Tensor, keys: Sequence[Key]) -> Tensor:
    """Mean payoffs ``(N, G)`` of candidates ``(N, G, nA)`` in this stage; -inf if not finite."""
    table = [
        torch.stack([game.stage_payoffs(actions, key).double() for actions in candidates.unbind(1)])
        for key in keys
    ]
    return mean_or_worst(torch.stack(table)).T


def best_of(table: Tensor, count: int) -> Tensor:
    """Numbers ``(N, count)`` of the best candidates in each row; all of them where count is 0."""
    wanted = min(count, table.shape[1]) if count else table.shape[1]
    return table.topk(wanted, dim=1).indices


def narrow(
    rollouts: Rollouts,
    candidates: Tensor,
    who: Sequence[int],
    options: Tensor,
    count: int,
    keys: Sequence[Key],
) -> Tensor:
    """Keep the options of each leader with the highest payoffs over the horizon.

    Args:
        rollouts: of the game.
        candidates: ``(N, G, nA)``.
        who: the L leaders tested.
        options: ``(L, K)`` numbers of candidates still in the race.
        count: how many of K are left, if there are as many.
        keys: of the repetitions.
    """
    if options.shape[1] <= count:
        return options
    players = [leader for leader in who for _ in range(options.shape[1])]
    deviations = [
        Deviation(leader, candidates[leader, option])
        for leader, mine in zip(who, options.tolist(), strict=True)
        for option in mine
    ]
    payoffs = torch.stack([rollouts.own(deviations, players, key) for key in keys])
    ranked = mean_or_worst(payoffs).reshape(options.shape).topk(count, dim=1).indices
    return options.gather(1, ranked)


def stage_gains(game: Game, actions: Tensor, keys: Sequence[Key]) -> list[Gain]:
    """Gains ``N`` in this stage alone if every leader plays ``actions``, ``(N, nA)``."""
    learned = game.learned_actions()
    other = torch.stack([game.stage_payoffs(actions, key).double() for key in keys])
    base = torch.stack([game.stage_payoffs(learned, key).double() for key in keys])
    return [paired_gain(a, b) for a, b in zip(other.T, base.T, strict=True)]


def paired_gain(other: Tensor, base: Tensor, weight: float = 1.0) -> Gain:
    """Mean and standard error of ``other - base``, both ``(S,)`` under the same seeds.

    Args:
        other: payoffs of a deviation.
        base: of the learned play.
        weight: Σ γ^h of the stages that the payoffs are of.

    Example:
        >>> paired_gain(torch.tensor([2.0, 4.0]), torch.tensor([1.0, 1.0]))
        Gain(payoff=1.0, mean=2.0, error=1.0)
    """
    difference = other.double() - base.double()
    payoff = float(base.double().mean()) / weight
    if not difference.isfinite().all():
        return Gain(payoff, NAN, NAN)
    error = float(difference.std() / len(difference) ** 0.5) if len(difference) > 1 else NAN
    return Gain(payoff, float(difference.mean()), error)
