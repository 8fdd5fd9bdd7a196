"""Test whether learned policies are a feedback Stackelberg equilibrium (PAGE, Definition 4).

What the definition demands. The pay-offs are discounted sums over the stages (Definitions 2, 3),
and a profile is an equilibrium if no player gains by replacing its action in *one* stage while all
other actions are those of the optimal strategies, which are feedback: functions of the gaming
condition. So a deviation in this stage changes the condition of the later ones, and the others
react to that by their policies; what must not grow is the discounted sum, not this stage's utility.
A policy may well give up utility now for a better W later, or the reverse: one-stage regret proves
nothing either way and is reported for information only.

Leaders infer the follower's reaction, so under a leader's deviation the follower answers *in the
same stage* by its policy to what it then sees; only the other leaders' actions stay, as they move
at once. The follower deviates after the leaders moved, with their actions fixed. A reaction that
leaders are to infer must be one the follower would want, so its gap is tested off the path of play
as well, after deviations drawn by chance: else an empty threat would pass as an equilibrium.

Deviating in one stage is enough: if no such deviation pays under any condition, no longer one does
(one-shot deviation principle, Blackwell, 1965). A certificate speaks of the condition that the game
stands at; for a later stage of [tau, T], play on and certify again.

Candidates are compared over the horizon on some seeds; the best few again on others; the one left
meets the learned action on fresh seeds, with common random numbers. Its gain there is unbiased
(nothing was maximised over those seeds), hence a lower bound, in expectation, of the true regret:
of actions that were not tried it says nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.core.tensors.keys import Key
from coterie.page.certificate.certificate import Certificate, FollowerGain, LeaderGain
from coterie.page.certificate.gains import Rollouts, follower_gain, leader_gains, n_tries
from coterie.page.certificate.game import LEARNED, Deviation, Game
from coterie.page.settings.certificate import CertificateSettings


def certify(
    game: Game,
    candidates: Tensor,
    settings: CertificateSettings,
    key: Key,
    told: Callable[[int], None] | None = None,
) -> Certificate:
    """Measure every player's regret and conclude.

    Args:
        game: at the stage to be tested, with its policies frozen.
        candidates: actions to try, ``(G, nA)`` for all leaders or ``(N, G, nA)``.
        settings: of the test.
        key: of all draws.
        told: called with the number of plays so far; `plays_needed` gives the whole.

    Raises:
        ValueError: the candidates do not fit the game.
    """
    tried = _fitting(candidates, game.learned_actions())
    who = _tested(game.n_leaders, settings.leaders, key.fold("leaders"))
    rollouts = Rollouts(game, settings, told)
    leaders = leader_gains(rollouts, tried, who, key)
    follower = follower_gain(rollouts, LEARNED, key.fold("answers"))
    off_path = _off_path(rollouts, leaders, tried, key.fold("off path"))
    return Certificate(
        game.n_leaders, tried.shape[1], settings, leaders, follower, off_path, rollouts.played
    )


def plays_needed(
    n_leaders: int, n_candidates: int, settings: CertificateSettings, others: int = 0
) -> int:
    """Number of times that `certify` plays the game over the horizon.

    Args:
        n_leaders: N.
        n_candidates: G.
        settings: of the test.
        others: number F of further answers of the follower.
    """
    tested = min(settings.leaders or n_leaders, n_leaders)
    options = min(settings.shortlist or n_candidates, n_candidates)
    kept = min(settings.keep, options)
    screening = settings.screen_seeds * ((options > kept) * options + (kept > 1) * kept)
    followers = 1 + settings.off_path
    of_follower = settings.screen_seeds * n_tries(others) + 2 * settings.seeds
    return tested * (screening + settings.seeds) + settings.seeds + followers * of_follower


def _fitting(candidates: Tensor, learned: Tensor) -> Tensor:
    """Give candidates as ``(N, G, nA)``."""
    n, width = learned.shape
    shape = tuple(candidates.shape)
    if len(shape) == 2:
        candidates = candidates.expand(n, *shape)
    if candidates.dim() != 3 or candidates.shape[::2] != (n, width) or not candidates.shape[1]:
        raise ValueError(f"candidates of shape {shape}: wanted (G, {width}) or ({n}, G, {width})")
    if not candidates.isfinite().all():
        raise ValueError("a candidate action is not finite")
    return candidates


def _tested(n_leaders: int, wanted: int, key: Key) -> list[int]:
    order = key.uniform(n_leaders).argsort()
    return sorted(order[: wanted or n_leaders].tolist())


def _off_path(
    rollouts: Rollouts, leaders: tuple[LeaderGain, ...], candidates: Tensor, key: Key
) -> tuple[FollowerGain, ...]:
    known = [one.leader for one in leaders if one.gain.known]
    gains = []
    for number in range(rollouts.settings.off_path if known else 0):
        own = key.fold(number)
        by, what = own.uniform(2, dtype=torch.float64).tolist()
        leader = known[int(by * len(known))]
        after = Deviation(leader, candidates[leader, int(what * candidates.shape[1])])
        gains.append(follower_gain(rollouts, after, own))
    return tuple(gains)
