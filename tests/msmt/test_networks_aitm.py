"""AITM against loops over samples, and its calibrator."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.msmt.naive_network import (
    SCHEMA,
    SIZES,
    Naive,
    Row,
    drawn,
    entropy,
    shaken,
    sigmoid,
    softmax,
    weighted,
)

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.msmt.data.task import Schema
from coterie.msmt.models.base import Batch
from coterie.msmt.models.funnel import Aitm, Attention, disorder

THREE = Schema(("click", "cart", "buy"), ("NL", "ES"), (5, 4), 2, funnel=True)


def naive_aitm(network: Aitm, batch: Batch, training: bool) -> np.ndarray:
    naive = Naive(network, training)
    x = naive.embed(batch)
    streams = [naive.mlp("experts.0", x)]
    for task in range(1, network.schema.n_tasks):
        own, rows = naive.mlp(f"experts.{task}", x), []
        for q, before in zip(own, streams[-1], strict=True):
            handed = [max(u, 0.0) for u in naive.linear(f"handing.{task - 1}.0", before)]
            rows.append(attended(naive, [q, handed]))
        streams.append(rows)
    return naive.towers(streams)


def attended(naive: Naive, rows: list[Row]) -> Row:
    scores = []
    for row in rows:
        query = naive.linear("attention.query", row)
        key = naive.linear("attention.key", row)
        dot = sum(a * b for a, b in zip(query, key, strict=True))
        scores.append(dot / math.sqrt(len(row)))
    return weighted(softmax(scores), [naive.linear("attention.value", row) for row in rows])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("schema", [SCHEMA, THREE])
def test_aitm(schema: Schema, training: bool) -> None:
    network, batch = shaken(Aitm(schema, SIZES)).train(training), drawn(schema, 7)
    expected = naive_aitm(network, batch, training)
    assert np.abs(network.logits(batch).detach().numpy() - expected).max() < 1e-9
    above = 0.0
    for row in expected.tolist():
        p = [sigmoid(x) for x in row]
        above += sum(max(later - former, 0) for former, later in pairwise(p))
    loss = entropy(expected, batch["labels"].numpy()) + 0.6 * above / 7
    assert above > 0
    assert network.loss(batch).item() == pytest.approx(loss, rel=1e-10)


def test_equal_attention_is_the_mean() -> None:
    attention = Attention(4).double()
    torch.nn.init.zeros_(attention.query.weight)
    streams = Key.from_seed(0).normal(5, 2, 4, dtype=torch.float64)
    expected = attention.value(streams).mean(1)
    assert torch.allclose(attention(streams), expected, atol=1e-14)


def test_calibrator() -> None:
    p = torch.tensor([[0.3, 0.5]], dtype=torch.float64, requires_grad=True)
    assert disorder(p).item() == pytest.approx(0.2)
    disorder(p).backward()
    assert p.grad is not None
    assert p.grad.tolist() == [[-1, 1]]
    assert disorder(torch.tensor([[0.5, 0.3, 0.3]])).item() == 0
    assert disorder(torch.tensor([[0.1, 0.2, 0.4], [0.5, 0.3, 0.6]])).item() == pytest.approx(0.3)


def test_weight_of_the_calibrator() -> None:
    batch = drawn(SCHEMA, 9)
    plain, heavy = (shaken(Aitm(SCHEMA, SIZES, calibration=a)).eval() for a in (0.0, 2.0))
    extra = heavy.loss(batch) - plain.loss(batch)
    assert extra.item() == pytest.approx(2 * disorder(plain.probabilities(batch)).item())
    assert Aitm(SCHEMA, SIZES).calibration == 0.6


def test_unrelated_tasks_are_refused() -> None:
    with pytest.raises(UserError, match="AITM needs tasks that follow from one another"):
        Aitm(Schema(("click", "like"), ("QK", "QB"), (5,), 0), SIZES)
