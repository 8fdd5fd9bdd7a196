"""Items and users as samples, side by side: who trains what, and what is made of both."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from scipy.optimize import minimize, nnls
from tests.assisted.small_organisations import finished
from tests.assisted.test_residuals_once import (
    inputs_dense,
    kept_by,
    organisations,
    plain_network,
    run_of,
    settings,
    trained_by_hand,
)

from coterie.assisted.aggregation import Fit, settle
from coterie.assisted.client_halves import client_half
from coterie.assisted.data import Organisations
from coterie.assisted.experiment import Experiment
from coterie.assisted.learner import base_model
from coterie.assisted.objective import Logistic, Squared
from coterie.assisted.prediction_messages import Epochs, Predictions
from coterie.assisted.readings import resolve
from coterie.assisted.samples.model import FEWEST
from coterie.assisted.settings import DomainSettings, ModelSettings, ProtectSettings, Settings
from coterie.core.data.interactions.cells import Cells
from coterie.core.errors import UserError
from coterie.core.privacy.check import assert_non_interference
from coterie.core.tensors.keys import Key

MODEL = ModelSettings("autorec", samples="both", hidden=6, code=4, dropout=0.0, members=2)
KEY = Key.from_seed(5)


def mean_of_all(cells):
    """F⁰ by numpy: of every column the mean of all cells."""
    known = cells.to_dense(float("nan")).numpy()
    return np.full(known.shape[1], np.nanmean(known))


def outputs_by_hand(data, how, rounds):
    """F⁰ of all columns, and what models of each kind give at every cell, ``(m, N)``."""
    bases = np.concatenate([mean_of_all(one.train) for one in data.each])
    known = np.concatenate([one.train.to_dense(float("nan")).numpy() for one in data.each], 1)
    table = torch.from_numpy(2 * (known - bases))
    rated = ~table.isnan()
    matrix = Cells.from_pairs(*rated.nonzero(as_tuple=True), table[rated], *table.shape)
    by_column, by_row = matrix.transposed(), matrix
    columns, rows = ("items", "users") if how.data.align == "user" else ("users", "items")
    found = {
        columns: trained_by_hand(by_column, how, rounds, f"autorec-{columns}").T,
        rows: trained_by_hand(by_row, how, rounds, f"autorec-{rows}"),
    }
    return bases, np.stack([found["items"], found["users"]], -1)


@pytest.mark.parametrize("align", ["user", "item"])
def test_predictions_are_those_of_a_plain_loop(align):
    """F = F⁰ + η (w f_items + (1 - w) f_users): f by hand, the best step by scipy."""
    data, how = organisations(), settings(align, rounds=2, model=MODEL, start="constant")
    run = finished(run_of(how, data))
    best, first = int(run.results["test/best_round"]), 0
    assert best > 0  # else nothing was trained
    bases, outputs = outputs_by_hand(data, how, best)
    between = []
    for one in data.each:
        own = slice(first, first + one.train.n_columns)
        held = one.valid.to_dense(float("nan")).numpy()
        at = ~np.isnan(held)
        gap, both = (held - bases[own])[at], outputs[:, own][at]
        assert len(gap) >= FEWEST

        step = nnls(both, gap)[0]
        expected = bases[own] + outputs[:, own] @ step
        asked = ~one.test.to_dense(float("nan")).isnan().numpy()
        found = run.federation.client.predicted(kept_by(run, one.id), one, one.test).numpy()
        np.testing.assert_allclose(found, expected[asked], rtol=1e-5)
        between.append(min(step) > 0.01 * max(step))
        first += one.train.n_columns
    assert any(between)  # else one kind alone would do


def test_each_kind_is_trained_as_it_would_be_alone():
    """Of other numbers of samples, so that optimizers make other numbers of steps."""
    data = Organisations.of(organisations().each[:2])
    how = settings(rounds=3, model=MODEL, start="constant")
    run = finished(run_of(how, data))
    _, expected = outputs_by_hand(data, how, 3)
    learned = kept_by(run, 0).learned
    assert sorted(set(learned.state.steps.tolist())) == [3 * 2 * 2, 3 * 2 * 3]
    of_kind = run.federation.client.samples(kept_by(run, 0), data.each[0])
    for place, kind in enumerate(("items", "users")):
        cells, name = of_kind[kind].every, f"autorec-{kind}/"
        members = [
            {k.removeprefix(name): v[n] for k, v in learned.params.items() if k.startswith(name)}
            for n in range(2)
        ]
        size = cells.values.square().mean().sqrt()
        x = torch.nan_to_num(inputs_dense(cells, size)).double().numpy() * (1 - 0.4)
        found = float(size) * np.mean([plain_network(each, x) for each in members], 0)
        wanted = expected[..., place]
        np.testing.assert_allclose(found, wanted.T if kind == "items" else wanted, rtol=1e-9)


def test_a_base_model_may_be_the_mean_of_all():
    for one in organisations().each:
        base = base_model(one.train, Squared(), "constant")
        np.testing.assert_allclose(base.column, mean_of_all(one.train), rtol=1e-12)
        assert base.row is None
    labels = organisations(binary=True).each[0].train
    found, smoothed = (
        base_model(labels, Logistic(), start).column for start in ("constant", "smoothed")
    )
    assert torch.equal(found, smoothed)


def test_who_has_no_peers_has_both_kinds_too():
    data = organisations()
    how = resolve(replace(settings(rounds=2, model=MODEL, start="constant"), method="alone"))
    run = finished(run_of(how, data, client_half(how)))
    for one in data.each:
        mine = kept_by(run, one.id)
        names = {name.partition("/")[0] for name in mine.learned.params}
        assert names == {"autorec-items", "autorec-users", "eta", "weights"}
        sizes = {
            kind: mine.learned.params[f"autorec-{kind}/decoder.wide.weight"].shape[1]
            for kind in ("items", "users")
        }
        assert sizes == {"items": one.train.n_rows, "users": one.train.n_columns}


def test_a_run_goes_on_where_it_was():
    """What optimizers of both kinds remember is kept apart."""
    data, how = organisations(), settings(rounds=3, model=MODEL, start="constant")
    whole, broken = run_of(how, data), run_of(how, data)
    broken.advance()
    broken.advance()
    again = run_of(how, data)
    again.load_plain(broken.to_plain())
    assert finished(again).results == finished(whole).results


def test_organisations_read_what_they_declare():
    data, how = organisations(dtype=torch.float32), settings(model=MODEL, start="constant")
    run = run_of(how, data)
    run.advance()
    mine, client = kept_by(run, 0), run.federation.client
    stay = {"shared": lambda value: value, "peers": lambda value: value}
    for step, down in (("train", Epochs(2)), ("measure", Predictions("valid", {}, {}, 1))):
        assert_non_interference(client, step, down, mine, data.each[0], KEY, perturb=stay)


def test_what_cannot_be_is_refused():
    with pytest.raises(UserError, match=r"not both: set model\.samples items"):
        Settings(method="sums", model=MODEL)
    for start in ("constant", "bias"):
        with pytest.raises(UserError, match=f"start {start} has others: set start mean"):
            Settings(
                method="residuals",
                model=MODEL,
                start=start,
                data=DomainSettings(scale=(1, 5)),
                protect=ProtectSettings(residuals="dp", centre="receiver"),
            )


def test_what_is_needed_is_that_of_each_kind():
    def needs(**more):
        model = replace(MODEL, **more)
        return Experiment(Settings(method="joint", model=model)).needs()

    def total(found, which):
        return sum(getattr(need, which) or 0 for need in found)

    both, items, users = needs(), needs(samples="items"), needs(samples="users")
    for which in ("memory", "steps"):
        assert total(items, which) != total(users, which)
        assert total(both, which) == total(items, which) + total(users, which)


@given(st.integers(0, 10_000))
@settings_of_hypothesis(max_examples=20)
def test_of_likes_no_step_that_is_nowhere_negative_is_better(seed):
    key = Key.from_seed(seed)
    outputs = key.fold("outputs").normal(60, 2, dtype=torch.float64) * torch.tensor([0.2, 1.0])
    truth = 3.0 * outputs[:, 0] + outputs[:, 1] + key.fold("rest").normal(60, dtype=torch.float64)
    labels, scores = (truth > 0).double(), torch.zeros(60, dtype=torch.float64)
    found = settle(Fit(Logistic(), labels, scores, outputs), 0.5)

    def loss(step):
        logits = outputs.numpy() @ step
        return np.mean(np.logaddexp(0.0, logits) - labels.numpy() * logits)

    mine = float(found.eta) * found.weights.numpy()
    best = minimize(loss, np.ones(2), bounds=[(0, None)] * 2, tol=1e-14)
    assert loss(mine) <= best.fun + 1e-6
