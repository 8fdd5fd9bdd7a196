"""The certificate on a small federation of softmax regressions, played in full."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.core.solvers import minimise
from coterie.core.tensors.keys import Key
from coterie.page.answer import SoftmaxMixture
from coterie.page.certificate.certify import certify
from coterie.page.certificate.game import LEARNED, Answer
from coterie.page.settings import CertificateSettings

N, WIDTH, CLASSES, SAMPLES, STEPS = 5, 4, 3, 40, 10
RATES = torch.tensor([[0.01], [0.1], [0.3], [1.0], [2.0]])


def utility(loss):
    return 1.0 / (loss + 0.1)


@dataclass
class Federation:
    """Leaders choose a learning rate; the follower weighs; W' = sum p_i w_i."""

    x: Tensor
    y: Tensor
    server: tuple[Tensor, Tensor]
    rates: Tensor
    follower: str
    n_leaders: int = N

    def learned_actions(self) -> Tensor:
        return self.rates

    def described(self, action: Tensor) -> dict[str, float]:
        return {"rate": float(action[0])}

    def stage_payoffs(self, actions: Tensor, key: Key) -> Tensor:
        start = torch.zeros(CLASSES, WIDTH + 1, dtype=torch.float64)
        return utility(self._losses(self._train(start, actions, key)))

    def payoffs(self, deviations, horizon, gamma, key):
        return torch.stack([self._play(one, horizon, gamma, key) for one in deviations])

    def answer(self, deviation, key) -> Answer:
        start = torch.zeros(CLASSES, WIDTH + 1, dtype=torch.float64)
        w = self._train(start, self._actions(deviation), key.fold("stage", 0))
        mixture, learned = self._mixture(w), self._reply(w)
        best = minimise(mixture, tolerance=1e-6)
        return Answer(
            learned,
            utility(mixture.slope(learned)[0]),
            best.p,
            utility(best.value),
            utility(best.bound),
            torch.full((1, N), 1 / N, dtype=torch.float64),
        )

    def _play(self, deviation, horizon, gamma, key):
        start = torch.zeros(CLASSES, WIDTH + 1, dtype=torch.float64)
        total = torch.zeros(N + 1, dtype=torch.float64)
        for h in range(horizon):
            one = deviation if h == 0 else LEARNED
            w = self._train(start, self._actions(one), key.fold("stage", h))
            p = self._reply(w) if one.answer is None else one.answer
            loss = self._mixture(w).slope(p)[0]
            total[:N] += gamma**h * utility(self._losses(w))
            total[N] += gamma**h * utility(loss)
            start = torch.tensordot(p, w, 1)
        return total

    def _actions(self, deviation) -> Tensor:
        rates = self.rates.clone()
        if deviation.leader is not None:
            rates[deviation.leader] = deviation.action
        return rates

    def _reply(self, w: Tensor) -> Tensor:
        if self.follower == "uniform":
            return torch.full((N,), 1 / N, dtype=torch.float64)
        return minimise(self._mixture(w), tolerance=1e-6).p

    def _mixture(self, w: Tensor) -> SoftmaxMixture:
        return SoftmaxMixture(w[..., :-1], w[..., -1], *self.server)

    def _train(self, start: Tensor, rates: Tensor, key: Key) -> Tensor:
        w = start.expand(N, -1, -1).clone()
        for step in range(STEPS):
            rows = (key.fold("batch", step).uniform(N, 8) * SAMPLES).long()
            x = self.x.gather(1, rows[..., None].expand(-1, -1, WIDTH + 1))
            error = torch.softmax(x @ w.mT, -1) - F.one_hot(self.y.gather(1, rows), CLASSES)
            w = w - rates[:, :, None] * (error.mT @ x) / 8
        return w

    def _losses(self, w: Tensor) -> Tensor:
        scores = self.x @ w.mT
        losses = F.cross_entropy(scores.flatten(0, 1), self.y.flatten(), reduction="none")
        return losses.reshape(N, SAMPLES).mean(1)


def federation(rate, follower="optimal"):
    key = Key.from_seed(3)
    shift = key.fold("shift").normal(N, 1, WIDTH, dtype=torch.float64)
    x = shift + key.fold("x").normal(N, SAMPLES, WIDTH, dtype=torch.float64)
    truth = key.fold("truth").normal(WIDTH, CLASSES, dtype=torch.float64)
    y = (x @ truth).argmax(-1)
    # Clients 3 and 4 hold shuffled labels: their weight should be small.
    y[3:] = (y[3:] + 1) % CLASSES
    server = key.fold("server").normal(200, WIDTH, dtype=torch.float64)
    ones = torch.ones(N, SAMPLES, 1, dtype=torch.float64)
    rates = torch.full((N, 1), rate)
    return Federation(
        torch.cat([x, ones], -1), y, (server, (server @ truth).argmax(-1)), rates, follower
    )


ONE_STAGE = CertificateSettings(horizon=1, seeds=5, tolerance=0.1, off_path=2)


@pytest.fixture(scope="module")
def best_rates() -> Tensor:
    """Each leader's own best rate in this stage, found by plain averaging over many seeds."""
    game = federation(0.1)
    keys = [Key.from_seed(100 + s).fold("stage", 0) for s in range(30)]
    table = [
        torch.stack([game.stage_payoffs(rate.expand(N, 1), k) for k in keys]).mean(0)
        for rate in RATES
    ]
    return RATES[torch.stack(table).argmax(0)]


def test_best_rates_and_best_weights_are_certified_in_one_stage(best_rates):
    game = federation(0.1)
    game.rates = best_rates.clone()
    found = certify(game, RATES, ONE_STAGE, Key.from_seed(0))
    assert found.holds, found.reasons
    assert 0.0 <= found.follower.stage_bound < 1e-4
    assert all(one.stage_bound < 1e-4 for one in found.off_path)


def test_bad_rates_are_refused():
    found = certify(federation(0.01), RATES, ONE_STAGE, Key.from_seed(0))
    assert " gains " in found.reasons[0]
    assert found.reasons[0].startswith("leader ")
    assert "in place of rate 0.01" in found.reasons[0]
    assert found.follower.gain.regret < 1e-4


@pytest.mark.parametrize("horizon", [1, 3])
def test_uniform_weights_are_refused(horizon, best_rates):
    game = federation(0.1, "uniform")
    game.rates = best_rates.clone()
    settings = CertificateSettings(horizon=horizon, seeds=5, tolerance=0.1, off_path=0)
    found = certify(game, RATES, settings, Key.from_seed(0))
    assert any(line.startswith("the follower gains") for line in found.reasons)
    assert found.follower.stage_bound >= found.follower.stage.mean > 0.0
    if horizon == 1:
        # In a single stage the payoff is the utility: both ways to the gap agree.
        assert found.follower.gain.mean == pytest.approx(found.follower.stage.mean, rel=1e-9)
        assert found.follower.stage_bound == pytest.approx(found.follower.gain.mean, rel=1e-3)
