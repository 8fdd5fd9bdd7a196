"""Training of the Assisted AutoEncoder against plain torch with autograd and a dense mask."""

import math

import pytest
import torch
import torch.nn.functional as F
from tests.assisted.plain_aae import KEY, Task, plain_training

from benchmarks.assisted.loop import PlainAAE
from coterie.assisted.aae.batches import Draws, RowBatches
from coterie.assisted.aae.cells import Inputs, Pattern
from coterie.assisted.aae.network import AAE, value_and_gradients
from coterie.assisted.aae.training import Plan, dense_loss, train
from coterie.assisted.objective import Logistic, Squared
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

PLAN = Plan(epochs=4, batch_rows=6, lr=1e-2)
PLANS = {
    "as it is": PLAN,
    "no clipping": Plan(epochs=4, batch_rows=6, clip=None),
    "strong clipping": Plan(epochs=4, batch_rows=6, lr=1e-2, clip=0.05),
    "masking": Plan(epochs=4, batch_rows=6, lr=1e-2, input_masking=0.4),
    "own targets left out": Plan(epochs=4, batch_rows=6, lr=1e-2, leave_out_visible=True),
    "both": Plan(epochs=4, batch_rows=6, input_masking=0.4, leave_out_visible=True),
}
SQUARED = Squared()
SIDES = {"no sides": (), "two sides": ("profile", "attributes")}


def network_of(task, dropout=0.5):
    widths = {name: features.shape[1] for name, features in task.sides.items()}
    columns = task.inputs.n_columns, task.pattern.n_columns
    return AAE(*columns, widths, hidden=9, code=5, dropout=dropout)


def batches_of(task, network, plan):
    draws = Draws(network.code, network.dropout, plan.input_masking, plan.leave_out_visible)
    return RowBatches(task.inputs, task.pattern, task.values, plan.batch_rows, draws, KEY)


def both(task, network, plan, loss=SQUARED, plain_loss=None):
    """Largest difference of parameters, and the mean losses of the two ways."""
    batches = batches_of(task, network, plan)
    steps = plan.epochs * batches.per_epoch
    module = PlainAAE(network).to(task.values.dtype)
    module.load(network.start(KEY.fold("start"), task.values.dtype))
    losses = plain_training(module, task, batches, steps, plan, plain_loss)
    trained = train(network, task.inputs, task.pattern, task.values, plan, KEY, loss=loss)
    plain = module.params()
    assert trained.params.keys() == plain.keys()
    far = max(float((trained.params[n] - plain[n]).abs().max()) for n in plain)
    return far, float(trained.loss), sum(losses) / len(losses)


@pytest.mark.parametrize("sides", SIDES.values(), ids=SIDES)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_training_equals_plain_torch(plan, sides):
    task = Task(sides=sides)
    far, ours, plain = both(task, network_of(task), plan)
    assert far < 1e-12
    assert ours == pytest.approx(plain, rel=1e-12)


def test_training_equals_plain_torch_in_float32():
    task = Task(sides=("profile",), dtype=torch.float32)
    far, ours, plain = both(task, network_of(task), PLAN)
    assert far < 1e-5
    assert ours == pytest.approx(plain, rel=1e-5)


def test_another_loss():
    task = Task()
    task.table = (task.table > 0).double()
    task.values = task.table[task.mask]
    entropy = F.binary_cross_entropy_with_logits
    far, ours, plain = both(task, network_of(task), PLAN, Logistic(), entropy)
    assert far < 1e-12
    assert ours == pytest.approx(plain, rel=1e-12)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_gradients_equal_autograds(plan):
    task = Task(sides=("profile",))
    network = network_of(task)
    params = network.start(KEY, torch.float64)
    params |= {n: torch.randn_like(p) for n, p in params.items() if p.dim() == 1}
    batch = batches_of(task, network, plan)(2)
    value, grads = value_and_gradients(params, batch, SQUARED)
    free = {name: value.clone().requires_grad_() for name, value in params.items()}
    expected = dense_loss(free, batch, SQUARED)
    expected.backward()
    assert value == pytest.approx(float(expected.detach()), rel=1e-12)
    assert grads.keys() == free.keys()
    for name, grad in grads.items():
        assert torch.allclose(grad, free[name].grad, rtol=0, atol=1e-13), name


def test_going_on_gives_the_same_bits():
    task = Task()
    network, given = network_of(task), (task.inputs, task.pattern, task.values)
    whole = train(network, *given, Plan(epochs=5, batch_rows=6), KEY)
    first = train(network, *given, Plan(epochs=2, batch_rows=6), KEY)
    later = train(network, *given, Plan(epochs=3, batch_rows=6), KEY, start=first)
    assert later.epochs == whole.epochs == 5
    assert all(torch.equal(later.params[n], whole.params[n]) for n in whole.params)
    assert not torch.equal(first.params["decoder.wide.bias"], later.params["decoder.wide.bias"])


def test_no_epochs_leave_the_start():
    task = Task()
    network = network_of(task)
    plan = Plan(epochs=0)
    trained = train(network, task.inputs, task.pattern, task.values, plan, KEY)
    start = network.start(KEY.fold("start"), torch.float64)
    assert all(torch.equal(trained.params[name], start[name]) for name in start)
    assert float(trained.loss) == 0.0


def test_all_rows_with_a_target_are_seen_once_an_epoch():
    task = Task(rows=40)
    batches = batches_of(task, network_of(task), PLAN)
    expected = task.mask.any(1).nonzero().flatten()
    orders = [
        torch.cat([batches.rows(e * batches.per_epoch + b) for b in range(batches.per_epoch)])
        for e in range(3)
    ]
    for order in orders:
        assert torch.equal(order.sort().values, expected)
        assert not torch.equal(order, expected)
    assert not torch.equal(orders[0], orders[1])


def test_a_batch_is_the_same_whenever_it_is_asked_for():
    task = Task()
    network = network_of(task)
    plan = PLANS["both"]
    batches, others = batches_of(task, network, plan), batches_of(task, network, plan)
    others(7)
    for number in (0, 5):
        one, other = batches(number), others(number)
        assert torch.equal(one.keep, other.keep)
        assert torch.equal(one.ratings, other.ratings)
        assert torch.equal(one.values, other.values)


def test_draws_have_their_rates():
    cells = Ragged.from_lists([list(range(50))] * 40)
    inputs = Inputs(cells, torch.ones(2000), 50)
    draws = Draws(code=100, dropout=0.3, input_masking=0.2)
    batches = RowBatches(inputs, inputs.pattern, inputs.values, 40, draws, KEY)
    batch = batches(0)
    assert float((batch.keep == 0).float().mean()) == pytest.approx(0.3, abs=0.03)
    assert float(batch.keep.max()) == pytest.approx(1 / 0.7)
    assert float((batch.ratings == 0).float().mean()) == pytest.approx(0.2, abs=0.04)
    assert not torch.equal(batch.keep, batches(1).keep)


def test_targets_that_all_show_give_no_gradient():
    cells = Ragged.from_lists([[0, 1], [1]])
    inputs = Inputs(cells, torch.ones(3), 2, places=torch.arange(2))
    network = AAE(2, 2, hidden=3, code=2)
    draws = Draws(2, 0.5, leave_out_visible=True)
    batch = RowBatches(inputs, inputs.pattern, inputs.values, 2, draws, KEY)(0)
    value, grads = value_and_gradients(network.start(KEY), batch, SQUARED)
    assert float(value) == 0.0
    assert all(float(grad.abs().max()) == 0.0 for grad in grads.values())
    plan = Plan(epochs=2, leave_out_visible=True)
    trained = train(network, inputs, inputs.pattern, inputs.values, plan, KEY)
    assert all(bool(value.isfinite().all()) for value in trained.params.values())


def test_no_target_at_all_trains_nothing():
    empty = Ragged.from_lists([[], []])
    inputs, nothing = Inputs(Ragged.from_lists([[0], [1]]), torch.ones(2), 2), torch.zeros(0)
    trained = train(AAE(2, 3), inputs, Pattern(empty, 3), nothing, Plan(), KEY)
    assert float(trained.loss) == 0.0


def test_first_parameters_are_xaviers():
    network = AAE(30, 50, {"profile": 4})
    params = network.start(Key.from_seed(1))
    assert sum(value.numel() for value in params.values()) == network.n_parameters
    for name, value in params.items():
        if name.endswith("bias"):
            assert not value.any()
        else:
            bound = math.sqrt(6 / sum(value.shape))
            assert 0.95 * bound < float(value.abs().max()) <= bound
            assert float(value.std()) == pytest.approx(bound / math.sqrt(3), rel=0.05)
            assert abs(float(value.mean())) < 0.05 * bound


def test_what_does_not_fit_is_refused():
    task = Task()
    network, plan = network_of(task), Plan(epochs=1)
    inputs, pattern, values = task.inputs, task.pattern, task.values
    wrong = [
        (AAE(8, 19), inputs, pattern, values, plan),
        (network, inputs, pattern, values[1:], plan),
        (network, inputs, pattern, values.float(), plan),
        (AAE(7, 19, {"profile": 3}), inputs, pattern, values, plan),
        (network, inputs, Pattern(Ragged.from_lists([[0]]), 19), values[:1], plan),
    ]
    for given in wrong:
        with pytest.raises(ValueError):
            train(*given, KEY)
    bare = Inputs(inputs.columns, inputs.values, inputs.n_columns)
    with pytest.raises(ValueError, match="places"):
        train(network, bare, pattern, values, Plan(leave_out_visible=True), KEY)
