"""Small games with known equilibria, for the certificate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.polynomial import Polynomial
from torch import Tensor

from coterie.core.tensors.keys import Key
from coterie.page.certificate.game import Answer, Deviation

BASE = 10.0


@dataclass(frozen=True)
class Constants:
    """Two clients f_i = (W + a_i - t_i)^2, a cost of effort, and a follower that steers W."""

    targets: tuple[float, float] = (1.0, -0.5)
    effort: float = 0.5
    server_target: float = 0.8
    server_effort: float = 2.0
    gamma: float = 0.9
    stages: int = 4


@dataclass
class Policy:
    """Of one stage: leaders a_i = slope_i W + level_i, follower v = gain (W + mean a) + offset."""

    slope: np.ndarray
    level: np.ndarray
    gain: float
    offset: float


def backward_induction(c: Constants) -> list[Policy]:
    """Exact feedback Stackelberg equilibrium, stage by stage from the last (float64 polynomials).

    W' = W + (a_1 + a_2)/2 + v; the follower answers knowing the a_i; leaders know that it will.
    """
    later = [Polynomial([0.0])] * 3
    policies: list[Policy] = []
    w = Polynomial([0.0, 1.0])
    for _ in range(c.stages):
        alpha = [float(v.coef[2]) if len(v.coef) > 2 else 0.0 for v in later]
        beta = [float(v.coef[1]) if len(v.coef) > 1 else 0.0 for v in later]
        curve = 2 - 2 * c.gamma * alpha[2]
        pull = 2 * c.server_target + c.gamma * beta[2]
        rho = 2 * c.server_effort / (curve + 2 * c.server_effort)
        sigma = pull / (curve + 2 * c.server_effort)
        matrix, on_w, constant = np.zeros((2, 2)), np.zeros(2), np.zeros(2)
        for i in range(2):
            matrix[i] = -c.gamma * alpha[i] * rho**2 / 2
            matrix[i, i] += 2 + 2 * c.effort
            on_w[i] = -2 + c.gamma * alpha[i] * rho**2
            constant[i] = 2 * c.targets[i] + c.gamma * rho * (alpha[i] * sigma + beta[i] / 2)
        slope, level = np.linalg.solve(matrix, on_w), np.linalg.solve(matrix, constant)
        a = [Polynomial([level[i], slope[i]]) for i in range(2)]
        middle = w + (a[0] + a[1]) / 2
        z = rho * middle + sigma
        stage = [BASE - (w + a[i] - c.targets[i]) ** 2 - c.effort * a[i] ** 2 for i in range(2)]
        stage.append(BASE - (z - c.server_target) ** 2 - c.server_effort * (z - middle) ** 2)
        later = [u + c.gamma * v(z) for u, v in zip(stage, later, strict=True)]
        policies.insert(0, Policy(slope, level, rho - 1.0, sigma))
    return policies


@dataclass
class QuadraticGame:
    """Two quadratic clients and a quadratic follower, over a few stages; noise moves W."""

    policies: list[Policy]
    constants: Constants = field(default_factory=Constants)
    state: float = 0.3
    noise: float = 0.0
    n_leaders: int = 2

    def learned_actions(self) -> Tensor:
        policy = self.policies[0]
        return torch.from_numpy(policy.slope * self.state + policy.level)[:, None]

    def described(self, action: Tensor) -> dict[str, float]:
        return {"a": float(action[0])}

    def stage_payoffs(self, actions: Tensor, key: Key) -> Tensor:
        return self._utilities(torch.tensor([self.state]), actions[:, 0][None])[0]

    def payoffs(
        self, deviations: Sequence[Deviation], horizon: int, gamma: float, key: Key
    ) -> Tensor:
        w = torch.full((len(deviations),), self.state, dtype=torch.float64)
        total = torch.zeros(len(deviations), 3, dtype=torch.float64)
        for h in range(horizon):
            policy = self.policies[h]
            a = torch.from_numpy(policy.slope) * w[:, None] + torch.from_numpy(policy.level)
            if h == 0:
                for d, one in enumerate(deviations):
                    if one.leader is not None:
                        a[d, one.leader] = one.action[0]
            middle = w + a.mean(1)
            v = policy.gain * middle + policy.offset
            if h == 0:
                for d, one in enumerate(deviations):
                    if one.answer is not None:
                        v[d] = one.answer[0]
            total[:, :2] += gamma**h * self._utilities(w, a)
            # The noise comes after the follower's move, so it cannot be answered in this stage.
            total[:, 2] += gamma**h * self._follower(middle, v)
            w = middle + v + self.noise * key.fold("noise", h).normal(dtype=torch.float64)
        return total

    def answer(self, deviation: Deviation, key: Key) -> Answer:
        a = self.learned_actions()[:, 0].clone()
        if deviation.leader is not None:
            a[deviation.leader] = deviation.action[0]
        middle = self.state + a.mean()
        policy, c = self.policies[0], self.constants
        learned = policy.gain * middle + policy.offset
        best = (c.server_target - middle) / (1 + c.server_effort)
        top = float(self._follower(middle, best))
        others = learned + torch.tensor([[-0.4], [0.4]])
        return Answer(
            learned[None], float(self._follower(middle, learned)), best[None], top, top, others
        )

    def _utilities(self, w: Tensor, a: Tensor) -> Tensor:
        c = self.constants
        targets = torch.tensor(c.targets, dtype=torch.float64)
        return BASE - (w[:, None] + a - targets).square() - c.effort * a.square()

    def _follower(self, middle: Tensor, v: Tensor) -> Tensor:
        c = self.constants
        return BASE - (middle + v - c.server_target).square() - c.server_effort * v.square()


@dataclass
class IndependentGame:
    """N leaders with gains of their own by action 1, and noise of their own in them."""

    gains: Tensor
    noise: float = 1.0
    payoff: float = 10.0
    failed: tuple[int, ...] = ()

    @property
    def n_leaders(self) -> int:
        return len(self.gains)

    def learned_actions(self) -> Tensor:
        return torch.zeros(self.n_leaders, 1)

    def described(self, action: Tensor) -> dict[str, float]:
        return {"a": float(action[0])}

    def stage_payoffs(self, actions: Tensor, key: Key) -> Tensor:
        own = self.gains + self.noise * key.normal(self.n_leaders, dtype=torch.float64)
        utilities = self.payoff + own * actions[:, 0]
        utilities[list(self.failed)] = torch.nan
        return utilities

    def payoffs(
        self, deviations: Sequence[Deviation], horizon: int, gamma: float, key: Key
    ) -> Tensor:
        found = torch.full((len(deviations), self.n_leaders + 1), self.payoff, dtype=torch.float64)
        own = self.gains + self.noise * key.normal(self.n_leaders, dtype=torch.float64)
        for d, one in enumerate(deviations):
            if one.leader is not None:
                found[d, one.leader] += own[one.leader] * one.action[0]
        found[:, list(self.failed)] = torch.nan
        return found

    def answer(self, deviation: Deviation, key: Key) -> Answer:
        none = torch.zeros(1)
        return Answer(none, self.payoff, none, self.payoff, None, torch.empty(0, 1))
