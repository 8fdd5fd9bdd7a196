"""Each organisation has its own network and its own loss, and tells nobody which."""

import pytest
import torch
from tests.assisted.small_organisations import (
    SMALL,
    cells_of,
    finished,
    make_domain,
    make_organisations,
    make_run,
    make_settings,
    state_of,
)

from coterie.assisted.data import Organisations, OwnDomain
from coterie.assisted.objective import OBJECTIVES, Huber, Logistic, Objective, Squared
from coterie.assisted.settings import AssistSettings, ModelSettings


class Expectile(Objective):
    """A loss of one's own: too high a prediction costs three times as much as too low a one."""

    def loss(self, rating, output):
        return self._price(rating, output) * (rating - output).square()

    def residual(self, rating, output):
        return 2 * self._price(rating, output) * (rating - output)

    def curvature(self, rating, output):
        return 2 * self._price(rating, output)

    def _price(self, rating, output):
        return torch.where(output > rating, 3.0, 1.0).to(output)


@pytest.fixture
def expectile(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "expectile", Expectile)


@pytest.mark.parametrize("loss", [Squared(), Logistic(), Huber(0.7), Expectile()])
def test_residuals_and_curvatures_are_derivatives(loss) -> None:
    rating = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0]).double()
    output = torch.tensor([0.3, -1.4, 0.9, 2.2, 5.0]).double().requires_grad_()
    (slope,) = torch.autograd.grad(loss.loss(rating, output).sum(), output, create_graph=True)
    torch.testing.assert_close(loss.residual(rating, output), -slope)
    if slope.requires_grad:
        (bend,) = torch.autograd.grad(slope.sum(), output)
        torch.testing.assert_close(loss.curvature(rating, output), bend)


def mixed():
    """Organisation 0 has ratings, 1 likes, 2 ratings that its own loss judges."""
    plain = make_organisations()
    likes = OwnDomain(1, plain[1].rows, make_domain(1, 3, binary=True))
    return Organisations.of([plain[0], likes, plain[2]])


def test_a_federation_of_ratings_likes_and_a_loss_of_ones_own(expectile) -> None:
    settings = make_settings(
        rounds=4,
        objectives={"d1": "logistic", "d2": "expectile"},
        model=ModelSettings(hidden=6, code=4, dropout=0.0, sizes={"d1": "9-3", "d2": "5-5"}),
        assist=AssistSettings(eta_rule="optimal"),
    )
    run = finished(make_run(settings, mixed()))
    shapes = [state_of(run, k).models[0].params["decoder.hidden.weight"].shape for k in range(3)]
    assert shapes == [(6, 4), (9, 3), (5, 5)]
    for k, loss in enumerate((Squared(), Logistic(), Expectile())):
        one, mine = run.newest_data[k], state_of(run, k)
        truth = one.train.values
        start = run.federation.client.learner(one).base.at(one.train)
        assert loss.loss(truth, mine.scores).mean() < loss.loss(truth, start).mean()
    rmse = run.client_results["test/rmse"][1]
    assert torch.isfinite(rmse[[0, 2]]).all()
    assert rmse[1].isnan()  # likes have no RMSE
    accuracy = run.client_results["test/accuracy"][1]
    assert torch.isfinite(accuracy[1])
    assert run.results["test/rmse"] == pytest.approx(
        pooled_rmse(run, rmse), rel=1e-9
    )  # of those that have ratings


def pooled_rmse(run, rmse):
    sizes = torch.tensor([len(run.newest_data[k].test) for k in (0, 2)]).double()
    return float(((rmse[[0, 2]] ** 2 * sizes).sum() / sizes.sum()).sqrt())


def test_no_message_tells_a_loss_or_a_size(expectile) -> None:
    """What crosses is of the same form whatever an organisation chose."""
    sizes = ModelSettings(hidden=6, code=4, dropout=0.0, sizes={"d2": "9-7"})
    forms = []
    for settings in (
        make_settings(rounds=1),
        make_settings(rounds=1, objectives={"d2": "expectile"}, model=sizes),
    ):
        run = make_run(settings)
        run.advance()
        forms.append(run.ledger.rows())
    assert forms[0] == forms[1]


def test_one_organisation_without_a_held_out_cell_and_one_with_a_single_rating() -> None:
    data = make_organisations()
    none = torch.zeros(12, 5, dtype=torch.bool)
    one = none.clone()
    one[0, 0] = True
    stars = torch.full((12, 5), 4.0).double()
    bare = type(data[0].domain)(
        "d0", torch.arange(12), torch.arange(5), cells_of(one, stars), *2 * [cells_of(none, stars)]
    )
    each = [OwnDomain(0, data[0].rows, bare), data[1], data[2]]
    run = finished(make_run(make_settings(rounds=2, model=SMALL), Organisations.of(each)))
    assert run.results["test/rmse"] < 3
    assert run.client_results["test/rmse"][1][0].isnan()
