"""Sparse gradients of tables: equal to torch's own optimizers of them, and fast for any table."""

import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.methods.labelled_clients import (
    CLASSES,
    KEY,
    LENGTHS,
    Net,
    built,
    close,
    epochs_of,
    run,
    split,
)
from tests.core.methods.plain_federation import Learner, Plain, central, halves, holds
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.core.errors import UserError
from coterie.core.local_training.alone import trained_alone
from coterie.core.local_training.fit import fit
from coterie.core.local_training.gradients import clipped
from coterie.core.local_training.losses import MethodOf
from coterie.core.local_training.row_adam import RowAdam
from coterie.core.local_training.row_optimizer import RowOptimizer, RowSGD
from coterie.core.methods.scaffold import ScaffoldClient
from coterie.core.methods.settings.any_module import ScaffoldSettings

ROWS = 40
ADAM: dict[str, Any] = {
    "optimizer": "adam",
    "lr": 0.02,
    "epochs": 2,
    "batch_size": 3,
    "weight_decay": 0.05,
}
each_rule = pytest.mark.parametrize("optimizer", ["adam", "sgd"])


class Looked(nn.Module):
    """Tables that are looked up, one of them twice, and a head, in float64."""

    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 3, sparse=sparse)
        self.head = nn.Linear(6, CLASSES)
        self.bag = nn.EmbeddingBag(ROWS, 3, mode="sum", sparse=sparse)
        self.double()

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        ids = ids_of(batch["x"])
        found = self.table(ids[:, 0]) * self.table(ids[:, 1]) + self.table(ids[:, 2])
        logits = self.head(torch.cat([found, torch.tanh(self.bag(ids))], 1))
        return F.cross_entropy(logits, batch["y"])


class Dense(Looked):
    def __init__(self) -> None:
        super().__init__(sparse=False)


def ids_of(x: Tensor) -> Tensor:
    return (4 * x).floor().long().remainder(ROWS)


class TwoOptimizers:
    """One of torch for the sparse gradients, with weight decay of named rows, one for the rest."""

    def __init__(self, module: nn.Module, optimizer: str, lr: float, decay: float, clip: Any):
        parts = list(module.modules())
        sparse = [p for p in parts if isinstance(p, nn.Embedding | nn.EmbeddingBag) and p.sparse]
        self.tables = [part.weight for part in sparse]
        every, known = list(module.parameters()), {id(table) for table in self.tables}
        rest = [value for value in every if id(value) not in known]
        kinds: Any = {
            "adam": (torch.optim.SparseAdam, torch.optim.Adam),
            "sgd": (torch.optim.SGD, torch.optim.SGD),
        }
        lazy, usual = kinds[optimizer]
        self.all, self.decay, self.clip = every, decay, clip
        self.pair = [lazy(self.tables, lr=lr)]
        if rest:
            self.pair.append(usual(rest, lr=lr, weight_decay=decay))

    def zero_grad(self) -> None:
        for one in self.pair:
            one.zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        grads: list[Any] = [value.grad for value in self.all]
        if self.clip is not None:
            norm = sum(float(grad.to_dense().square().sum()) for grad in grads) ** 0.5
            for value, grad in zip(self.all, grads, strict=True):
                value.grad = grad * min(1.0, self.clip / (norm + 1e-6))
        for table in self.tables:
            table.grad = with_decay(table.grad, table, self.decay)
        for one in self.pair:
            one.step()

    @property
    def state(self) -> dict[Any, Any]:
        return {key: value for one in self.pair for key, value in one.state.items()}


def with_decay(grad: Any, table: Tensor, decay: float) -> Tensor:
    grad = grad.coalesce()
    values = grad.values() + decay * table.detach()[tuple(grad.indices())]
    return torch.sparse_coo_tensor(
        grad.indices(), values, grad.shape, is_coalesced=True, check_invariants=False
    )


class RowLearner(Learner):
    """A module that is trained by `TwoOptimizers`."""

    def __init__(self, given: Any, lr: float) -> None:
        super().__init__(built(Looked), replace(given, clip=None), lr)
        self.given = given

    def begin_round(self) -> None:
        if self.optimizer is None or not self.settings.keep_moments:
            some = self.given
            self.optimizer = TwoOptimizers(
                self.module, some.optimizer, self.lr, some.weight_decay, some.clip
            )


def looped(name: str, data: Any, given: Any, rounds: int) -> Plain:
    """Where a method pulls a model, gradients are dense, and so are torch's optimizers."""
    plain = Plain(name, Dense, data, given, by_place=True)
    if name in ("fedavg", "local", "ditto"):
        plain.learners = [RowLearner(given, given.lr) for _ in plain.learners]
    return plain.rounds(rounds)


@pytest.mark.parametrize(
    ("name", "optimizer", "clip"),
    [
        *((name, "adam", 0.2) for name in ("fedavg", "local", "fedprox", "ditto", "fedamp")),
        *((name, "sgd", clip) for name in ("fedprox", "ditto") for clip in (None, 0.2)),
    ],
)
def test_equals_torchs_own_optimizers(name: str, optimizer: str, clip: float | None) -> None:
    data = split([5, 0, 7, 1])
    options = ADAM | {"optimizer": optimizer, "clip": clip}
    server, client, given = halves(name, Looked, **options)
    holds(run(server, client, data, 2, 3), looped(name, data, given, 2))


@pytest.mark.parametrize(("keep", "chunk"), [(True, 1), (True, None), (False, 3)])
def test_moments_live_on_from_round_to_round_if_kept(keep: bool, chunk: int | None) -> None:
    data = split()
    server, client, given = halves("fedavg", Looked, **ADAM, keep_moments=keep)
    made = run(server, client, data, 2, chunk)
    holds(made, looped("fedavg", data, given, 2))
    if keep:
        steps = torch.tensor([2 * 2 * -(-n // 3) for n in LENGTHS])
        assert made.private(data.ids).optimizer.steps.tolist() == steps.tolist()


def test_central_training_equals_torchs_own_optimizers() -> None:
    data = split()
    server, client, given = central(Looked, data.train, **ADAM)
    made = run(server, client, data, 2)
    learner = RowLearner(given, given.lr)
    for number in (1, 2):
        key = KEY.fold("round", number).fold("central").fold(torch.tensor([0]))
        learner.train(epochs_of(data.train.samples, 0, 2, 3, key), key)
    close(made.state.weights, learner.weights())


@each_rule
def test_rows_that_no_batch_names_stay_as_they_are(optimizer: str) -> None:
    data = split([5, 2, 9])
    server, client, _ = halves("local", Looked, **ADAM | {"optimizer": optimizer})
    kept = run(server, client, data, 2).private(data.ids)
    first, places = built(Looked).table.weight.detach(), data.train.offsets.tolist()
    for c, (start, stop) in enumerate(pairwise(places)):
        named = torch.zeros(ROWS, dtype=torch.bool)
        named[ids_of(data.train.samples["x"][start:stop])] = True
        assert 0 < named.sum() < ROWS
        found = kept.personal["table.weight"][c]
        assert torch.equal(found[~named], first[~named])
        assert bool((found[named] != first[named]).all())
        if optimizer == "adam":
            assert not any(
                each["table.weight"][c][~named].any() for each in kept.optimizer.moments.values()
            )


def test_it_is_another_rule_than_that_of_dense_gradients() -> None:
    """Else the comparison could not tell them apart."""
    data, ends = split(), []
    for build in (Looked, Dense):
        server, client, _ = halves("fedavg", build, **ADAM)
        ends.append(run(server, client, data, 2).state.weights["table.weight"])
    assert float((ends[0] - ends[1]).abs().max()) > 1e-3


def test_gradient_descent_without_decay_is_the_same_rule() -> None:
    data, ends = split(), []
    for build in (Looked, Dense):
        server, client, _ = halves("fedavg", build, lr=0.1, epochs=2, batch_size=3, clip=0.3)
        ends.append(run(server, client, data, 2).state.weights)
    close(*ends)


def test_who_cannot_train_clients_one_by_one_refuses() -> None:
    assert trained_alone(built(Looked))
    assert not trained_alone(built(Dense))
    ScaffoldClient(built(Dense), ScaffoldSettings())
    with pytest.raises(UserError, match=r"'table' has sparse gradients.*leave 'sparse'") as caught:
        ScaffoldClient(built(Looked), ScaffoldSettings())
    assert "\n" not in str(caught.value)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["adam", "sgd"]),
    st.sampled_from([0.0, 0.3]),
    st.booleans(),
    st.booleans(),
    st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=3, max_size=3),
)
def test_rows_of_stacked_clients_are_those_of_an_optimizer_each(
    optimizer: str, decay: float, in_place: bool, alone: bool, ids: list[list[int]]
) -> None:
    """Three clients with their own rates; steps with other rows, often twice, or with none."""
    names = ("table",) if alone else ("w", "table", "v")
    params = {n: KEY.fold(n).normal(3, 5, 2, dtype=torch.float64) for n in names}
    modules = [lookups(params, c) for c in range(3)]
    lr = torch.tensor([0.1, 0.02, 0.3], dtype=torch.float64)
    each = [TwoOptimizers(m, optimizer, float(lr[c]), decay, None) for c, m in enumerate(modules)]
    opt: RowOptimizer = {"adam": RowAdam, "sgd": RowSGD}[optimizer](weight_decay=decay)
    state = opt.begin(params)
    for number in range(3):
        grads = {n: KEY.fold(n, number).normal(3, 5, 2, dtype=torch.float64) for n in params}
        here = [ids[(c + number) % 3] for c in range(3)]
        values = [
            KEY.fold("g", number, c).normal(len(i), 2, dtype=torch.float64)
            for c, i in enumerate(here)
        ]
        clients = [c for c, i in enumerate(here) for _ in i]
        index = torch.tensor([clients, [row for rows in here for row in rows]], dtype=torch.int64)
        grads["table"] = coo(index, torch.cat(values), (3, 5, 2))
        before = {n: v.clone() for n, v in params.items()}
        given = params
        params, state = opt.step(given, grads, state, lr, in_place=in_place)
        assert list(params) == list(before)
        assert all(torch.equal(given[n], before[n]) for n in names) or in_place
        for c, module in enumerate(modules):
            for n in names:
                module.get_parameter(f"{n}.weight").grad = grads[n][c]
            each[c].step()
            close(
                {n: v[c] for n, v in params.items()},
                {n: module.get_parameter(f"{n}.weight").detach() for n in names},
            )
    assert state.steps.tolist() == [3, 3, 3]


def lookups(params: dict[str, Tensor], c: int) -> nn.ModuleDict:
    found = {n: nn.Embedding(5, 2, sparse=n == "table") for n in params}
    for name, part in found.items():
        part.weight = nn.Parameter(params[name][c].clone())
    return nn.ModuleDict(found)


def coo(index: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.sparse_coo_tensor(index, values, shape, check_invariants=False)


def test_clipping_counts_what_names_one_row_together() -> None:
    index = torch.tensor([[0, 0, 0, 2], [1, 1, 3, 0]])
    table = coo(index, KEY.normal(4, 2, dtype=torch.float64), (3, 5, 2))
    grads = {"w": KEY.fold("w").normal(3, 2, dtype=torch.float64), "table": table}
    clip = torch.tensor([0.5, 0.1, 100.0], dtype=torch.float64)
    found = clipped(grads, clip)
    expected = clipped({name: grad.to_dense() for name, grad in grads.items()}, clip)
    assert found["table"].is_sparse
    close({name: grad.to_dense() for name, grad in found.items()}, expected)


def test_a_gradient_in_the_memory_of_a_parameter_is_read_before_it_is_written() -> None:
    params = {"w": torch.tensor([[[1.0, 2.0]]]), "table": torch.zeros(1, 3, 2)}
    table = coo(torch.tensor([[0], [1]]), params["w"][0], (1, 3, 2))
    grads = {"w": torch.ones(1, 1, 2), "table": table}
    found, _ = RowSGD().step(params, grads, RowSGD().begin(params), 1.0, in_place=True)
    assert found["table"].tolist() == [[[0.0, 0.0], [-1.0, -2.0], [0.0, 0.0]]]


@pytest.mark.parametrize("contiguous", [True, False])
def test_in_place_steps_write_into_what_is_given(contiguous: bool) -> None:
    table = torch.zeros(1, 2, 4).mT if not contiguous else torch.zeros(1, 4, 2)
    params = {"table": table}
    grads = {"table": coo(torch.tensor([[0], [1]]), torch.ones(1, 2), (1, 4, 2))}
    found, _ = RowSGD().step(params, grads, RowSGD().begin(params), 1.0, in_place=True)
    assert found["table"][0, :, 0].tolist() == [0.0, -1.0, 0.0, 0.0]
    assert (found["table"].data_ptr() == table.data_ptr()) == contiguous


class Tall(nn.Module):
    """A table of many rows, in float32."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 32, sparse=True, _weight=torch.zeros(rows, 32))
        self.head = nn.Linear(32, 1)

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        return (self.head(self.table(batch["ids"])).squeeze(1) - 1).square().mean()


def steps_of(n_rows: int, count: int) -> list[float]:
    """CPU seconds between the batches of a client's training."""
    module, seen = Tall(n_rows), []
    ids = KEY.fold("ids").integers(10_000, torch.arange(2048)) * (n_rows // 10_000)

    def batches(number: int, rows: Tensor) -> dict[str, Tensor]:
        seen.append(time.process_time())
        return {"ids": ids[None]}

    params = {name: value.detach()[None] for name, value in module.named_parameters()}
    loss, opt = MethodOf(module, "loss", True), RowAdam(weight_decay=0.1)
    fit(loss, params, batches, opt, 0.1, count, clip=0.01, statistics={})
    return [after - before for before, after in pairwise(seen)]


def test_a_step_takes_as_long_whatever_the_number_of_rows() -> None:
    """A dense one takes 40 times as long, as the table has 40 times the rows."""
    short, tall = (min(steps_of(rows, 12)) for rows in (10_000, 400_000))
    assert tall < 5 * short


class Largest(TorchDispatchMode):
    """Bytes of the largest memory that an operation makes, while it is `on`."""

    def __init__(self) -> None:
        super().__init__()
        self.on, self.bytes = False, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {memory(leaf).data_ptr() for leaf in flat((args, kwargs))}
        found = func(*args, **kwargs or {})
        for leaf in flat(found):
            if self.on and memory(leaf).data_ptr() not in known:
                self.bytes = max(self.bytes, memory(leaf).nbytes())
        return found


def flat(tree: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def memory(tensor: Tensor) -> Any:
    return (tensor._values() if tensor.is_sparse else tensor).untyped_storage()


def test_no_operation_of_a_step_makes_a_table() -> None:
    batch = 16
    module, watch = Tall(20_000), Largest()
    ids = torch.arange(batch) * 7

    def batches(number: int, rows: Tensor) -> dict[str, Tensor]:
        watch.on = number in (1, 2)  # from the second batch to the last; before, tables are copied
        return {"ids": ids[None]}

    params = {name: value.detach()[None] for name, value in module.named_parameters()}
    loss, opt = MethodOf(module, "loss", True), RowAdam(weight_decay=0.1)
    with watch:
        fit(loss, params, batches, opt, 0.1, 4, clip=0.01, statistics={})
    assert batch * 32 * 4 <= watch.bytes <= 4 * batch * 32 * 4


def test_modules_without_such_tables_are_trained_as_before() -> None:
    assert not trained_alone(built(Net))
