"""Rounds of MTAL against dense matrices in float64, autograd and scipy."""

import pytest
import torch
from scipy import optimize
from tests.assisted.small_organisations import (
    finished,
    make_organisations,
    make_run,
    make_settings,
    state_of,
)

from benchmarks.assisted.loop import PlainAAE
from coterie.assisted.aae.network import AAE
from coterie.assisted.settings import AssistSettings
from coterie.core.data.interactions.cells import Cells

pytestmark = pytest.mark.usefixtures("rounds_alone")

OFFSETS = (0, 5, 8, 12)


class Naive:
    """Algorithm 1 on whole matrices; every organisation's rows are the same."""

    def __init__(self, run, settings, loss, start):
        self.run, self.settings, self.loss = run, settings, loss
        self.data = run.newest_data.each
        self.scores = [start(one.train).expand(len(one.rows), -1).clone() for one in self.data]
        self.chosen = []

    def residuals(self):
        found = []
        for one, scores in zip(self.data, self.scores, strict=True):
            free = scores.clone().requires_grad_()
            known = rated(one.train)
            self.loss(free[known], one.train.to_dense()[known]).sum().backward()
            found.append(-free.grad)
        return torch.cat(found, 1)

    def fits(self, t, residual):
        known = torch.cat([rated(one.train) for one in self.data], 1)
        return [self.fit(k, t, residual, known) for k in range(len(self.data))]

    def fit(self, k, t, residual, known):
        how, one = self.settings.train, self.data[k]
        width, code = self.settings.model.hidden, self.settings.model.code
        network = AAE(one.train.n_columns, known.shape[1], {}, width, code, 0.0)
        key = self.run.secret.fold(torch.tensor([k])).fold("fit", 0, t, 0)
        plain = (
            PlainAAE(network)
            .double()
            .load(network.start(type(key)(key.state[0]).fold("start"), torch.float64))
        )
        optimizer = torch.optim.Adam(plain.parameters(), how.lr, weight_decay=how.weight_decay)
        inputs = one.train.to_dense()
        for _ in range(how.epochs):  # one batch an epoch
            optimizer.zero_grad()
            (plain({"ratings": inputs})[known] - residual[known]).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(plain.parameters(), how.clip)
            optimizer.step()
        return plain({"ratings": inputs}).detach()

    def round(self, t):
        fits = self.fits(t, self.residuals())
        self.chosen.append([])
        for k, one in enumerate(self.data):
            mine = slice(OFFSETS[k], OFFSETS[k + 1])
            known = rated(one.train)
            at_cells = torch.stack([fit[:, mine][known] for fit in fits], 1)
            truth, scores = one.train.to_dense()[known], self.scores[k][known]
            w, eta = self.choose(truth, scores, at_cells)
            step = sum(weight * fit[:, mine] for weight, fit in zip(w, fits, strict=True))
            self.scores[k] = self.scores[k] + eta * step
            self.chosen[-1].append((w, eta))

    def choose(self, truth, scores, outputs):
        how, n = self.settings.assist, outputs.shape[1]
        w, eta = torch.full((n,), 1 / n).double(), how.eta

        def loss(w, eta):
            moved = scores + eta * (outputs @ torch.as_tensor(w))
            return float(self.loss(moved, truth).mean())

        if how.weights == "optimal":
            found = optimize.minimize(
                lambda w: loss(w, eta),
                w.numpy(),
                method="SLSQP",
                bounds=[(0, 1)] * n,
                constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
                options={"ftol": 1e-16, "maxiter": 1000},
            )
            w = torch.as_tensor(found.x)
        if how.eta_rule == "optimal":
            found = optimize.minimize_scalar(lambda eta: loss(w, eta), tol=1e-12)
            eta = float(found.x)
        return w, eta


def rated(cells: Cells):
    return cells.to_dense(torch.nan).isfinite()


def squared(scores, truth):
    return (scores - truth).square()


def logistic(scores, truth):
    return torch.nn.functional.binary_cross_entropy_with_logits(scores, truth, reduction="none")


def column_means(cells):
    return cells.to_dense(torch.nan).nanmean(0)


def smoothed_logits(cells):
    known = rated(cells)
    return ((cells.to_dense().sum(0) + 1) / (known.sum(0) + 2)).logit()


def own_deviations(cells):
    """Mean, deviations of columns, then of rows, each damped by five ratings."""
    known = rated(cells)
    mean = cells.values.mean()
    rest = torch.where(known, cells.to_dense() - mean, 0.0)
    column = rest.sum(0) / (known.sum(0) + 5)
    rest = torch.where(known, rest - column, 0.0)
    return mean + column + (rest.sum(1) / (known.sum(1) + 5))[:, None]


ASSISTS = {
    "constant": AssistSettings(),
    "eta": AssistSettings(eta_rule="optimal"),
    "weights": AssistSettings(weights="optimal", eta=2.0),
    "both": AssistSettings(weights="optimal", eta_rule="optimal"),
}


@pytest.mark.parametrize(
    ("feedback", "start", "chosen"),
    [
        *(("explicit", None, chosen) for chosen in ASSISTS),
        *(("implicit", None, chosen) for chosen in ("constant", "both")),
        *(("explicit", "bias", chosen) for chosen in ("constant", "weights")),
    ],
)
def test_rounds_are_algorithm_1_on_whole_matrices(feedback, start, chosen) -> None:
    assist = ASSISTS[chosen]
    settings = make_settings(feedback, assist=assist, start=start)
    run = make_run(settings)
    explicit = feedback == "explicit"
    mean = own_deviations if start == "bias" else column_means
    naive = Naive(run, settings, *((squared, mean) if explicit else (logistic, smoothed_logits)))
    # Adam makes of a gradient that is zero but for rounding a step of 1e-9; SLSQP is less exact.
    near = 1e-7 if assist.weights == assist.eta_rule == "constant" else 2e-4
    for t in range(1, settings.rounds + 1):
        run.advance()
        naive.round(t)
        assert not run.journal.refused
        for k, one in enumerate(run.newest_data.each):
            mine = state_of(run, k)
            scores = naive.scores[k]
            for cells, found in ((one.train, mine.scores), (one.valid, mine.held)):
                wanted = scores[cells.rows, cells.columns.values]
                torch.testing.assert_close(found, wanted, rtol=0, atol=near)
            w, eta = naive.chosen[-1][k]
            choice = mine.choices[-1]
            by_number = choice.weights[torch.argsort(choice.models)]
            torch.testing.assert_close(by_number, w, rtol=0, atol=near * 10)
            assert float(choice.eta) == pytest.approx(eta, abs=near * 100)


@pytest.mark.parametrize("feedback", ["explicit", "implicit"])
def test_a_rate_may_be_the_best_at_validation_cells(feedback) -> None:
    """By scipy, of what a round gives there; training cells have no say, and no rate is below 0.

    Stars are random numbers, of which nothing can be learnt, so that 0 is the best of them.
    """
    settings = make_settings(feedback, assist=AssistSettings(eta_rule="validation"), rounds=1)
    constant = make_run(make_settings(feedback, rounds=1))
    run = make_run(settings)
    run.advance()
    constant.advance()
    loss, chosen = squared if feedback == "explicit" else logistic, []
    for k, one in enumerate(run.newest_data.each):
        before = run.federation.client.learner(one).base.at(one.valid)
        step = (state_of(constant, k).held - before) / 0.3

        def held_loss(eta, one=one, before=before, step=step):
            return float(loss(before + eta * step, one.valid.values).mean())

        wanted = optimize.minimize_scalar(held_loss, bounds=(0, 100), method="bounded").x
        chosen.append(float(state_of(run, k).choices[-1].eta))
        assert held_loss(chosen[-1]) <= held_loss(wanted) + 1e-9
        assert chosen[-1] >= 0
    assert (max(chosen) > 0) == (feedback == "implicit")


def test_the_prediction_stage_gives_what_the_rounds_gave() -> None:
    settings = make_settings(reading="released")  # validation cells are those of the test
    data = make_organisations()
    same = [type(one)(one.id, one.rows, _tested(one.domain)) for one in data.each]
    run = finished(make_run(settings, type(data)(data.ids, same)))
    best = int(run.results["test/best_round"])
    assert run.results["test/rmse"] == pytest.approx(run.history[best - 1]["eval/rmse"], abs=1e-12)
    assert run.history[best - 1]["eval/rmse"] == min(row["eval/rmse"] for row in run.history)


def _tested(domain):
    from dataclasses import replace

    return replace(domain, valid=domain.test)
