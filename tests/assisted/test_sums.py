"""One model moved by sums: its steps, who is in them, what crosses, what is kept."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.assisted.small_organisations import N_ROWS, finished, make_organisations

from coterie.assisted.aae.batches import Draws, RowBatches
from coterie.assisted.aae.cells import Inputs, Pattern
from coterie.assisted.aae.network import AAE
from coterie.assisted.aae.training import dense_loss
from coterie.assisted.client_halves import client_half
from coterie.assisted.data import Organisations, OwnDomain
from coterie.assisted.experiment import Experiment
from coterie.assisted.objective import Squared
from coterie.assisted.prediction_messages import Predictions
from coterie.assisted.readings import idle, resolve
from coterie.assisted.samples import gaussian
from coterie.assisted.samples.autorec import PRESENCE
from coterie.assisted.samples.sums import named, params_of
from coterie.assisted.server_halves import server_half
from coterie.assisted.settings import DomainSettings, ModelSettings, Settings, TrainSettings
from coterie.assisted.sums_client import Summing
from coterie.assisted.sums_messages import Joining, Moved, Step
from coterie.core.data.interactions.cells import Cells
from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.federation.in_process import InProcess
from coterie.core.privacy.build import middleware
from coterie.core.privacy.check import assert_no_shared_storage, assert_non_interference
from coterie.core.privacy.sum_noise import sum_noise
from coterie.core.protocol.messages import Reveals, declared
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.base import EngineSettings
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tensors.keys import Key

KEY = Key.from_seed(5)
SMALL = {"hidden": 6, "code": 4, "dropout": 0.0, "members": 2, "rank": 3}
MODELS = ("autorec", "gaussian", "blend")


def settings(name="gaussian", rounds=3, **more):
    chosen = {
        "model": ModelSettings(name, **SMALL),
        "train": TrainSettings(lr=0.02, weight_decay=0.01, hide=0.0),
        "engine": EngineSettings(dtype="float64"),
    }
    return resolve(Settings(method="sums", rounds=rounds, **(chosen | more)))


def run_of(how, data, client=None, **more):
    server, client = server_half(how), client or client_half(how)
    return FederatedRun(
        Federation(server, client, [data], seed=how.seed, rounds=how.rounds, **more)
    )


def kept_by(run, number):
    return run.store.take(torch.tensor([number]))


def residuals(data, unit=1.0):
    """2 (R - F⁰) of all columns, ``(n, m)``, NaN where there is no rating, by numpy."""
    parts = []
    for one in data.each:
        table = one.train.to_dense(float("nan")).numpy()
        means = np.array([np.nanmean(c) if (~np.isnan(c)).any() else np.nan for c in table.T])
        parts.append(2 * (table - np.where(np.isnan(means), np.nanmean(means), means)).T)
    return np.concatenate(parts) / unit


def cells_of(table):
    rated = torch.from_numpy(~np.isnan(table))
    return Cells.from_pairs(
        *rated.nonzero(as_tuple=True), torch.from_numpy(table)[rated], *table.shape
    )


def in_order_of_names(data):
    """All samples, whose coordinates are rows in the order of their hashes, and their unit."""
    unit = float(np.sqrt(np.nanmean(residuals(data) ** 2)))
    return cells_of(residuals(data, unit)[:, data.each[0].rows.argsort().numpy()]), unit


def names_by_key():
    return KEY.bits(torch.arange(N_ROWS))


def organisations(**more):
    names = names_by_key()
    return make_organisations(names=[names] * 3, **more)


def test_the_gaussian_is_that_of_all_samples_together():
    data, how = organisations(), settings(rounds=4)
    run = finished(run_of(how, data))
    cells, unit = in_order_of_names(data)
    assert run.server_state.unit == pytest.approx(unit)
    params = params_of(start_of(how, data), "gaussian")
    for _ in range(4):
        found = gaussian.statistic(params, cells, how.model.noise)
        params = gaussian.moved(params, found.values, found.samples)
    assert_same_model(run.server_state.params, named("gaussian", params))


def assert_same_model(found, expected, **how):
    """Directions have no sign, so of a Gaussian it is the covariance that is compared."""
    assert found.keys() == expected.keys()
    left, right = (params_of(one, "gaussian") for one in (found, expected))
    if left:
        torch.testing.assert_close(gaussian.covariance(left), gaussian.covariance(right), **how)
    for name, value in params_of(found, "autorec").items():
        torch.testing.assert_close(value, expected[f"autorec/{name}"], **how)


def start_of(how, data):
    """The model before the first step."""
    seen = []

    class Watched(type(client_half(how))):
        def take(self, down, mine, data, key):
            seen.append(down.params)
            return super().take(down, mine, data, key)

        take.step = Summing.take.step

    run = run_of(how, data, client=Watched(how))
    run.advance()
    return seen[0]


def dense_adam(params, cells, steps, how):
    """Adam on the mean squared error over all residuals, by autograd and torch's own optimizer."""
    width = cells.n_columns
    network = AAE(width, width, {}, how.model.hidden, how.model.code, 0.0)
    inputs = Inputs(cells.columns, cells.values + PRESENCE, width)
    every = inputs, Pattern(cells.columns, width), cells.values, cells.n_rows
    batch = RowBatches(*every, Draws(network.code, 0.0), KEY)(0)
    params = {name: value.clone().requires_grad_() for name, value in params.items()}
    adam = torch.optim.Adam(params.values(), how.train.lr, weight_decay=how.train.weight_decay)
    for _ in range(steps):
        adam.zero_grad()
        loss = dense_loss(params, batch, Squared())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params.values(), how.train.clip)
        adam.step()
    return {name: value.detach() for name, value in params.items()}, float(loss.detach())


def test_autoencoders_take_steps_of_adam_on_the_mean_gradient():
    data, how = organisations(), settings("autorec", rounds=3)
    run = finished(run_of(how, data))
    cells, _ = in_order_of_names(data)
    start, found = start_of(how, data), params_of(run.server_state.params, "autorec")
    losses = []
    for number in range(2):
        one = {k: v[number] for k, v in params_of(start, "autorec").items()}
        expected, loss = dense_adam(one, cells, 3, how)
        losses.append(loss)
        torch.testing.assert_close({k: v[number] for k, v in found.items()}, expected)
    assert run.history[-1]["fed/loss"] == pytest.approx(np.mean(losses))


@pytest.mark.parametrize("model", MODELS)
def test_an_organisation_may_have_its_rows_in_any_order(model):
    data, how = organisations(), settings(model)
    turned = torch.arange(N_ROWS).flip(0)
    last = data.each[2]
    parts = {name: getattr(last.domain, name).take(turned) for name in ("train", "valid", "test")}
    domain = replace(last.domain, rows=last.domain.rows[turned], **parts)
    other = Organisations.of([*data.each[:2], OwnDomain(2, last.rows[turned], domain)])
    runs = [finished(run_of(how, one, client=Keeping(how))) for one in (data, other)]
    assert_same_model(*(run.server_state.params for run in runs))
    assert runs[1].results["test/rmse"] == pytest.approx(runs[0].results["test/rmse"])


@pytest.mark.parametrize("model", MODELS)
def test_predictions_are_made_by_own_columns_alone(model):
    """F = F⁰ + η f at the test, with the model of the best round."""
    data, how = organisations(), settings(model)
    run = finished(run_of(how, data, client=Keeping(how)))
    squares = []
    for one in data.each:
        mine = kept_by(run, one.id)
        scores = run.federation.client.predicted(mine, one, one.test)
        squares.append((scores - one.test.values).double().square())
        if model == "gaussian":
            table = residuals(Organisations.of([one]), run.server_state.unit)
            table = table[:, one.rows.argsort().numpy()]
            by_hand = expected_by_hand(params_of(mine.best, "gaussian"), table, how)
            rank = one.rows.argsort().argsort()
            at = by_hand[one.test.columns.values, rank[one.test.rows]]
            base = run.federation.client.of(mine, one)[0].base.at(one.test)
            # η begins at .5 for residuals 2 (R - F), and is the best at validation cells.
            step = float(mine.best["eta"]) * run.server_state.unit * torch.from_numpy(at)
            torch.testing.assert_close(scores, base + step)
    rmse = float(torch.cat(squares).mean().sqrt())
    assert run.results["test/rmse"] == pytest.approx(rmse)


class Keeping(Summing):
    """Organisations that keep the model of every round as the best."""

    def take(self, down, mine, data, key):
        up, mine = super().take(down, mine, data, key)
        return up, replace(mine, best=mine.learned.params)

    take.step = Summing.take.step


def expected_by_hand(params, table, how):
    """U U_O' K⁻¹ r of each sample, dense."""
    factor = gaussian.factor_of(params).numpy()
    own, found = params[gaussian.OWN].numpy(), np.zeros(table.shape)
    for sample, row in enumerate(table):
        at = np.flatnonzero(~np.isnan(row))
        k = factor[at] @ factor[at].T + np.diag(own[at]) + how.model.noise * np.eye(len(at))
        found[sample] = factor @ factor[at].T @ np.linalg.solve(k, row[at])
    return found


def test_a_model_that_has_learned_nothing_counts_for_nothing():
    """Of column means the residuals add up to 0, and what is made of them is rounding alone."""
    data, how = organisations(), settings("gaussian")
    client, one, start = client_half(how), data.each[0], start_of(how, data)
    etas = []
    for round_ in (0, 1):
        mine = client.enrol(one, KEY)
        _, mine = client.take(Moved(round_, start, 1.0), mine, one, KEY)
        etas.append(float(mine.learned.params["eta"]))
    assert etas[0] == 0 != etas[1]


class Sulking(Summing):
    """Organisation 1 sends NaN in round 2."""

    def sum(self, down, mine, data, key):
        up, new = super().sum(down, mine, data, key)
        if data.id == 1 and down.round == 2:
            values = {name: value * float("nan") for name, value in up.values.items()}
            up = replace(up, values=values)
        return up, new

    sum.step = Summing.sum.step


def test_who_is_away_while_the_model_moves_gets_it_later(monkeypatch):
    """Else its next sums would be of an older model than those of the others."""
    asked, kept = [], InProcess.ask

    def noting(self, request):
        asked.append((request.step.name, request.everyone and request.waits))
        return kept(self, request)

    monkeypatch.setattr(InProcess, "ask", noting)
    finished(run_of(settings(rounds=2), organisations()))
    assert asked.count(("take", True)) == 3
    assert ("take", False) not in asked


def test_a_step_is_of_who_answers():
    data, how = organisations(), settings(rounds=3)
    run = finished(run_of(how, data, client=Sulking(how)))
    assert [row["fed/clients"] for row in run.history] == [3, 2, 3]
    params = params_of(start_of(how, data), "gaussian")
    _, unit = in_order_of_names(data)
    for who in ((0, 1, 2), (0, 2), (0, 1, 2)):
        some = Organisations.of([data.each[k] for k in who])
        order = data.each[0].rows.argsort().numpy()
        cells = cells_of(residuals(some, unit)[:, order])
        found = gaussian.statistic(params, cells, how.model.noise)
        params = gaussian.moved(params, found.values, found.samples)
    assert_same_model(run.server_state.params, named("gaussian", params))


@pytest.mark.parametrize("model", MODELS)
def test_without_any_rating_nothing_moves(model):
    data, how = organisations(), settings(model, rounds=2)
    each = [OwnDomain(k, one.rows, emptied(one.domain)) for k, one in enumerate(data.each)]
    run = finished(run_of(how, Organisations.of(each)))
    start = start_of(how, Organisations.of(each))
    assert all(torch.equal(value, start[name]) for name, value in run.server_state.params.items())


def emptied(domain):
    none = Cells.from_pairs(*torch.empty(2, 0, dtype=torch.int64), torch.empty(0).double(), 12, 2)
    return replace(domain, train=none, valid=none, test=none, columns=torch.arange(2))


@pytest.mark.parametrize("model", MODELS)
def test_an_organisation_without_ratings_changes_nothing_but_its_own_name(model):
    data, how = organisations(), settings(model)
    empty = emptied(data.each[0].domain)
    more = Organisations.of([*data.each, OwnDomain(3, data.each[0].rows, empty)])
    runs = [finished(run_of(how, one)) for one in (data, more)]
    assert runs[1].results["test/rmse"] == pytest.approx(runs[0].results["test/rmse"])
    assert_same_model(*(run.server_state.params for run in runs))


@pytest.mark.parametrize("model", MODELS)
def test_held_out_cells_move_no_model(model):
    """Those of the test change nothing but the test, those to choose by only what is chosen."""

    def poisoned(one, part):
        cells = getattr(one, part)
        bad = {part: replace(cells, values=-40.0 * cells.values)}
        return replace(one, domain=replace(one.domain, **bad))

    data, how = organisations(), settings(model)
    plain = finished(run_of(how, data))
    for part in ("test", "valid"):
        other = Organisations.of([poisoned(one, part) for one in data.each])
        run = finished(run_of(how, other))
        params = run.server_state.params
        assert all(torch.equal(v, params[name]) for name, v in plain.server_state.params.items())
        best = [run.results["test/best_round"] for run in (run, plain)]
        assert part == "valid" or (best[0] == best[1] and run.history == plain.history)
        assert run.results["test/rmse"] != plain.results["test/rmse"]


@pytest.mark.parametrize("model", MODELS)
def test_one_organisation_is_enough(model):
    data, how = organisations(), settings(model)
    run = finished(run_of(how, Organisations.of([data.each[0]])))
    assert run.results["test/rmse"] > 0


@pytest.mark.parametrize("model", MODELS)
def test_a_run_goes_on_from_a_checkpoint(model):
    data, how = organisations(), settings(model, rounds=4)
    whole = finished(run_of(how, data))
    first = run_of(how, data)
    first.advance()
    first.advance()
    later = run_of(how, data)
    later.load_plain(first.to_plain())
    finished(later)
    assert later.results == whole.results
    assert later.history[-1]["eval/rmse"] == whole.history[-1]["eval/rmse"]


def test_organisations_with_other_rows_are_refused():
    data = organisations()
    other = replace(data.each[1], rows=data.each[1].rows + 1)
    some = Organisations.of([data.each[0], other, data.each[2]])
    with pytest.raises(UserError, match=r"all know the same users.*take the method residuals$"):
        run_of(settings(), some).advance()


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"data": DomainSettings(common=0.5)}, "all rows in common, not a share of 0.5"),
        ({"model": ModelSettings("gaussian", samples="users")}, "set model.samples items"),
        ({"model": ModelSettings("gaussian", sizes={"a": "4-2"})}, "set model.hidden"),
        ({"model": ModelSettings("mf")}, "trains models of samples"),
        (
            {"privacy": PrivacySettings(clip=1.0, clip_by="entry", noise="laplace", scale=1.0)},
            "set privacy.clip_by to upload",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(chosen, said):
    with pytest.raises(UserError, match=said):
        settings(**chosen)
    aligned = DomainSettings(align="item", domains="uniform")
    settings(data=aligned, model=ModelSettings("gaussian", samples="users"))


OF_AUTOREC = {f"model.{name}" for name in SMALL if name != "rank"}


def test_settings_without_effect_are_named():
    chosen = settings(train=TrainSettings(epochs=3, batch_rows=7, lr=0.1))
    found = idle(replace(chosen, model=replace(chosen.model, noise=0.9)))
    assert set(found) == {"train.epochs", "train.batch_rows", "train.lr", *OF_AUTOREC}


def test_only_sums_cross_and_no_more_of_them_than_is_said():
    data, how = organisations(), settings(rounds=2)
    run = finished(run_of(how, data))
    up = {
        row["field"]: row
        for row in run.ledger.rows()
        if row["step"] == "sum" and row["direction"] == "up"
    }
    width = min(3 + gaussian.SPARE, N_ROWS)
    assert up["values"]["bytes"] == 2 * 3 * 8 * (N_ROWS * width + N_ROWS)
    steps = Summing.steps()
    crossing = {
        (field.name, field.reveals)
        for step in steps.values()
        if step.up
        for field in declared(step.up)
    }
    assert not {Reveals.IDENTITIES, Reveals.PATTERN} & {reveals for _, reveals in crossing}
    assert ("values", Reveals.RESIDUALS) in crossing


def test_uploads_depend_on_what_they_say():
    data, how = organisations(), settings("blend")
    run = run_of(how, data)
    run.advance()
    client, one = run.federation.client, data.each[0]
    mine = kept_by(run, 0)
    shapes = {name: tuple(value.shape) for name, value in mine.learned.params.items()}
    assert_non_interference(client, "sum", Step(2, shapes), mine, one, KEY)
    assert_non_interference(client, "join", None, mine, one, KEY)
    assert_non_interference(client, "measure", Predictions("test", {}, {}, 1), mine, one, KEY)
    up = client.sum(Step(2, shapes), mine, one, KEY)[0]
    assert_no_shared_storage(up, mine)


def test_hashes_do_not_leave():
    data, how = organisations(), settings()
    client = client_half(how)
    up = client.join(None, client.enrol(data.each[0], KEY), data.each[0], KEY)[0]
    assert isinstance(up, Joining)
    assert up.names.shape == (4,)
    assert not torch.isin(up.names, data.each[0].rows).any()


@pytest.mark.parametrize("model", MODELS)
def test_the_server_can_add_noise_to_the_sums(model):
    privacy = PrivacySettings(clip=1.0, noise="gaussian", scale=0.5, at="server", steps=("sum",))
    how = settings(model, privacy=privacy)
    data, noise = organisations(), sum_noise(privacy, b"server")
    noisy = finished(
        run_of(how, data, noise=noise, middleware=middleware(privacy, Summing.steps()))
    )
    plain = finished(run_of(settings(model), data))
    assert np.isfinite(noisy.results["test/rmse"])
    assert noisy.history[-1]["eval/rmse"] != plain.history[-1]["eval/rmse"]


def test_likes_are_learned_by_the_residuals_of_their_loss():
    data = make_organisations(binary=True, names=[names_by_key()] * 3)
    how = settings("blend", data=DomainSettings(feedback="implicit"))
    run = finished(run_of(how, data))
    assert 0 < run.results["test/map@10"] <= 1


def test_the_sample_runs_and_recommends():
    how = settings(
        "gaussian", data=DomainSettings(domains="uniform", count=3), engine=EngineSettings()
    )
    experiment = Experiment(how)
    run = finished(FederatedRun(experiment.federation()))
    ((places, scores),) = experiment.score_users(run, torch.tensor([3]))
    assert places.tolist() == [0]
    assert bool(scores.isfinite().all())
    client, first = run.federation.client, experiment.organisations.each[0]
    mine = kept_by(run, 0)
    row = int((first.domain.rows == 3).nonzero())
    columns = torch.arange(first.train.n_columns)
    cells = Cells.from_pairs(
        torch.full_like(columns, row),
        columns,
        torch.zeros(len(columns)),
        first.train.n_rows,
        len(columns),
    )
    expected = client.predicted(mine, first, cells)
    torch.testing.assert_close(scores[0, first.domain.columns], expected)
