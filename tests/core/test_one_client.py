"""A single client is trained in place: the same numbers, and nothing given is written."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from coterie.core.local_training import row_adam, row_optimizer
from coterie.core.local_training.fit import fit
from coterie.core.local_training.losses import MethodOf
from coterie.core.local_training.row_adam import RowAdam
from coterie.core.local_training.row_optimizer import Params, RowOptimizer, RowSGD
from coterie.core.local_training.stacking import concatenate
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

KEY = Key.from_seed(5)
LR, STEPS = 0.02, 12
ALONE = torch.tensor([0])
ADAM = {"betas": (0.8, 0.95), "eps": 1e-6}
each_optimizer = pytest.mark.parametrize("kind", [RowSGD, RowAdam])
each_clip = pytest.mark.parametrize("clip", [None, 0.05], ids=["free", "clipped"])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, 5)
        self.out = nn.Linear(5, 1)
        self.scale = nn.Parameter(torch.tensor(0.7))

    def loss(self, batch):
        score = self.scale * self.out(torch.tanh(self.hidden(batch["x"])))[:, 0]
        return (score - batch["y"]).square().mean()


def net(dtype=torch.float64) -> Net:
    with KEY.torch_rng():
        return Net().to(dtype)


def params_of(module: nn.Module, n_clients: int = 1) -> Params:
    noise = KEY.fold("noise").fold(torch.arange(n_clients))
    return {
        name: value.detach() + 0.1 * noise.fold(name).normal(*value.shape, dtype=value.dtype)
        for name, value in module.named_parameters()
    }


def batch_of(number: int, rows: Tensor, dtype=torch.float64) -> dict[str, Tensor]:
    key = KEY.fold("batch", number).fold(rows)
    x = key.fold("x").normal(8, 6, dtype=torch.float64)
    x[..., 3:] = 0.0  # half of the first layer's gradient is exactly zero
    return {"x": x.to(dtype), "y": key.fold("y").normal(8, dtype=torch.float64).to(dtype)}


def of_row(row: int):
    """Batches of one client of a stack, alone."""
    return lambda number, rows: batch_of(number, rows + row)


def functional(
    params: Params, opt: RowOptimizer, numbers: range, *, clip=None, batches=batch_of
) -> tuple[Params, row_optimizer.RowState]:
    """One client's training by steps that write nothing."""
    state = opt.begin(params)
    for number in numbers:
        free = {name: value[0].requires_grad_() for name, value in tree.clone(params).items()}
        batch = tree.as_one(batches(number, ALONE))
        grads = torch.autograd.grad(MethodOf(net(), "loss")(free, batch), list(free.values()))
        named = dict(zip(params, (grad[None] for grad in grads), strict=True))
        params, state = opt.step(params, named, state, LR, clip=clip)
    return params, state


def assert_same(found, wanted, tolerance: float = 1e-12) -> None:
    for (path, mine), (_, theirs) in zip(tree.tensors(found), tree.tensors(wanted), strict=True):
        torch.testing.assert_close(
            mine,
            theirs,
            atol=tolerance,
            rtol=tolerance,
            equal_nan=True,
            msg=lambda m, p=path: p + m,
        )


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=["f32", "f64"]
)
@pytest.mark.parametrize("decay", [0.0, 0.05])
@each_clip
@each_optimizer
def test_equals_a_loop_with_an_optimizer_of_torch(kind, clip, decay, dtype, tolerance):
    module, more = net(dtype), ADAM if kind is RowAdam else {}
    params = params_of(module)
    fitted = fit(
        MethodOf(module, "loss"),
        params,
        lambda number, rows: batch_of(number, rows, dtype),
        kind(weight_decay=decay, **more),
        LR,
        STEPS,
        clip=clip,
    )
    module.load_state_dict({name: value[0] for name, value in params.items()})
    theirs = torch.optim.Adam if kind is RowAdam else torch.optim.SGD
    optimizer = theirs(module.parameters(), lr=LR, weight_decay=decay, **more)
    losses = []
    for number in range(STEPS):
        optimizer.zero_grad()
        loss = module.loss(tree.as_one(batch_of(number, ALONE, dtype)))
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        losses.append(loss.detach())
    trained = {name: value.detach()[None] for name, value in module.named_parameters()}
    assert_same(fitted.params, trained, tolerance)
    torch.testing.assert_close(fitted.loss[0], torch.stack(losses).mean())
    assert fitted.state.steps.tolist() == [STEPS]


@each_clip
def test_plain_descent_gives_the_bits_of_steps_that_write_nothing(clip):
    """But for the products of linear layers, which are added to the weights as they are made."""
    params, opt = params_of(net()), RowSGD(weight_decay=0.1)
    fitted = fit(MethodOf(net(), "loss"), params, batch_of, opt, LR, STEPS, clip=clip)
    written = functional(params, opt, range(STEPS), clip=clip)[0]
    assert_same(fitted.params, written, 1e-15 if clip is None else 0.0)


@pytest.mark.parametrize("each", [False, True], ids=["one rate", "rates"])
@pytest.mark.parametrize("steps", [[7], [4, 4], [2, 0, 5], [0]])
def test_torchs_kernel_serves_one_client_and_stacks_of_one_rate(steps, each, monkeypatch):
    calls, kernel = [], row_adam.adam
    monkeypatch.setattr(row_adam, "adam", lambda *a, **k: (calls.append(1), kernel(*a, **k)))
    params = params_of(net(), len(steps))
    lr = torch.full((len(steps),), LR, dtype=torch.float64) if each else LR
    fitted = fit(MethodOf(net(), "loss"), params, batch_of, RowAdam(), lr, torch.tensor(steps))
    longest, others = sorted([0, *steps])[:-3:-1]
    assert len(calls) == (longest - others if each else longest)
    for row, count in enumerate(steps):
        mine = tree.take(params, torch.tensor([row]))
        end = functional(mine, RowAdam(), range(count), batches=of_row(row))
        found = tree.take((fitted.params, fitted.state), torch.tensor([row]))
        assert_same(found, end)


def test_a_gradient_of_zero_moves_nothing():
    params = params_of(net())
    fitted = fit(MethodOf(net(), "loss"), params, batch_of, RowAdam(), LR, STEPS, clip=0.05)
    moved = fitted.params["hidden.weight"] != params["hidden.weight"]
    assert moved[..., :3].all()
    assert not moved[..., 3:].any()


@pytest.mark.parametrize("opt", [RowAdam(), RowAdam(weight_decay=0.1)], ids=["free", "decay"])
def test_the_state_goes_on_stacked_then_alone_then_stacked(opt):
    loss, params = MethodOf(net(), "loss"), params_of(net(), 3)
    first = fit(loss, params, batch_of, opt, LR, 2)
    parts = []
    for row in range(3):
        mine = tree.take(first, torch.tensor([row]))

        def later(number, rows, row=row):
            return batch_of(number + 2, rows + row)

        parts.append(fit(loss, mine.params, later, opt, LR, 3, state=mine.state))
    middle = concatenate(parts)
    assert middle.state.steps.tolist() == [5, 5, 5]
    last = fit(
        loss,
        middle.params,
        lambda number, rows: batch_of(number + 5, rows),
        opt,
        LR,
        2,
        state=middle.state,
    )
    for row in range(3):
        alone = tree.take(params, torch.tensor([row]))
        end = functional(alone, opt, range(7), batches=of_row(row))
        assert_same(tree.take((last.params, last.state), torch.tensor([row])), end)


@pytest.mark.parametrize("shared", [False, True], ids=["own", "expanded"])
@pytest.mark.parametrize("steps", [[0], [5], [2, 5]])
@each_clip
@each_optimizer
def test_nothing_given_is_written_or_returned(kind, clip, steps, shared):
    count, opt, module = len(steps), kind(weight_decay=0.1), net()
    params = params_of(module, count)
    if shared:
        params = {n: v.detach().expand(count, *v.shape) for n, v in module.named_parameters()}
    fixed = {"scale": params.pop("scale")}
    context = tree.clone(params)
    state = opt.begin(params)
    seen = [batch_of(number, torch.arange(count)) for number in range(5)]
    given = [tree.clone(params) for _ in range(5)]  # what the slope hands out

    def slope(params, batch):
        at = next(
            n for n, one in enumerate(seen) if torch.equal(one["x"][: len(batch["x"])], batch["x"])
        )
        return {n: v[: len(batch["x"])] for n, v in given[at].items()}, batch["y"].sum(1)

    everything = (params, fixed, context, state, seen, given)
    before = tree.clone(everything)
    fitted = fit(
        MethodOf(module, "loss"),
        params,
        lambda number, rows: {n: v[: len(rows)] for n, v in seen[number].items()},
        opt,
        torch.full((count,), LR).double(),
        torch.tensor(sorted(steps, reverse=True)),
        state=state,
        clip=clip,
        slope=slope,
        pull=(lambda params, context: context) if clip is None else None,
        context=context,
        fixed=fixed,
    )
    assert_same(everything, before, 0.0)
    for _, leaf in tree.tensors((fitted.params, fitted.state)):
        leaf.fill_(9)
    assert_same(everything, before, 0.0)


@each_clip
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_ruins_what_it_ruined_before(clip, bad):
    def broken(number, rows):
        batch = batch_of(number, rows)
        if number == 2:
            batch["y"][:, 0] = bad
        return batch

    params, opt = params_of(net()), RowAdam()
    fitted = fit(MethodOf(net(), "loss"), params, broken, opt, LR, 3, clip=clip)
    wanted, _ = functional(params, opt, range(3), clip=clip, batches=broken)
    assert any(value.isnan().any() for value in wanted.values())
    assert_same(fitted.params, wanted)


@each_optimizer
def test_a_gradient_may_be_another_parameter(kind):
    """Of a * b the gradients are b and a, which a step in place must not have changed before."""
    params = {"a": torch.tensor([[2.0]]).double(), "b": torch.tensor([[3.0]]).double()}

    def slope(params, batch):
        return {"a": params["b"], "b": params["a"]}, (params["a"] * params["b"])[:, 0]

    def nothing(number, rows):
        return {"x": rows[:, None]}

    opt = kind()
    fitted = fit(lambda params, batch: params["a"], params, nothing, opt, LR, 4, slope=slope)
    state = opt.begin(params)
    for _ in range(4):
        params, state = opt.step(params, slope(params, {})[0], state, LR)
    assert_same(fitted.params, params)


@each_clip
@each_optimizer
def test_a_gradient_may_lie_in_memory_as_it_likes(kind, clip):
    params = {"w": KEY.fold(ALONE).normal(4, 3, dtype=torch.float64)}
    target = KEY.fold("target").normal(3, 4, dtype=torch.float64)

    def transposed(params, batch):
        gap = params["w"].mT.contiguous() - target
        return {"w": gap.mT}, gap.square().sum((1, 2)) / 2

    def loss(params, batch):
        return (params["w"].mT - target).square().sum() / 2

    found = [
        fit(loss, params, batch_of, kind(), LR, 6, clip=clip, slope=slope).params
        for slope in (transposed, None)
    ]
    assert_same(found[0], found[1])


def test_an_optimizer_may_keep_the_gradient_itself():
    @dataclass(frozen=True, kw_only=True)
    class Difference(RowOptimizer):
        @property
        def moments(self):
            return ("last",)

        def _direction(self, grad, moments, steps):
            return 2 * grad - moments["last"], {"last": grad}

    params, opt = params_of(net()), Difference()
    fitted = fit(MethodOf(net(), "loss"), params, batch_of, opt, LR, STEPS, clip=0.05)
    assert_same((fitted.params, fitted.state), functional(params, opt, range(STEPS), clip=0.05))


@each_clip
@each_optimizer
def test_pull_context_and_fixed_are_those_of_a_stack(kind, clip):
    params, module = params_of(net(), 3), net()
    fixed = {"scale": params.pop("scale")}
    context = {name: torch.full_like(value, 0.3) for name, value in params.items()}

    def pull(params, context):
        return {name: 0.5 * (value - context[name]) for name, value in params.items()}

    def trained(rows: Tensor):
        mine, theirs, kept = (tree.take(one, rows) for one in (params, context, fixed))
        how = {"clip": clip, "pull": pull, "context": theirs, "fixed": kept}
        batches = lambda number, some: batch_of(number, rows[some])  # noqa: E731
        return fit(MethodOf(module, "loss"), mine, batches, kind(), LR, STEPS, **how)

    together = trained(torch.arange(3))
    for row in torch.arange(3).split(1):
        assert_same(trained(row), tree.take(together, row))


@each_optimizer
@pytest.mark.parametrize("lies", ["rows", "columns"])
def test_a_step_in_place_is_the_step(kind, lies):
    """Of rows with step counts of their own, and of parameters that lie column by column."""
    opt, rows = kind(weight_decay=0.1), 2 if lies == "rows" else 1
    draws = KEY.fold(torch.arange(rows))
    params = {"w": draws.fold("w").normal(4, 3), "b": draws.fold("b").normal(4)}
    if lies == "columns":
        params["w"] = params["w"].mT.contiguous().mT
    state = row_optimizer.RowState(torch.arange(rows) * 3, opt.begin(params).moments)
    grads = {name: draws.fold("g", name).normal(*v.shape[1:]) for name, v in params.items()}
    lr = torch.tensor([0.1, 0.2])[:rows]
    wanted = opt.step(params, grads, state, lr)
    found = opt.step(*tree.clone((params, grads, state)), lr, in_place=True)
    assert_same(found, wanted, 1e-6)


@pytest.mark.parametrize("what", ["lr", "clip"])
def test_one_number_for_all_and_one_a_client_give_the_same(what):
    params = params_of(net(torch.float32), 3)
    how = {"lr": 0.3, "clip": 0.07}
    each = how | {what: torch.full((3,), how[what])}
    found = []
    for rates in (how, each):
        batches = lambda number, rows: batch_of(number, rows, torch.float32)  # noqa: E731
        loss = MethodOf(net(torch.float32), "loss")
        given = {"clip": rates["clip"]}
        found.append(fit(loss, params, batches, RowSGD(), rates["lr"], STEPS, **given).params)
    assert_same(*found, 2e-6)
