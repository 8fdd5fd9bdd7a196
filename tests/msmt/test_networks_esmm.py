"""ESMM against products of probabilities, in many digits."""

from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.msmt.naive_network import SCHEMA, SIZES, Naive, drawn, shaken

from coterie.core.errors import UserError
from coterie.msmt.data.task import Schema
from coterie.msmt.models.funnel import Esmm, logits_of_products

logit = st.floats(-700, 700, allow_nan=False)


@settings(max_examples=40)
@given(st.lists(logit, min_size=1, max_size=4))
def test_logits_of_products(logits: list[float]) -> None:
    """p / (1 - p) in 340 digits, since p may be 1 - e^-700."""
    found = logits_of_products(torch.tensor([logits], dtype=torch.float64))[0].tolist()
    with localcontext() as context:
        context.prec = 340
        product = Decimal(1)
        for one, x in zip(found, logits, strict=True):
            product /= 1 + Decimal(-x).exp()
            expected = float((product / (1 - product)).ln(context))
            assert one == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_far_logits_have_finite_gradients() -> None:
    far = torch.tensor(
        [[900.0, 900.0], [-900.0, 900.0], [900.0, -900.0], [-900.0, -900.0], [0.0, 0.0]],
        dtype=torch.float64,
        requires_grad=True,
    )
    found = logits_of_products(far)
    found.sum().backward()
    assert found[:, 1].tolist() == pytest.approx(
        [900 - np.log(2), -900, -900, -1800, -np.log(3)], abs=1e-9
    )
    assert far.grad is not None
    assert far.grad.isfinite().all()


@pytest.mark.parametrize("training", [False, True])
def test_esmm(training: bool) -> None:
    network, batch = shaken(Esmm(SCHEMA, SIZES)).train(training), drawn(SCHEMA, 7)
    naive = Naive(network, training)
    x = naive.embed(batch)
    logits = naive.towers([naive.mlp(f"experts.{task}", x) for task in range(2)])
    conditional = 1 / (1 + np.exp(-logits))
    expected = np.cumprod(conditional, axis=1)
    found = network.probabilities(batch).detach().numpy()
    assert np.abs(found - expected).max() < 1e-12
    labels = batch["labels"].numpy()
    loss = -np.where(labels == 1, np.log(expected), np.log1p(-expected)).sum() / 7
    assert network.loss(batch).item() == pytest.approx(loss, rel=1e-10)


def test_a_conversion_is_never_likelier_than_its_click() -> None:
    network, batch = shaken(Esmm(SCHEMA, SIZES)).eval(), drawn(SCHEMA, 200)
    click, buy = network.logits(batch).unbind(1)
    assert bool((buy < click).all())


def test_what_a_sample_without_conversion_teaches_of_pcvr() -> None:
    """d/dl2 of -log(1 - p1 p2) is p1 p2 (1 - p2)/(1 - p1 p2): nothing where p1 is nearly 0."""
    logits = torch.tensor([[-40.0, 1.0], [0.3, 1.0]], dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.softplus(logits_of_products(logits)[:, 1])
    loss.sum().backward()
    p1, p2 = logits.detach().sigmoid().unbind(1)
    assert logits.grad is not None
    assert torch.allclose(logits.grad[:, 1], p1 * p2 * (1 - p2) / (1 - p1 * p2), atol=1e-15)
    assert 0 < logits.grad[0, 1] < 1e-16


def test_unrelated_tasks_are_refused() -> None:
    with pytest.raises(UserError, match="ESMM needs tasks that follow from one another"):
        Esmm(Schema(("click", "like"), ("QK", "QB"), (5,), 0), SIZES)
