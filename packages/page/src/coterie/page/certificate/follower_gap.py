"""The follower's gap: a better answer in this stage, and over the horizon."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.tensors.keys import Key
from coterie.page.certificate.certificate import FollowerGain
from coterie.page.certificate.game import Answer, Deviation
from coterie.page.certificate.leaders import paired_gain
from coterie.page.certificate.rollouts import Rollouts, mean_or_worst

_SHARES = (0.25, 0.5, 1.0)
"""What is best in this stage may go too far over several, so part of the way is tried too."""


def follower_gain(rollouts: Rollouts, after: Deviation, key: Key) -> FollowerGain:
    """Test the follower's answer to the leaders' part of a deviation.

    Which kind of answer is tried on the fresh seeds is chosen on others. An answer depends on what
    came of the leaders' actions, so it is made anew under every seed, by the same rule.
    """
    game, screen, fresh = rollouts.game, rollouts.seeds(key, "screen"), rollouts.seeds(key, "fresh")
    table = [_payoffs(rollouts, after, tries(game.answer(after, one)), one) for one in screen]
    best = int(mean_or_worst(torch.stack(table)).argmax())
    answers = [game.answer(after, one) for one in fresh]
    pairs = torch.stack(
        [
            _payoffs(rollouts, after, torch.stack([answer.learned, tries(answer)[best]]), one)
            for answer, one in zip(answers, fresh, strict=True)
        ]
    )
    utility = torch.tensor([answer.learned_utility for answer in answers], dtype=torch.float64)
    top = torch.tensor([answer.best_utility for answer in answers], dtype=torch.float64)
    ceilings = [answer.ceiling for answer in answers if answer.ceiling is not None]
    stage_bound = None
    if len(ceilings) == len(answers):
        stage_bound = float((torch.tensor(ceilings, dtype=torch.float64) - utility).mean())
    return FollowerGain(
        after.leader,
        {} if after.action is None else game.described(after.action),
        paired_gain(pairs[:, 1], pairs[:, 0], rollouts.settings.weight),
        paired_gain(top, utility),
        stage_bound,
    )


def tries(answer: Answer) -> Tensor:
    """Answers to try, ``(T, M)``: part of the way and the whole way to each that is known.

    Example:
        >>> one = Answer(torch.zeros(1), 0.0, torch.ones(1), 1.0, None, torch.empty(0, 1))
        >>> tries(one).T.tolist()
        [[0.25, 0.5, 1.0]]
    """
    offers = torch.cat([answer.best[None], answer.others.reshape(-1, len(answer.best))])
    way = (offers - answer.learned)[:, None]
    return (answer.learned + way * way.new_tensor(_SHARES)[:, None]).flatten(0, 1)


def n_tries(others: int) -> int:
    """Number of rows of `tries`."""
    return (1 + others) * len(_SHARES)


def _payoffs(rollouts: Rollouts, after: Deviation, answers: Tensor, key: Key) -> Tensor:
    deviations = [replace(after, answer=answer) for answer in answers]
    return rollouts.own(deviations, [rollouts.game.n_leaders] * len(deviations), key)
