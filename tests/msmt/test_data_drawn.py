"""How generated samples are drawn: inputs, labels and their true probabilities."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from coterie.core.tensors.keys import Key
from coterie.msmt.data.describe import describe
from coterie.msmt.data.drawn import (
    ALIEXPRESS,
    NOISE,
    Amounts,
    Form,
    Funnel,
    Inputs,
    Noise,
    intercept,
)
from coterie.msmt.data.worlds import World, make_world

KEY = Key.from_seed(5)
FORM = Form((5, 3), 4, 0.4)


def inputs(cov_shift: float = 0.0, own: str = "a", form: Form = FORM) -> Inputs:
    return Inputs(form, KEY.fold("shared"), KEY.fold(own), cov_shift)


def linear(ids, numbers):
    """Scores that anybody can check."""
    first = ids[:, 0].double() + numbers.sum(1)
    return torch.stack([first, 3.0 * first + ids[:, 1].double() * 10.0], 1)


def test_inputs_are_in_their_ranges_and_held_by_float32():
    ids, numbers = inputs(form=ALIEXPRESS).draw(KEY, 0, 4000)
    assert ids.shape == (4000, 16)
    assert ids.min() == 0
    assert (ids.max(0).values + 1).tolist() == list(ALIEXPRESS.values)
    assert numbers.shape == (4000, 63)
    assert float(numbers.min()) == 0.0
    assert float(numbers.max()) <= 1.0
    assert torch.equal(numbers.float().double(), numbers)
    assert abs(float((numbers == 0).double().mean()) - 0.44) < 0.04


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_pieces_of_a_draw_are_parts_of_the_whole(a, b, c):
    start, middle, stop = sorted((a, b, c))
    law = inputs()
    pieces = [law.draw(KEY, start, middle), law.draw(KEY, middle, stop)]
    for whole, *parts in zip(law.draw(KEY, start, stop), *pieces, strict=True):
        assert torch.equal(torch.cat(parts), whole)


def frequencies(law):
    ids, numbers = law.draw(KEY, 0, 20000)
    counts = [torch.bincount(column, minlength=5) for column in ids.unbind(1)]
    return torch.cat([*counts, (numbers == 0).sum(0)]).double() / 20000


def test_cov_shift_says_how_far_inputs_differ():
    same, mixed, other = (
        float((frequencies(inputs(c, "a")) - frequencies(inputs(c, "b"))).abs().max())
        for c in (0.0, 0.3, 1.0)
    )
    assert same == 0.0
    assert 0.01 < mixed < other


def test_frequencies_of_ids_are_the_softmax_of_normal_logits():
    a, own = (KEY.fold(name).fold("field 0").normal(5, dtype=torch.float64).numpy()
              for name in ("shared", "a"))  # fmt: skip
    logits = np.sqrt(1 - 0.6**2) * a + 0.6 * own
    expected = np.exp(logits) / np.exp(logits).sum()
    assert np.allclose(frequencies(inputs(0.6))[:5], expected, atol=0.012)


@given(st.floats(0.01, 0.9), st.integers(0, 10**6))
def test_intercepts_are_roots(rate, seed):
    logits = Key.from_seed(seed).normal(50, dtype=torch.float64) * 2
    weights = Key.from_seed(seed).fold("w").uniform(50, dtype=torch.float64) * 0.05 + 0.95
    for given_weights in (None, weights):
        w = np.ones(50) if given_weights is None else weights.numpy()
        root = brentq(lambda b, w=w: (w * expit(logits.numpy() + b)).mean() - rate, -100, 100)
        assert intercept(logits, rate, given_weights) == pytest.approx(root, abs=1e-9)


@pytest.mark.parametrize("rho", [-1.0, -0.4, 0.0, 0.7, 1.0])
def test_logits_have_the_correlation_and_the_strength_asked_for(rho):
    law = inputs()
    funnel = Funnel(law, linear, Noise(rho=rho, snr=1.3), KEY.fold("scale"))
    ids, numbers = law.draw(KEY.fold("other"), 0, 40000)
    logits = funnel.logits(ids, numbers)
    assert np.corrcoef(logits.T.numpy())[0, 1] == pytest.approx(rho, abs=0.03)
    assert torch.allclose(logits.std(0), torch.tensor(1.3 * NOISE).double(), rtol=0.03)
    # The first task depends on the first score alone.
    assert np.corrcoef(logits[:, 0], linear(ids, numbers)[:, 0])[0, 1] == pytest.approx(1.0)


def test_probabilities_have_the_base_rates_and_are_a_product():
    law = inputs()
    funnel = Funnel(law, linear, Noise(rates=(0.35, 0.08)), KEY.fold("scale"))
    ids, numbers = law.draw(KEY.fold("other"), 0, 40000)
    chances = funnel.probabilities(ids, numbers)
    logits = funnel.logits(ids, numbers).numpy()
    assert np.allclose(chances[:, 0], expit(logits[:, 0]))
    assert np.allclose(chances[:, 1], expit(logits[:, 0]) * expit(logits[:, 1]))
    assert chances.mean(0).tolist() == pytest.approx([0.35, 0.08], abs=0.01)


@pytest.fixture(scope="module")
def world():
    return make_world(World(), Amounts((300, 20000), 100, 9000), KEY)


def test_labels_are_drawn_by_their_probabilities(world):
    labels = world.clients.test.samples["labels"].double()
    deviation = (world.truth * (1 - world.truth)).sum(0).sqrt()
    assert ((labels - world.truth).sum(0) / deviation).abs().max() < 4
    # Also where they are high, and where they are low.
    for task in range(2):
        order = world.truth[:, task].argsort()
        for part in order.chunk(10):
            p = world.truth[part, task]
            assert abs(float((labels[part, task] - p).sum())) < 4.5 * float(
                (p * (1 - p)).sum().sqrt()
            )


def test_conversions_are_clicks(world):
    for part in (world.clients.train, world.clients.valid, world.clients.test):
        click, both = part.samples["labels"].unbind(1)
        assert bool((both <= click).all())
        assert 0 < int(both.sum()) < int(click.sum())
    assert world.schema.funnel


def test_the_form_of_the_samples(world):
    train = world.clients.train
    assert world.schema.vocabularies == tuple(count + 1 for count in ALIEXPRESS.values)
    assert {name: values.dtype for name, values in train.samples.items()} == {
        "ids": torch.int32,
        "numbers": torch.float32,
        "scenario": torch.int64,
        "labels": torch.uint8,
    }
    assert int(train.samples["ids"].min()) == 1  # 0 is for unknown values
    assert train.samples["scenario"].bincount().tolist() == [300, 20000]
    assert world.clients.valid.lengths.tolist() == [100, 100]
    assert world.truth.shape == (18000, 2)


def test_the_best_auc_is_that_of_the_true_probabilities(world):
    for place, row in enumerate(describe(world)):
        rows = slice(9000 * place, 9000 * (place + 1))
        labels = world.clients.test.samples["labels"][rows].numpy()
        for task, name in enumerate(("ctr", "ctcvr")):
            found = roc_auc_score(labels[:, task], world.truth[rows, task].numpy())
            assert row[f"{name} best AUC"] == pytest.approx(found, abs=1e-6)
        train = world.clients.train.samples["labels"][:300] if place == 0 else None
        if train is not None:
            assert row["ctr rate"] == pytest.approx(float(train[:, 0].double().mean()))
            assert (row["train"], row["valid"], row["test"]) == (300, 100, 9000)


def test_samples_depend_on_key_scenario_and_number_alone():
    def fields(amounts, key=KEY, dtype=torch.float32):
        return make_world(World(), amounts, key, dtype).clients.train.samples

    small = fields(Amounts((6, 9), 3, 3))
    larger = fields(Amounts((8, 9, 4), 7, 5))
    for name, values in small.items():
        assert torch.equal(values[:6], larger[name][:6])
        assert torch.equal(values[6:15], larger[name][8:17])
    assert not torch.equal(small["ids"], fields(Amounts((6, 9), 3, 3), Key.from_seed(6))["ids"])
    assert not torch.equal(small["ids"][:6], small["ids"][6:12])
    double = fields(Amounts((6, 9), 3, 3), dtype=torch.float64)
    assert double["numbers"].dtype == torch.float64
    assert torch.equal(double["numbers"].float(), small["numbers"])
    assert torch.equal(double["labels"], small["labels"])


def test_the_parts_are_different_samples_unless_test_takes_the_place_of_validation():
    amounts = Amounts((50,), 50, 50)
    clients = make_world(World(), amounts, KEY).clients
    held = [part.samples["numbers"] for part in (clients.train, clients.valid, clients.test)]
    assert not any(torch.equal(a, b) for a, b in zip(held, held[1:] + held[:1], strict=True))
    clients = make_world(World(), Amounts((50,), None, 50), KEY).clients
    assert torch.equal(clients.valid.samples["numbers"], held[2])
