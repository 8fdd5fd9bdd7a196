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

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.tensors.keys import Key
from coterie.page.certificate.certificate import NAN, Certificate, FollowerGain, Gain, LeaderGain
from coterie.page.certificate.game import LEARNED, Answer, Deviation, Game
from coterie.page.settings import CertificateSettings

_SHARES = (0.25, 0.5, 1.0)
"""What is best in this stage may go too far over several, so part of the way is tried too."""


class Rollouts:
    """Plays a game as the settings say.

    Args:
        game: at its present stage.
        settings: horizon, discount, size of a batch.
        told: called with the number of plays so far; or None.
    """

    def __init__(
        self, game: Game, settings: CertificateSettings, told: Callable[[int], None] | None
    ) -> None:
        self.game, self.settings, self._told = game, settings, told
        self.played = 0

    def own(self, deviations: Sequence[Deviation], players: Sequence[int], key: Key) -> Tensor:
        """Payoffs ``(D,)`` float64 of ``players[d]`` in the play of ``deviations[d]``.

        Args:
            deviations: D of them.
            players: a leader's number, or N for the follower.
            key: of the draws, the same for all.
        """
        size, found = self.settings.batch, []
        for begin in range(0, len(deviations), size):
            part = deviations[begin : begin + size]
            payoffs = self.game.payoffs(part, self.settings.horizon, self.settings.gamma, key)
            column = torch.tensor(players[begin : begin + size])[:, None]
            found.append(payoffs.double().gather(1, column)[:, 0])
            self.played += len(part)
            if self._told is not None:
                self._told(self.played)
        return torch.cat(found) if found else torch.empty(0, dtype=torch.float64)

    def seeds(self, key: Key, purpose: str) -> list[Key]:
        """Keys of the repetitions for one purpose: to test on "fresh" ones, or to choose."""
        fresh = purpose == "fresh"
        count = self.settings.seeds if fresh else self.settings.screen_seeds
        return [key.fold(purpose, number) for number in range(count)]

    def all_payoffs(self, deviation: Deviation, key: Key) -> Tensor:
        """Payoffs ``(N + 1,)`` float64 of all players in one play."""
        horizon, gamma = self.settings.horizon, self.settings.gamma
        self.played += 1
        return self.game.payoffs([deviation], horizon, gamma, key).double()[0]


def leader_gains(
    rollouts: Rollouts, candidates: Tensor, who: list[int], key: Key
) -> tuple[LeaderGain, ...]:
    """Search the best deviations of the leaders ``who``, and test them on fresh seeds.

    Args:
        rollouts: of the game.
        candidates: ``(N, G, nA)``.
        who: the leaders tested.
        key: of all draws.
    """
    game, settings = rollouts.game, rollouts.settings
    screen, choose, fresh = (rollouts.seeds(key, word) for word in ("screen", "choose", "fresh"))
    table = _stage_table(game, candidates, screen)
    options = _best_of(table, settings.shortlist)[who]
    options = _narrow(rollouts, candidates, who, options, settings.keep, screen)
    options = _narrow(rollouts, candidates, who, options, 1, choose)
    best = candidates[who, options[:, 0]]
    deviations = [Deviation(leader, action) for leader, action in zip(who, best, strict=True)]
    # One key after the other: what a game keeps of its last plays may be of few keys.
    plays = [
        (rollouts.all_payoffs(LEARNED, one), rollouts.own(deviations, who, one)) for one in fresh
    ]
    learned, tried = (torch.stack(part) for part in zip(*plays, strict=True))
    of_stage = _stage_gains(
        game, candidates[range(game.n_leaders), _best_of(table, 1)[:, 0]], fresh
    )
    policy = game.learned_actions()
    return tuple(
        LeaderGain(
            leader,
            game.described(policy[leader]),
            game.described(best[place]),
            paired_gain(tried[:, place], learned[:, leader], settings.weight),
            of_stage[leader],
        )
        for place, leader in enumerate(who)
    )


def follower_gain(rollouts: Rollouts, after: Deviation, key: Key) -> FollowerGain:
    """Test the follower's answer to the leaders' part of a deviation.

    Which kind of answer is tried on the fresh seeds is chosen on others. An answer depends on what
    came of the leaders' actions, so it is made anew under every seed, by the same rule.
    """
    game, screen, fresh = rollouts.game, rollouts.seeds(key, "screen"), rollouts.seeds(key, "fresh")
    table = [_payoffs(rollouts, after, tries(game.answer(after, one)), one) for one in screen]
    best = int(_mean_or_worst(torch.stack(table)).argmax())
    answers, payoffs = [], []
    for one in fresh:
        answer = game.answer(after, one)
        two = torch.stack([answer.learned, tries(answer)[best]])
        answers.append(answer)
        payoffs.append(_payoffs(rollouts, after, two, one))
    pairs = torch.stack(payoffs)
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


def _stage_table(game: Game, candidates: Tensor, keys: Sequence[Key]) -> Tensor:
    """Mean payoffs ``(N, G)`` of candidates ``(N, G, nA)`` in this stage; -inf if not finite."""
    table = [
        torch.stack([game.stage_payoffs(actions, key).double() for actions in candidates.unbind(1)])
        for key in keys
    ]
    return _mean_or_worst(torch.stack(table)).T


def _best_of(table: Tensor, count: int) -> Tensor:
    """Numbers ``(N, count)`` of the best candidates in each row; all of them where count is 0."""
    wanted = min(count, table.shape[1]) if count else table.shape[1]
    return table.topk(wanted, dim=1).indices


def _narrow(
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
    ranked = _mean_or_worst(payoffs).reshape(options.shape).topk(count, dim=1).indices
    return options.gather(1, ranked)


def _stage_gains(game: Game, actions: Tensor, keys: Sequence[Key]) -> list[Gain]:
    """Gains ``N`` in this stage alone if every leader plays ``actions``, ``(N, nA)``."""
    n = game.n_leaders
    plays = [
        (game.stage_payoffs(actions, key).double(), game.payoffs([LEARNED], 1, 1.0, key)[0, :n])
        for key in keys
    ]
    other, base = (torch.stack(part) for part in zip(*plays, strict=True))
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


def _payoffs(rollouts: Rollouts, after: Deviation, answers: Tensor, key: Key) -> Tensor:
    deviations = [replace(after, answer=answer) for answer in answers]
    return rollouts.own(deviations, [rollouts.game.n_leaders] * len(deviations), key)


def _mean_or_worst(values: Tensor) -> Tensor:
    """Mean over the repetitions ``(S, ...)``; -inf where one is not finite.

    An action that breaks the player's training is no profitable deviation.
    """
    mean = values.mean(0)
    return torch.where(values.isfinite().all(0), mean, -torch.inf)


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
