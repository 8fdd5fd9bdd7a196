"""Residuals are exchanged once: what is trained on and predicted, what crosses and is kept."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.assisted.small_organisations import N_ROWS, WIDTHS, finished, make_organisations

from coterie.assisted.aae.cells import Inputs, Pattern
from coterie.assisted.aae.network import AAE
from coterie.assisted.aae.training import Plan, Trained, train
from coterie.assisted.client_halves import client_half
from coterie.assisted.data import Organisations
from coterie.assisted.exported import exported_organisation
from coterie.assisted.messages import Turn
from coterie.assisted.prediction_messages import Epochs, Predictions
from coterie.assisted.readings import idle, resolve
from coterie.assisted.receiver import Receiver
from coterie.assisted.samples.autorec import PRESENCE, AutoRec
from coterie.assisted.samples.matrix import Asked
from coterie.assisted.samples.model import FEWEST
from coterie.assisted.server_halves import server_half
from coterie.assisted.settings import (
    DomainSettings,
    ModelSettings,
    ProtectSettings,
    Settings,
    TrainSettings,
)
from coterie.core.data.interactions.cells import Cells
from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.privacy.check import assert_no_shared_storage, assert_non_interference
from coterie.core.run.driver import FederatedRun
from coterie.core.run.exported import Asked as Exporting
from coterie.core.settings.base import EngineSettings
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

KEY = Key.from_seed(5)


def settings(align="user", feedback="explicit", rounds=3, **more):
    chosen = {
        "model": ModelSettings("autorec", hidden=6, code=4, dropout=0.0, members=2),
        "train": TrainSettings(epochs=2, batch_rows=4, lr=0.02, hide=0.4),
    }
    domains = {} if align == "user" else {"domains": "uniform"}
    chosen["data"] = DomainSettings(feedback=feedback, align=align, **domains)
    return resolve(Settings(method="residuals", rounds=rounds, **(chosen | more)))


def run_of(how, data, client=None):
    server = server_half(how)
    return FederatedRun(
        Federation(server, client or client_half(how), [data], seed=how.seed, rounds=how.rounds)
    )


def kept_by(run, number):
    return run.store.take(torch.tensor([number]))


def organisations(align="user", **more):
    """With global numbers of columns, one organisation's after the other's."""
    each, first = [], 0
    for one in make_organisations(**more).each:
        columns = first + torch.arange(one.train.n_columns)
        each.append(replace(one, domain=replace(one.domain, columns=columns)))
        first += len(columns)
    return Organisations.of(each)


def column_means(cells):
    """F⁰ by numpy: the mean of a column, of an empty one the mean of the others' means."""
    table, known = cells.to_dense().numpy(), cells.to_dense(float("nan")).numpy()
    with np.errstate(invalid="ignore"):
        means = np.array([np.nanmean(c) if (~np.isnan(c)).any() else np.nan for c in known.T])
    assert table.shape == (cells.n_rows, cells.n_columns)
    return np.where(np.isnan(means), np.nanmean(means), means)


def dense_residuals(data):
    """2 (R - F⁰) of all organisations side by side, NaN where there is no rating."""
    parts = []
    for one in data.each:
        parts.append(2 * (one.train.to_dense(float("nan")).numpy() - column_means(one.train)))
    return np.concatenate(parts, 1)


@pytest.mark.parametrize("align", ["user", "item"])
def test_samples_are_items_with_the_residuals_of_all(align):
    data, how = organisations(), settings(align)
    run = run_of(how, data)
    run.advance()
    table = dense_residuals(data)
    expected = table.T if align == "user" else table
    first = 0
    for one in data.each:
        samples = run.federation.client.samples(kept_by(run, one.id), one)[""]
        np.testing.assert_allclose(samples.every.to_dense(float("nan")), expected, atol=1e-12)
        mine = expected[first : first + one.train.n_columns] if align == "user" else expected
        np.testing.assert_allclose(samples.own.to_dense(float("nan")), mine, atol=1e-12)
        first += one.train.n_columns


def rows_that_differ():
    """Three organisations; the rows of the last are those of the others, the other way round, but
    for four that nobody else has."""
    names = 1000 + torch.arange(N_ROWS)
    own = torch.where(torch.arange(N_ROWS) < 4, names + 500, names.flip(0))
    return organisations(names=[names, names, own])


def test_residuals_of_rows_that_others_have_stand_in_these_rows():
    data, how = rows_that_differ(), settings()
    run = run_of(how, data)
    run.advance()
    table = dense_residuals(data)
    edges = np.cumsum([0, *WIDTHS])
    last = data.each[2]
    found = run.federation.client.samples(kept_by(run, 2), last)[""].matrix.to_dense(float("nan"))
    place = {int(name): row for row, name in enumerate(data.each[0].rows)}
    for row, name in enumerate(last.rows.tolist()):
        others = table[place[name], : edges[2]] if name in place else np.full(edges[2], np.nan)
        np.testing.assert_allclose(found[row, : edges[2]], others, atol=1e-12)
        np.testing.assert_allclose(found[row, edges[2] :], table[row, edges[2] :], atol=1e-12)
    first = run.federation.client.samples(kept_by(run, 0), data.each[0])[""].matrix
    hidden = [row for name, row in place.items() if name not in last.rows.tolist()]
    theirs = first.to_dense(float("nan"))[:, edges[2] :]
    assert bool(theirs[hidden].isnan().all())
    assert not bool(theirs.isnan().all())


def plain_network(params, x):
    """The autoencoder by numpy, ``(n, d) -> (n, d)``, without dropout."""
    p = {name: value.double().numpy() for name, value in params.items()}
    hidden = np.tanh(x @ p["ratings.wide.weight"] + p["ratings.wide.bias"])
    code = np.tanh(hidden @ p["ratings.code.weight"].T + p["ratings.code.bias"])
    hidden = np.tanh(code @ p["decoder.hidden.weight"].T + p["decoder.hidden.bias"])
    return hidden @ p["decoder.wide.weight"].T + p["decoder.wide.bias"]


def trained_by_hand(cells, how, rounds, name="autorec"):
    """Members of AutoRec one by one, by the trainer of the autoencoder."""
    size = cells.values.square().mean().sqrt()
    inputs = Inputs(cells.columns, cells.values / size + PRESENCE, cells.n_columns)
    pattern, train_how = Pattern(cells.columns, cells.n_columns), how.train
    plan = Plan(
        train_how.epochs, train_how.batch_rows, train_how.lr, train_how.weight_decay, 1.0, 0.4
    )
    sizes = AAE(cells.n_columns, cells.n_columns, {}, 6, 4, 0.0)
    public, members = Key.from_seed(how.seed).fold("samples"), []
    for number in range(how.model.members):
        now = train(
            sizes,
            inputs,
            pattern,
            cells.values / size,
            replace(plan, epochs=0),
            public.fold(0).fold(name).fold("member", number),
        )
        for t in range(1, rounds + 1):
            key = public.fold(t).fold(name).fold("member", number)
            now = train(sizes, inputs, pattern, cells.values / size, plan, key, start=now)
        members.append(now.params)
    x = torch.nan_to_num(inputs_dense(cells, size)) * (1 - 0.4)
    outputs = [plain_network(params, x.double().numpy()) for params in members]
    return float(size) * np.mean(outputs, 0)


def inputs_dense(cells, size):
    return cells.to_dense(float("nan")) / size + PRESENCE


@pytest.mark.parametrize("align", ["user", "item"])
def test_predictions_are_those_of_a_plain_loop(align):
    """F = F⁰ + η f: f by numpy from members trained one by one, η by its closed form."""
    data, how = organisations(), settings(align, rounds=2)
    run = finished(run_of(how, data))
    table = torch.from_numpy(dense_residuals(data))
    rated = ~table.isnan()
    rows, columns = rated.nonzero(as_tuple=True)
    matrix = Cells.from_pairs(rows, columns, table[rated], *table.shape)
    every = matrix.transposed() if align == "user" else matrix
    best, first = int(run.results["test/best_round"]), 0
    f = trained_by_hand(every, how, best)
    f = f.T if align == "user" else f
    squares = []
    for one in data.each:
        mine, base = f[:, first : first + one.train.n_columns], column_means(one.train)
        held, wanted = (c.to_dense(float("nan")).numpy() for c in (one.valid, one.test))
        known = ~np.isnan(held)
        gap = (held - base)[known]
        eta = max(gap @ mine[known] / (mine[known] @ mine[known]), 0.0) if best else 0.0
        scores = base + eta * mine
        found = run.federation.client.predicted(kept_by(run, one.id), one, one.test)
        asked = ~np.isnan(wanted)
        np.testing.assert_allclose(found.numpy(), scores[asked], rtol=1e-9)
        squares.append((scores - wanted)[asked] ** 2)
        first += one.train.n_columns
    assert run.results["test/rmse"] == pytest.approx(np.sqrt(np.concatenate(squares).mean()))
    assert best > 0  # else nothing was trained


def autorec_of(members=2):
    """AutoRec of a few random samples, and these."""
    stars = KEY.fold("stars").uniform(9, 7) * 4 - 2
    known = KEY.fold("known").uniform(9, 7) < 0.6
    rows, columns = known.nonzero(as_tuple=True)
    cells = Cells.from_pairs(rows, columns, stars[known].double(), 9, 7)
    plan = Plan(epochs=1, batch_rows=4, lr=0.02, input_masking=0.4)
    return AutoRec(cells, plan, 6, 4, 0.0, members), cells


def test_outputs_are_the_mean_over_members_in_units_of_residuals():
    model, cells = autorec_of(3)
    trained = model.train(model.begin(KEY), KEY)
    size = cells.values.square().mean().sqrt()
    x = torch.nan_to_num(inputs_dense(cells, size)).numpy() * (1 - 0.4)
    members = [{n: v[k] for n, v in trained.params.items()} for k in range(3)]
    expected = float(size) * np.mean([plain_network(params, x) for params in members], 0)
    everywhere = Cells.from_pairs(
        torch.arange(9).repeat_interleave(7), torch.arange(7).repeat(9), torch.arange(63), 9, 7
    )
    found = model.outputs(trained.params, cells, Asked(everywhere))
    np.testing.assert_allclose(found.view(9, 7), expected, rtol=1e-9)


def test_training_is_shared_with_who_has_the_same_key_and_start_only():
    model, _ = autorec_of()
    start = model.begin(KEY)
    first = model.train(start, KEY.fold(1))
    assert model.train(start, KEY.fold(1)) is first
    other = model.train(start, KEY.fold(2)).params
    assert not all(torch.equal(value, other[name]) for name, value in first.params.items())
    further = model.train(first, KEY.fold(2)).params
    assert not all(torch.equal(value, other[name]) for name, value in further.items())


def test_labels_move_by_the_rate_of_the_lowest_validation_loss():
    data, how = organisations(binary=True), settings(feedback="implicit", rounds=1)
    run = finished(run_of(how, data))
    for one in data.each:
        mine, client = kept_by(run, one.id), run.federation.client
        params = mine.learned.params
        model = client.of(mine, one)[1]

        def loss(eta, params=params, model=model, one=one):
            moved = {**params, "eta": torch.tensor(eta).double()}
            logits = model.predict(moved, one.valid).double()
            return float(
                torch.nn.functional.binary_cross_entropy_with_logits(logits, one.valid.values)
            )

        grid = np.linspace(0.0, 4.0, 401)
        found = float(params["eta"])
        assert loss(found) <= min(map(loss, grid)) + 1e-9 or found > 4.0


def test_nothing_but_measurements_crosses_after_the_exchange():
    data, asked = organisations(), []
    run = run_of(settings(rounds=3), data)
    exchange = run.federation

    class Noting(Receiver):
        pass

    client = Noting(run.federation.client.settings)
    for name in client.steps():
        bound = getattr(client, name)

        def noted(*given, name=name, bound=bound):
            asked.append(name)
            return bound(*given)

        setattr(client, name, noted)
    finished(run_of(exchange.client.settings, data, client))
    each = len(data)
    for step in ("align", "pattern", "meet", "residual", "receive"):
        assert asked.count(step) == each, step
    later = asked[max(place for place, name in enumerate(asked) if name == "receive") + 1 :]
    assert set(later) == {"measure", "keep_best", "train"}
    assert later.count("train") == 3 * each


def kept_of(cells, n):
    """The first n cells."""
    rows = torch.arange(n)
    return Cells.from_pairs(
        cells.rows[rows],
        cells.columns.values[rows],
        cells.values[:n],
        cells.n_rows,
        cells.n_columns,
    )


def test_of_few_validation_cells_nobody_chooses_a_rate():
    """The best rate of one or two cells may be anything: 20 was seen, where .5 is a whole step."""
    data = organisations()
    parts = zip(data.each, (0, 2, FEWEST), strict=True)
    few = [replace(o, domain=replace(o.domain, valid=kept_of(o.valid, n))) for o, n in parts]
    how = settings(model=ModelSettings("blend", hidden=6, code=4, dropout=0.0, members=2))
    run = run_of(how, Organisations.of(few))
    run.advance()
    found = [kept_by(run, one.id).learned.params for one in few]
    assert [float(params["eta"]) == 0.5 for params in found] == [True, True, False]
    assert [params["weights"].tolist() == [0.5, 0.5] for params in found] == [True, True, False]


def test_nobody_is_told_where_cells_are_held_out():
    data = organisations()
    run = run_of(settings(), data)
    run.advance()
    crossed = {(row["step"], row["field"]): row["bytes"] for row in run.ledger.rows()}
    assert crossed["pattern", "queries"] == crossed["meet", "queries"] == 0
    assert crossed["pattern", "cells"] == 2 * 4 * sum(len(one.train) for one in data.each)


@pytest.mark.parametrize("align", ["user", "item"])
def test_who_was_sent_the_same_trains_once(align, monkeypatch):
    trained = []
    kept = AutoRec._each
    monkeypatch.setattr(
        AutoRec,
        "_each",
        lambda self, plan, now, key: trained.append(1) or kept(self, plan, now, key),
    )
    data, how = organisations(), settings(align, rounds=2)
    together = finished(run_of(how, data))
    shared, trained[:] = len(trained), []

    class Each(Receiver):
        """Organisations that share nothing."""

        def _models(self, learner, samples):
            self._shared.clear()
            return super()._models(learner, samples)

    apart = finished(run_of(how, data, Each(how)))
    assert shared < len(trained)
    assert together.history == apart.history
    for one in data.each:
        pair = (dict(tree.tensors(kept_by(run, one.id).learned)) for run in (together, apart))
        left, right = pair
        assert all(torch.equal(value, right[name]) for name, value in left.items())


def test_a_resumed_run_ends_in_the_same_bits():
    data, how = organisations(), settings(rounds=3)
    whole, second = (run_of(how, data) for _ in range(2))
    whole.advance()
    second.load_plain(whole.to_plain())
    finished(whole)
    finished(second)
    left, right = (dict(tree.tensors(run.to_plain())) for run in (whole, second))
    assert left.keys() == right.keys()
    assert all(torch.equal(v.nan_to_num(-1.0), right[k].nan_to_num(-1.0)) for k, v in left.items())
    assert (whole.history, whole.results) == (second.history, second.results)


def test_who_missed_the_exchange_has_its_own_residuals():
    data, how = organisations(), settings(rounds=1)

    class Silent(Receiver):
        def residual(self, down, mine, data, key):
            up, new = super().residual(down, mine, data, key)
            values = torch.full_like(up.values, torch.nan) if data.id == 1 else up.values
            return replace(up, values=values), new

        residual.step = Receiver.residual.step

    run = finished(run_of(how, data, Silent(how)))
    assert [len(kept_by(run, one.id).received) for one in data.each] == [1, 0, 1]
    client, mine = run.federation.client, kept_by(run, 1)
    nothing = Trained({}, torch.zeros(()), 0, None)
    by_itself = client.own(data.each[1])[1].train(nothing, client.drawing(KEY, 1)).params
    assert all(torch.equal(value, mine.learned.params[name]) for name, value in by_itself.items())
    sent = kept_by(run, 0).received[0]
    assert sorted(sent) == ["2"]
    assert run.results["test/rmse"] > 0


@pytest.mark.parametrize("protect", [ProtectSettings("dp"), ProtectSettings("ip")])
def test_others_have_protected_residuals_and_oneself_clean_ones(protect):
    data = organisations()
    clean, noisy = (run_of(settings(protect=how), data) for how in (ProtectSettings(), protect))
    first = data.each[0]
    tables = []
    for run in (clean, noisy):
        run.advance()
        samples = run.federation.client.samples(kept_by(run, 0), first)[""]
        tables.append(samples.matrix.to_dense(float("nan")))
    own = slice(0, first.train.n_columns)
    torch.testing.assert_close(tables[0][:, own], tables[1][:, own], equal_nan=True)
    others = tables[0][:, first.train.n_columns :], tables[1][:, first.train.n_columns :]
    assert torch.equal(others[0].isnan(), others[1].isnan())
    differ = (others[0] - others[1]).abs().nan_to_num()
    assert float((differ > 0).double().sum()) > 0.8 * float((~others[0].isnan()).sum())


def test_uploads_depend_on_what_they_declare():
    data, how = organisations(dtype=torch.float32), settings()
    run = run_of(how, data)
    run.advance()
    one, client = data.each[0], run.federation.client
    mine = kept_by(run, 0)
    stay = {"shared": lambda value: value, "peers": lambda value: value}  # no valid ones are near
    steps = (
        ("residual", Turn(1, len(one.train))),
        ("train", Epochs(2)),
        ("measure", Predictions("valid", {}, {}, 1)),
    )
    for step, down in steps:
        assert_non_interference(client, step, down, mine, one, KEY, perturb=stay)
        up, later = getattr(client, step)(down, mine, one, KEY)
        assert_no_shared_storage(up, later or mine)


def test_test_data_change_nothing_but_the_test():
    def poisoned(one):
        test = replace(one.domain.test, values=-40.0 * one.domain.test.values)
        return replace(one, domain=replace(one.domain, test=test))

    data, how = organisations(), settings(rounds=2)
    other = Organisations.of([poisoned(one) for one in data.each])
    runs = [finished(run_of(how, each)) for each in (data, other)]
    kept = [
        {k: v for k, v in tree.tensors(run.to_plain()) if k.startswith("store")} for run in runs
    ]
    assert kept[0]
    assert all(torch.equal(value, kept[1][name]) for name, value in kept[0].items())
    assert runs[0].results["test/best_round"] == runs[1].results["test/best_round"]
    assert runs[0].results["test/rmse"] != runs[1].results["test/rmse"]


@pytest.mark.parametrize("name", ["autorec", "gaussian"])
def test_models_of_samples_fit_all_residuals_whatever_is_said_of_own_targets(name):
    """`train.own_targets` is of MTAL's autoencoder."""
    runs = []
    for targets in ("all", "hidden"):
        chosen = TrainSettings(epochs=1, batch_rows=4, hide=0.4, own_targets=targets)
        model = ModelSettings(name, hidden=6, code=4, members=2, rank=2)
        how = settings(rounds=1, model=model, train=chosen)
        runs.append(finished(run_of(how, organisations())))
        assert ("train.own_targets" in idle(how)) == (targets == "hidden")
    assert runs[0].results == runs[1].results


@pytest.mark.parametrize("method", ["residuals", "sums", "alone"])
def test_what_is_exported_makes_the_scores(method):
    """With its own ratings an organisation needs nothing else, and none of coterie."""
    double = EngineSettings(dtype="float64")
    how = resolve(replace(settings(rounds=2, engine=double), method=method))
    data = organisations(names=[KEY.bits(torch.arange(N_ROWS))] * 3)
    run, one = finished(run_of(how, data)), data.each[1]
    given = exported_organisation(run, data, None, Exporting(client=1))
    kept = given.tensors
    x = (one.train.to_dense(float("nan")) - kept["base"]).T * 2 / kept["unit"] + PRESENCE
    order = one.rows.argsort() if method == "sums" else torch.arange(N_ROWS)
    x = torch.nan_to_num(x)[:, order].double().numpy() * (1 - 0.4)
    members = [
        {n.removeprefix("autorec/"): v[k] for n, v in kept.items() if n.startswith("autorec/")}
        for k in range(2)
    ]
    f = np.mean([plain_network(each, x) for each in members], 0)[:, order.argsort()]
    scores = kept["base"].numpy() + float(kept["eta"] * kept["unit"]) * f.T
    asked = ~one.test.to_dense(float("nan")).isnan().numpy()
    found = run.federation.client.predicted(kept_by(run, 1), one, one.test)
    np.testing.assert_allclose(found, scores[asked], rtol=1e-9)
    assert given.about["eta"] == "rate of what the models expect"
    assert given.graph is None


@pytest.mark.parametrize("method", ["alone", "joint"])
def test_who_has_no_peers_predicts_from_its_own_residuals(method):
    """F = F⁰ + η f by numpy, with the members that it trained."""
    how = resolve(replace(settings(rounds=2), method=method))
    data = organisations(widths=(4,))
    run, one = run_of(how, data), data.each[0]
    run.advance()  # the newest round, whichever is the best
    params = kept_by(run, 0).learned.params
    table = torch.from_numpy(dense_residuals(data)).T
    size = table[~table.isnan()].square().mean().sqrt()
    x = torch.nan_to_num(table / size + PRESENCE).numpy() * (1 - 0.4)
    members = [
        {n.removeprefix("autorec/"): v[k] for n, v in params.items() if n.startswith("autorec/")}
        for k in range(2)
    ]
    f = float(size) * np.mean([plain_network(each, x) for each in members], 0)
    scores = column_means(one.train) + float(params["eta"]) * f.T
    asked = ~one.test.to_dense(float("nan")).isnan()
    found = run.federation.client.own(one)[1].predict(params, one.test)
    np.testing.assert_allclose(found, scores[asked.numpy()], rtol=1e-9)
    assert float(params["eta"]) > 0.0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": ModelSettings("aae")}, "autorec, gaussian, blend"),
        ({"model": ModelSettings("mf")}, "autorec, gaussian, blend"),
        ({"reading": "released", "model": ModelSettings("autorec")}, "other than released"),
        (
            {"model": ModelSettings("autorec"), "data": DomainSettings(valid=0.0)},
            "data.valid above 0",
        ),
        (
            {"model": ModelSettings("autorec"), "protect": ProtectSettings(sum=True)},
            "there are none with the method residuals",
        ),
        ({"method": "mtal", "model": ModelSettings("autorec")}, "for the methods"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, why):
    with pytest.raises(UserError, match=why):
        Settings(**{"method": "residuals", **changes})
