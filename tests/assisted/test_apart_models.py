"""What an organisation learns alone, against plain torch and arithmetic by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import optimize
from tests.assisted.plain_aae import dense
from tests.assisted.small_domains import KEY, own_domain
from torch import nn

from benchmarks.assisted.loop import PlainAAE
from coterie.assisted.aae.batches import Draws, RowBatches, RowShuffle
from coterie.assisted.aae.cells import Pattern
from coterie.assisted.apart import model_of
from coterie.assisted.learner import Learner
from coterie.assisted.own_models import recommender
from coterie.assisted.readings import resolve
from coterie.assisted.settings import DomainSettings, ModelSettings, Settings, TrainSettings
from coterie.core.tensors.keys import Key


def learner_of(name, data, feedback="explicit", align="user", side=False, reading="recommended"):
    settings = Settings(
        method="alone",
        reading=reading,
        data=DomainSettings(feedback=feedback, align=align, side=side, domains="uniform"),
        model=ModelSettings(name=name, hidden=7, code=8),
        train=TrainSettings(epochs=1, batch_rows=7, lr=0.02),
    )
    return Learner(resolve(settings), data)


def trained(model, epochs, key=KEY):
    now = model.begin(key)
    for _ in range(epochs):
        now = model.train(now, key)
    return now


def mean_loss(feedback):
    return F.mse_loss if feedback == "explicit" else F.binary_cross_entropy_with_logits


def far(found, expected):
    return max(float((found[name] - value).abs().max()) for name, value in expected.items())


@pytest.mark.parametrize("side", [False, True])
@pytest.mark.parametrize("feedback", ["explicit", "implicit"])
def test_the_autoencoder_equals_a_plain_loop(feedback, side):
    data = own_domain(implicit=feedback == "implicit")
    learner = learner_of("aae", data, feedback, side=side)
    cells, network, plan = data.train, learner.network(6), learner.plan
    module = PlainAAE(network).double().load(model_of(learner).begin(KEY).params)
    adam = torch.optim.Adam(module.parameters(), lr=plan.lr, weight_decay=plan.weight_decay)
    table, mask = cells.to_dense(), cells.to_dense(torch.nan).isfinite()
    sides = {"profile": data.domain.row_features} if side else {}
    if side:
        sides["attributes"] = mask.double() @ data.domain.column_features
    pattern = Pattern(cells.columns, 6)
    draws = Draws(network.code, network.dropout)
    batches = RowBatches(learner.inputs(0), pattern, cells.values, 7, draws, KEY)
    assert batches.per_epoch == 2
    for number in range(4):
        rows, keep = batches.rows(number), batches(number).keep
        given = {"ratings": table, **sides}
        output = module({name: x[rows] for name, x in given.items()}, keep)
        value = mean_loss(feedback)(output[mask[rows]], table[rows][mask[rows]])
        adam.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(module.parameters(), plan.clip)
        adam.step()
    model = model_of(learner)
    found = trained(model, 2)
    assert found.epochs == 2
    assert far(found.params, module.params()) < 1e-12
    held, given = data.test, {"ratings": dense(cells.columns, cells.values, 6), **sides}
    with torch.no_grad():
        expected = module.eval()(given)[held.rows, held.columns.values]
    torch.testing.assert_close(model.predict(found.params, held), expected)


@pytest.mark.parametrize("align", ["user", "item"])
@pytest.mark.parametrize("feedback", ["explicit", "implicit"])
@pytest.mark.parametrize("name", ["mf", "mlp", "ncf"])
def test_vectors_equal_a_plain_loop_over_pairs(name, feedback, align):
    data = own_domain(implicit=feedback == "implicit")
    learner = learner_of(name, data, feedback, align, side=True)
    cells, plan = data.train, learner.plan
    module = recommender(learner, KEY.fold("start")).double()
    adam = torch.optim.Adam(module.parameters(), lr=plan.lr, weight_decay=plan.weight_decay)
    rows, losses = RowShuffle(cells.columns.lengths, 7, KEY), []
    for number in range(6):
        chosen = torch.isin(cells.rows, rows(number))
        pairs = cells.rows[chosen], cells.columns.values[chosen]
        value = mean_loss(feedback)(module.score(*pairs), cells.values[chosen])
        adam.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(module.parameters(), plan.clip)
        adam.step()
        losses.append(float(value.detach()))
    model = model_of(learner)
    found = trained(model, 3)
    expected = {f"model.{n}": p.detach() for n, p in module.named_parameters()}
    assert found.params.keys() == expected.keys()
    assert far(found.params, expected) < 1e-11
    assert float(found.loss) == pytest.approx(sum(losses[-2:]) / 2, rel=1e-10)
    held = data.valid
    scores = module.score(held.rows, held.columns.values).detach()
    torch.testing.assert_close(model.predict(found.params, held), scores)


def test_vectors_are_of_the_published_sizes():
    learner = learner_of("ncf", own_domain(), side=True)
    shapes = {n: tuple(p.shape) for n, p in recommender(learner, KEY).named_parameters()}
    assert shapes["mlp.first.weight"] == (4, 32)  # 8 each of user, item and their features -> d/2
    assert shapes["mlp.rest.0.weight"] == (2, 4)
    assert shapes["out.weight"] == (1, 10)
    assert shapes["gmf.users.weight"] == shapes["mlp.users.weight"] == (13, 8)
    assert not any(
        "side" in n for n in recommender(learner_of("ncf", own_domain()), KEY).state_dict()
    )


@pytest.mark.parametrize(
    ("reading", "feedback", "offset"),
    [
        ("recommended", "explicit", None),
        ("literal", "implicit", None),
        ("released", "explicit", 0.0),
    ],
)
def test_where_the_constant_of_mf_starts(reading, feedback, offset):
    data = own_domain(implicit=feedback == "implicit")
    learner = learner_of("mf", data, feedback, reading=reading)
    values = data.train.values.tolist()
    expected = sum(values) / len(values)
    if feedback == "implicit":
        rate = (sum(values) + 1) / (len(values) + 2)
        expected = math.log(rate / (1 - rate))
    params = model_of(learner).begin(KEY).params
    assert float(params["model.offset"]) == pytest.approx(expected if offset is None else offset)
    assert recommender(learner, KEY).broadcast == (reading == "released")


@pytest.mark.parametrize("align", ["user", "item"])
def test_deviations_by_hand(align):
    """Of items first, then of users, each damped by five ratings."""
    data = own_domain()
    triples = [
        (row, column, float(value))
        for row, columns in enumerate(data.train.columns.tolists())
        for column, value in zip(
            columns, data.train.values[data.train.rows == row].tolist(), strict=True
        )
    ]
    pairs = [(a, b, v) if align == "user" else (b, a, v) for a, b, v in triples]
    mean = sum(v for _, _, v in pairs) / len(pairs)
    of_item, of_user = {}, {}
    for item in {i for _, i, _ in pairs}:
        rest = [v - mean for _, i, v in pairs if i == item]
        of_item[item] = sum(rest) / (len(rest) + 5)
    for user in {u for u, _, _ in pairs}:
        rest = [v - mean - of_item[i] for u, i, v in pairs if u == user]
        of_user[user] = sum(rest) / (len(rest) + 5)
    model = model_of(learner_of("bias", data, align=align))
    now = trained(model, 1)
    held = data.test
    for row, column, found in zip(
        held.rows.tolist(),
        held.columns.values.tolist(),
        model.predict(now.params, held).tolist(),
        strict=True,
    ):
        user, item = (row, column) if align == "user" else (column, row)
        assert found == pytest.approx(mean + of_user.get(user, 0.0) + of_item.get(item, 0.0))
    fit = [mean + of_user[u] + of_item[i] - v for u, i, v in pairs]
    assert float(now.loss) == pytest.approx(sum(e * e for e in fit) / len(fit))


@pytest.mark.parametrize("name", ["base", "rate"])
def test_columns_by_hand(name):
    implicit = name == "rate"
    data = own_domain(implicit=implicit)
    model = model_of(learner_of(name, data, "implicit" if implicit else "explicit"))
    table = data.train.to_dense(torch.nan)
    known = [table[:, c][~table[:, c].isnan()].tolist() for c in range(6)]
    if implicit:
        rates = [(sum(values) + 1) / (len(values) + 2) for values in known]
        expected = [math.log(rate / (1 - rate)) for rate in rates]
    else:
        means = [sum(values) / len(values) for values in known if values]
        expected = [*means, sum(means) / len(means)]  # the last column is empty
    found = model.predict(trained(model, 1).params, data.test).tolist()
    assert found == pytest.approx([expected[c] for c in data.test.columns.values.tolist()])


def test_deviations_of_labels_are_a_ridge_logistic_regression():
    """Also of one organisation that has another loss than the feedback's."""
    data = own_domain(implicit=True)
    learner = learner_of("bias", data)
    odd = replace(learner.settings, objectives={data.domain.name: "logistic"})
    row, column, label = (
        data.train.rows.numpy(),
        data.train.columns.values.numpy(),
        data.train.values.numpy(),
    )
    n_rows = data.train.n_rows
    share = (label.sum() + 1) / (len(label) + 2)
    logit = math.log(share / (1 - share))

    def loss(deviations):
        score = logit + deviations[row] + deviations[n_rows + column]
        return np.logaddexp(0, score).sum() - label @ score + deviations @ deviations  # ridge 2/2

    found = optimize.minimize(loss, np.zeros(n_rows + data.train.n_columns), tol=1e-12)
    for given in (odd, replace(learner_of("bias", data, "implicit").settings)):
        params = model_of(Learner(given, data)).begin(KEY).params
        assert params["row"].tolist() == pytest.approx(found.x[:n_rows], abs=1e-4)
        assert (params["column"] - logit).tolist() == pytest.approx(found.x[n_rows:], abs=1e-4)


@pytest.mark.parametrize("name", ["aae", "mf", "mlp", "ncf"])
def test_the_first_parameters_depend_on_the_key_alone(name):
    learner = learner_of(name, own_domain())
    first, again = (model_of(learner).begin(KEY).params for _ in range(2))
    other = model_of(learner).begin(Key.from_seed(3)).params
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert any(not torch.equal(first[n], other[n]) for n in first)
