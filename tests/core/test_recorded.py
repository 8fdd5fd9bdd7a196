"""Steps that are run again from a recording: the same bits as the step itself, or no recording."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from coterie.core.errors import UserError
from coterie.core.local_training import recorded as recording
from coterie.core.local_training.linear_layers import Outer
from coterie.core.local_training.losses import ByAutograd, MethodOf, masked
from coterie.core.local_training.recorded import Recorded, record, recorded
from coterie.core.tensors.keys import Key

KEY = Key.from_seed(8)


class Net(nn.Module):
    """Layers, and the cross-entropy of their classes."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def loss(self, batch):
        return F.cross_entropy(self.layers(batch["x"]), batch["y"])


class Attention(nn.Module):
    """Looks rows up, attends over them, uses one layer twice."""

    def __init__(self):
        super().__init__()
        self.table, self.both = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.norm, self.last = nn.LayerNorm(4), nn.Linear(4, 3)

    def loss(self, batch):
        rows = self.table(batch["y"][:, None].expand(-1, 5) + torch.arange(3, 8) % 4)
        query, key = self.both(rows), self.both(rows.tanh())
        mixed = (query @ key.mT / 2).softmax(-1) @ rows
        return F.cross_entropy(self.last(self.norm(mixed).mean(1)), batch["y"])


MODULES = {
    "linear": lambda: Net(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
    "writes in place": lambda: Net(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
    "no bias": lambda: Net(nn.Linear(6, 5, bias=False), nn.LeakyReLU(0.1, True), nn.Linear(5, 3)),
    "convolution": lambda: Net(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(),
        nn.Linear(16, 3),
    ),
    "attention": Attention,
}  # fmt: skip


def stack(make, n_clients):
    with KEY.torch_rng():
        modules = [make() for _ in range(n_clients)]
    named = zip(*(module.named_parameters() for module in modules), strict=True)
    params = {one[0][0]: torch.stack([value.detach() for _, value in one]) for one in named}
    return modules[0], params


def batch(number, n_clients, size=4):
    key = KEY.fold(number).fold(torch.arange(n_clients))
    labels = (3 * key.fold("y").uniform(size)).long()
    return {"x": key.fold("x").normal(size, 6, dtype=torch.float32), "y": labels}


def parts(found):
    grads, values = found
    factors = {n: (g.left, g.right) if isinstance(g, Outer) else (g,) for n, g in grads.items()}
    return [values, *(part for name in grads for part in factors[name])]


@pytest.mark.parametrize("factored", [True, False])
@pytest.mark.parametrize("n_clients", [1, 3])
@pytest.mark.parametrize("name", MODULES)
def test_a_recorded_step_has_the_bits_of_the_step(name, n_clients, factored, monkeypatch):
    module, params = stack(MODULES[name], n_clients)
    gradient = ByAutograd(masked(MethodOf(module, "loss")), factored)
    found = [parts(gradient(params, {}, batch(number, n_clients))) for number in range(12)]
    assert gradient._recorded.graphs == 1
    monkeypatch.setattr(recording, "_OFTEN", 10**9)
    plain = ByAutograd(masked(MethodOf(module, "loss")), factored)
    for number, one in enumerate(found):
        other = parts(plain(params, {}, batch(number, n_clients)))
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert plain._recorded.graphs == 0


def test_a_recorded_step_is_not_the_step_itself():
    calls = []

    def double(given):
        calls.append(1)
        return given["x"] * 2

    kept = Recorded("double")
    found = [kept(double, {"x": torch.tensor([float(n)])}).item() for n in range(100)]
    assert found == [2.0 * n for n in range(100)]
    assert len(calls) == recording._OFTEN + 2  # to record it, and to compare once more


def test_every_form_has_a_recording_of_its_own():
    kept = Recorded("sum")

    def total(given):
        return sum(value.sum() for value in given.values())

    square = torch.arange(6.0).view(2, 3)
    forms = [
        {"x": square},
        {"x": square.T},
        {"x": square.reshape(3, 2)},
        {"x": square.double()},
        {"y": square},
        {"x": square, "y": square},
    ]
    for _ in range(20):
        assert [kept(total, form).item() for form in forms] == [15.0] * 5 + [30.0]
    assert kept.graphs == len(forms)


CONSTANT = torch.ones(3)


def refused(given):
    return given["x"] * CONSTANT


def draws(given):
    return given["x"] + 0 * torch.rand(3)


def writes(given):
    return given["x"].mul_(1.0) + 1


def writes_through_a_view(given):
    given["x"][:2].add_(0.0)
    return given["x"] + 1


def branches(given):
    return given["x"] if given["x"].sum() > 0 else -given["x"]


def branches_by_numpy(given):
    return given["x"] if given["x"].numpy().sum() > 0 else -given["x"]


def branches_by_a_list(given):
    return given["x"] if sum(given["x"].tolist()) > 0 else -given["x"]


def selects(given):
    chosen = given["x"][given["x"] > 0]
    return chosen.sum() / (len(chosen) + 1)


def selects_by_places(given):
    chosen = given["x"].nonzero()
    return given["x"].sum() / len(chosen)


def refuses_to_be_watched(given):
    if _get_current_dispatch_mode() is not None:
        raise NotImplementedError
    return given["x"] + 1


NEVER = [
    refused, draws, writes, writes_through_a_view, branches, branches_by_numpy, branches_by_a_list,
    selects, selects_by_places, refuses_to_be_watched,
]  # fmt: skip


@pytest.mark.parametrize("function", NEVER)
def test_what_depends_on_more_than_the_tensors_given_is_never_recorded(function):
    kept = Recorded("it")
    for number in range(20):
        x = KEY.fold(number).normal(3)
        expected = function({"x": x.clone()})
        assert torch.equal(kept(function, {"x": x}), expected)
    assert kept.graphs == 0


def test_what_was_made_on_the_way_may_be_written_into_and_rows_be_looked_up():
    def fine(given):
        made = given["x"] * 2
        made.add_(given["x"])
        torch.mul(made, given["x"], out=made)
        return made[given["rows"]]

    kept = Recorded("it")
    for number in range(20):
        given = {"x": KEY.fold(number).normal(3), "rows": torch.tensor([2, 0, number % 3])}
        assert torch.equal(kept(fine, given), fine(given))
    assert kept.graphs == 1


def test_a_function_without_an_identity_is_recorded_for_one_use():
    class Same:
        __hash__ = None

        def __call__(self, params, batch):
            return batch["x"]

    assert recorded(Same(), 1).graphs == 0
    assert recorded(Same(), 1).name == "Same"


def test_a_constant_that_nothing_needs_is_no_obstacle():
    def add(given):
        CONSTANT.clone()
        return given["x"] + 1

    kept = Recorded("add")
    assert [kept(add, {"x": torch.tensor(1.0)}).item() for _ in range(10)] == [2.0] * 10
    assert kept.graphs == 1


def test_a_number_that_changes_at_every_call_is_seen_at_once():
    count = iter(range(1000))
    kept = Recorded("it")

    def counts(given):
        return given["x"] + next(count)

    found = [kept(counts, {"x": torch.zeros(1)}).item() for _ in range(50)]
    assert found == sorted(found)
    assert kept.graphs == 0


def test_a_number_that_changes_right_after_the_recording_is_seen_at_once():
    calls = iter(range(1000))
    kept = Recorded("it")

    def late(given):
        return given["x"] + (next(calls) > recording._OFTEN)

    found = [kept(late, {"x": torch.zeros(1)}).item() for _ in range(50)]
    assert found == [0.0] * recording._OFTEN + [1.0] * (50 - recording._OFTEN)


def test_a_number_that_changes_later_is_an_error():
    scale = [2.0]
    kept = Recorded("the loss")

    def scaled(given):
        return given["x"] * scale[0]

    for _ in range(20):
        kept(scaled, {"x": torch.ones(1)})
    scale[0] = 3.0

    def again():
        for _ in range(recording._AGAIN):
            kept(scaled, {"x": torch.ones(1)})

    with pytest.raises(UserError, match="the loss reads something that has changed"):
        again()
    assert kept(scaled, {"x": torch.ones(1)}).item() == 3.0


def test_equal_operations_are_run_once_unless_something_is_written_into():
    x = {"x": torch.arange(3.0)}
    twice = record(lambda: (x["x"] + 1) * (x["x"] + 1), [x["x"]])
    names = [str(node.target) for node in twice.__self__.graph.nodes]
    assert sum("add" in name for name in names) == 1

    def apart():
        one, other = x["x"] + 1, x["x"] + 1
        return one.mul_(2), other

    found = record(apart, [x["x"]])(torch.zeros(3))
    assert [part.tolist() for part in found] == [[2.0] * 3, [1.0] * 3]


def test_a_product_with_1_that_changes_the_type_is_kept():
    x = torch.arange(3)
    times = torch.ops.aten.mul.Scalar
    assert record(lambda: times(x, 1.0), [x])(x).dtype == torch.float32
    assert record(lambda: times(x, 1), [x])(x) is x


def test_nan_is_the_same_as_nan():
    kept = Recorded("it")
    for _ in range(20):
        assert kept(lambda given: given["x"].log(), {"x": -torch.ones(2)}).isnan().all()
    assert kept.graphs == 1


def test_what_is_recorded_of_a_loss_goes_with_it_and_holds_no_tensors():
    module, params = stack(MODULES["linear"], 2)
    loss = masked(MethodOf(module, "loss"))
    gradient, samples = ByAutograd(loss, True), batch(0, 2)
    for _ in range(10):
        gradient(params, {}, samples)
    assert ByAutograd(loss, True)._recorded is gradient._recorded
    assert ByAutograd(loss, False)._recorded is not gradient._recorded
    held = [weakref.ref(one) for one in (loss, gradient._recorded, samples["x"])]
    del loss, gradient, samples
    gc.collect()
    assert [one() for one in held] == [None] * 3


def test_a_method_is_another_function_each_time():
    class Thing:
        def loss(self, given):
            return given["x"]

    thing = Thing()
    before = len(recording._OF_FUNCTIONS)
    assert recorded(thing.loss, 1).graphs == 0
    gc.collect()
    assert len(recording._OF_FUNCTIONS) == before


def test_threads_record_once_and_get_the_same():
    module, params = stack(MODULES["linear"], 2)
    gradient = ByAutograd(masked(MethodOf(module, "loss")), True)

    def run(number):
        return parts(gradient(params, {}, batch(number, 2)))

    with ThreadPoolExecutor(4) as pool, torch.no_grad():
        found = list(pool.map(run, [n % 10 for n in range(200)]))
    assert gradient._recorded.graphs == 1
    for number, one in enumerate(found):
        assert all(torch.equal(a, b) for a, b in zip(one, found[number % 10], strict=True))


def test_more_forms_than_are_kept_are_run_as_they_are(monkeypatch):
    monkeypatch.setattr(recording, "_MOST", 2)
    kept = Recorded("it")
    for _ in range(10):
        for size in range(1, 5):
            assert kept(lambda given: given["x"] + 1, {"x": torch.zeros(size)}).sum() == size
    assert kept.graphs == 2
