"""Fields of many ids: their tables' gradients name rows, and are those of dense tables."""

import copy
from typing import Any

import pytest
import torch
from tests.msmt.naive_network import drawn, shaken
from tests.msmt.small_scenarios import kept, run_of, scenarios, settings
from torch import Tensor, nn

from coterie.core.local_training.alone import trained_alone
from coterie.core.tensors.keys import Key
from coterie.msmt.data.task import Schema
from coterie.msmt.models import base
from coterie.msmt.models.base import SPARSE_FROM, Batch, Inputs, MultiTask
from coterie.msmt.models.make import make_model

NAMES = ("template", "single-task", "mmoe", "ple", "esmm", "aitm", "star", "aesm2", "pepnet")
SCHEMA = Schema(("click", "buy"), ("NL", "ES", "FR"), (9, 4, 30), 2, funnel=True)
LARGE = {"tables.0", "tables.2"}


def tables(network: nn.Module) -> dict[str, nn.Embedding]:
    found = network.named_modules()
    return {
        name: part
        for name, part in found
        if isinstance(part, nn.Embedding) and "tables." in f".{name}"
    }


def gradients(network: MultiTask, batch: Batch) -> dict[str, Tensor]:
    network.zero_grad()
    with Key.from_seed(1).torch_rng():  # AESM2's gates draw noise
        network.loss(batch).backward()
    return {n: v.grad for n, v in network.named_parameters() if v.grad is not None}


@pytest.mark.parametrize(
    ("name", "training"),
    [*((name, True) for name in NAMES), ("template", False), ("mmoe", False)],
)
def test_gradients_are_those_of_dense_tables(
    name: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "SPARSE_FROM", 9)
    method = "pf-msmtrec" if name == "template" else "fedavg"
    chosen = settings(model__name=name, method=method, model__experts=4)
    network = shaken(make_model(chosen, SCHEMA)).train(training)
    dense = copy.deepcopy(network)
    for table in tables(dense).values():
        table.sparse = False
    batch = drawn(SCHEMA, 40)
    found, expected = gradients(network, batch), gradients(dense, batch)
    assert list(found) == list(expected)
    sparse = {n.removesuffix(".weight") for n, value in found.items() if value.is_sparse}
    assert sparse == {n for n in tables(network) if n[n.index("tables.") :] in LARGE}
    for n, value in found.items():
        torch.testing.assert_close(value.to_dense(), expected[n], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "pf-msmtrec"},
        {"method": "pf-msmtrec", "pf.share": ("embeddings",), "train.clip": 0.5},
        {"method": "fedavg", "model.name": "mmoe"},
        {"method": "fedprox", "model.name": "aitm", "train.optimizer": "adam"},
    ],
    ids=["pf-msmtrec", "embeddings are shared", "fedavg", "fedprox"],
)
def test_rounds_are_those_of_dense_tables_where_the_rule_is_one(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradient descent without decay; any optimizer where all rows are pulled."""
    ends = []
    for large in (6, 7):
        monkeypatch.setattr(base, "SPARSE_FROM", large)
        chosen = settings({"train.optimizer": "sgd", "train.weight_decay": 0.0}, options)
        run = run_of(chosen, rounds=2)
        client: Any = run.federation.client
        some = {n: part.sparse for n, part in tables(client.module).items()}
        assert some == {"inputs.tables.0": False, "inputs.tables.1": large == 6}
        ends.append(kept(run).personal)
    for name, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][name], rtol=1e-11, atol=1e-11)


def test_with_adam_rows_that_no_batch_names_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "SPARSE_FROM", 6)
    task = scenarios()
    ids = task.clients.train.samples["ids"]
    ids[ids[:, 1] == 4, 1] = 5
    first = run_of(settings(), task, rounds=0)
    first._open_block()
    after = run_of(settings(), task, rounds=2)
    old, new = (kept(run).personal["inputs.tables.1.weight"] for run in (first, after))
    assert torch.equal(old[:, 4], new[:, 4])
    assert bool((old[:, 5] != new[:, 5]).all())


def test_a_table_is_large_from_so_many_ids_on() -> None:
    schema = Schema(("click",), ("NL",), (SPARSE_FROM - 1, SPARSE_FROM), 0)
    with Key.from_seed(0).torch_rng():
        made = Inputs(schema, 1)
    assert [table.sparse for table in tables(made).values()] == [False, True]
    assert trained_alone(made)
