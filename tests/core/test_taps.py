"""Linear layers whose gradients stay products: the same as autograd's, however a layer is used."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from coterie.core.data.samples.samples import MASK, MiniBatches, SampleData
from coterie.core.local_training.fit import fit
from coterie.core.local_training.linear_layers import Outer, joined
from coterie.core.local_training.losses import ByAutograd, MethodOf, masked
from coterie.core.local_training.row_adam import RowAdam
from coterie.core.local_training.row_optimizer import RowSGD
from coterie.core.local_training.stacking import CACHE, StackWidth
from coterie.core.tensors.keys import Key

KEY = Key.from_seed(31)
C, STEPS, LR = 3, 4, 0.07


class Base(nn.Module):
    def loss(self, batch):
        return (self(batch["x"]).squeeze(-1) - batch["y"]).square().mean()


class Plain(Base):
    def __init__(self, bias=True):
        super().__init__()
        self.first, self.last = nn.Linear(4, 3, bias=bias), nn.Linear(3, 1, bias=bias)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


class NoBias(Plain):
    def __init__(self):
        super().__init__(bias=False)


class Twice(Base):
    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class Tied(Plain):
    """The first weight is also another layer's."""

    def __init__(self):
        super().__init__()
        self.again = nn.Linear(4, 3)
        self.again.weight = self.first.weight

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)) * self.again(x))


class Ridge(Plain):
    """The weight is used outside of its layer too."""

    def loss(self, batch):
        return super().loss(batch) + 0.3 * self.first.weight.square().sum()


class OnlyOutside(Plain):
    """A layer that is never called."""

    def __init__(self):
        super().__init__()
        self.idle = nn.Linear(4, 3, bias=False)

    def forward(self, x):
        return super().forward(x) * F.linear(x, self.idle.weight).mean(-1, keepdim=True)


class Words(Plain):
    """Three axes of samples."""

    def forward(self, x):
        words = torch.stack([x, x.roll(1, -1), x.square()], -2)
        return super().forward(words).mean(-2)


class OneRow(Plain):
    """A layer on a vector, the same for all samples."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)) * self.gate(torch.arange(4.0).to(x)))


class OnParameter(Plain):
    """A layer whose input is a parameter, which a step in place writes over."""

    def __init__(self):
        super().__init__()
        self.query, self.gate = nn.Parameter(torch.ones(2, 4)), nn.Linear(4, 3)

    def forward(self, x):
        return super().forward(x) * self.gate(self.query).mean()


class Teaching(Plain):
    """Calls a layer where nothing is to be noted too."""

    def loss(self, batch):
        with torch.no_grad():
            wanted = self.first(batch["x"]).mean(-1)
        return super().loss(batch | {"y": wanted})


class Idle(Plain):
    """A loss that depends on nothing."""

    def loss(self, batch):
        return (batch["x"].sum(-1) * batch["y"]).mean()


class Mapped(Plain):
    """A layer that the module vectorises itself, over another axis than the first."""

    def forward(self, x):
        return self.last(torch.tanh(torch.func.vmap(self.first, in_dims=1)(x.mT)))


class Normed(Plain):
    """A weight that is made of others."""

    def __init__(self):
        super().__init__()
        self.first = weight_norm(self.first)


class Derived(Plain):
    """A derivative by `torch.func` inside of the loss."""

    def loss(self, batch):
        slope = torch.func.grad(lambda x: self(x).sum())(batch["x"])
        return super().loss(batch) + slope.square().mean()


MODULES = [
    Plain,
    NoBias,
    Twice,
    Tied,
    Ridge,
    OnlyOutside,
    Words,
    OneRow,
    OnParameter,
    Teaching,
    Mapped,
    Normed,
]
each_module = pytest.mark.parametrize("make", [*MODULES, Derived])


def built(make) -> nn.Module:
    with KEY.torch_rng():
        return make().double()


def stacked_params(module: nn.Module, count: int = C) -> dict[str, Tensor]:
    noise = KEY.fold("noise").fold(torch.arange(count))
    return {
        name: value.detach() + 0.1 * noise.fold(name).normal(*value.shape, dtype=value.dtype)
        for name, value in module.named_parameters()
    }


def sample_data(lengths) -> SampleData:
    draws = KEY.fold("data")
    clients = [
        {
            "x": draws.fold("x", c).normal(n, 4, dtype=torch.float64),
            "y": draws.fold("y", c).normal(n, dtype=torch.float64),
        }
        for c, n in enumerate(lengths)
    ]
    return SampleData.from_clients(clients)


def torch_loop(make, params, batches, decay=0.0, rates=(LR,) * C) -> list[dict[str, Tensor]]:
    """Each client with an optimizer of torch's, on batches without padding."""
    ends = []
    for c in range(len(next(iter(params.values())))):
        module = built(make)
        module.load_state_dict({n: v[c] for n, v in params.items()}, strict=False)
        optimizer = torch.optim.SGD(module.parameters(), lr=rates[c], weight_decay=decay)
        for number in range(int(batches.steps[c])):
            batch = {n: v[0] for n, v in batches(number, torch.tensor([c])).items()}
            kept = batch.pop(MASK, torch.ones(len(batch["y"]), dtype=torch.bool))
            optimizer.zero_grad()
            module.loss({n: v[kept] for n, v in batch.items()}).backward()
            optimizer.step()
        ends.append({n: v.detach() for n, v in module.named_parameters()})
    return ends


def check(found, ends):
    for c, end in enumerate(ends):
        for name, value in end.items():
            torch.testing.assert_close(found[name][c], value, atol=1e-12, rtol=1e-12)


@each_module
@pytest.mark.parametrize(("decay", "width"), [(0.0, None), (0.1, 1), (0.1, 2)])
def test_training_is_that_of_torch(make, decay, width):
    params, data = stacked_params(built(make)), sample_data([6, 6, 6])
    batches = MiniBatches(data, 2, 3, KEY.fold(data.ids))
    opt = RowSGD(weight_decay=decay)
    loss = masked(MethodOf(built(make), "loss"))
    fitted = fit(loss, params, batches, opt, LR, batches.steps, width=width)
    check(fitted.params, torch_loop(make, params, batches, decay))


@pytest.mark.parametrize("make", [Plain, NoBias, Twice, Tied, Words])
@pytest.mark.parametrize("lengths", [[5, 2, 4], [3, 1, 1]])
def test_samples_that_do_not_count_add_nothing(make, lengths):
    params, data = stacked_params(built(make)), sample_data(lengths)
    batches = MiniBatches(data, 2, 3, KEY.fold(data.ids))
    assert any(MASK in batches(n, torch.arange(C)) for n in range(int(batches.steps.min())))
    loss = masked(MethodOf(built(make), "loss"))
    fitted = fit(loss, params, batches, RowSGD(), LR, batches.steps)
    check(fitted.params, torch_loop(make, params, batches))


@pytest.mark.parametrize("make", [Plain, Ridge])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_clients_may_have_rates_of_their_own_and_be_pulled(make, decay):
    params, data = stacked_params(built(make)), sample_data([6, 6, 6])
    batches = MiniBatches(data, 1, 3, KEY.fold(data.ids))
    rates, opt = torch.tensor([0.05, 0.1, 0.01], dtype=torch.float64), RowSGD(weight_decay=decay)
    loss = MethodOf(built(make), "loss")
    fitted = fit(loss, params, batches, opt, rates, batches.steps)
    check(fitted.params, torch_loop(make, params, batches, decay, rates.tolist()))

    def pull(now, near):
        return {name: 0.5 * (value - near[name]) for name, value in now.items()}

    near = {name: torch.full_like(value, 0.2) for name, value in params.items()}
    pulled = fit(loss, params, batches, opt, rates, batches.steps, pull=pull, context=near)

    def with_term(now, batch):
        far = sum((value - 0.2).square().sum() for value in now.values())
        return loss(now, batch) + 0.25 * far

    wanted = fit(with_term, params, batches, RowAdam(), 0.0, 0)  # nothing is trained
    assert wanted.params["first.weight"].equal(params["first.weight"])
    wanted = fit(with_term, params, batches, opt, rates, batches.steps)
    for name, value in pulled.params.items():
        torch.testing.assert_close(value, wanted.params[name], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("make", [make for make in [*MODULES, Derived] if make is not Normed])
@pytest.mark.parametrize("count", [1, 3])
def test_gradients_are_those_of_autograd(make, count):
    module = built(make)
    params, x = stacked_params(module, count), sample_data([5] * count).samples["x"]
    batch = {"x": x.view(count, 5, 4), "y": torch.ones(count, 5, dtype=torch.float64)}
    loss = MethodOf(module, "loss")
    found, values = ByAutograd(loss, factored=True)(params, {}, batch)
    plain, same = ByAutograd(loss, factored=False)(params, {}, batch)
    assert not any(isinstance(each, Outer) for each in plain.values())
    assert isinstance(found["last.weight"], Outer) or make is Derived
    assert values.equal(same)
    for name, grad in found.items():
        dense = grad.dense() if isinstance(grad, Outer) else grad
        torch.testing.assert_close(dense, plain[name], atol=1e-13, rtol=1e-12)


@pytest.mark.parametrize("count", [1, 3])
def test_a_loss_that_depends_on_nothing_moves_nothing(count):
    params = stacked_params(built(Idle), count)
    batch = {"x": torch.ones(count, 2, 4).double(), "y": torch.ones(count, 2).double()}
    grads, values = ByAutograd(MethodOf(built(Idle), "loss"), factored=True)(params, {}, batch)
    assert values.tolist() == [4.0] * count
    assert all(not grad.any() for grad in grads.values())


def test_what_is_not_itself_the_weight_is_not_taken_for_it():
    """A mixture of two models' weights, as FedALA trains: the layer's weight is made of others."""
    module = built(Plain)
    ends = [{n: v[0] for n, v in stacked_params(module, i).items()} for i in (1, 1)]
    share = {name: torch.full_like(value, 0.4)[None] for name, value in ends[0].items()}
    whole = MethodOf(module, "loss")

    def loss(share, batch):
        return whole({n: v * ends[0][n] for n, v in share.items()}, batch)

    batch = {"x": torch.ones(1, 2, 4).double(), "y": torch.zeros(1, 2).double()}
    grads, _ = ByAutograd(loss, factored=True)(share, {}, batch)
    assert not any(isinstance(each, Outer) for each in grads.values())
    leaf = {name: value[0].clone().requires_grad_() for name, value in share.items()}
    loss(leaf, {n: v[0] for n, v in batch.items()}).backward()
    for name, value in leaf.items():
        torch.testing.assert_close(grads[name][0], value.grad)


def test_a_module_in_use_is_not_changed():
    module = built(Plain)
    MethodOf(module, "loss")
    assert type(module.first) is nn.Linear


def test_terms_and_a_rest_add_up():
    draws = KEY.fold("terms").fold(torch.arange(2))
    parts = [
        (
            draws.fold("l", n).normal(n, 3, dtype=torch.float64),
            draws.fold("r", n).normal(n, 4, dtype=torch.float64),
        )
        for n in (2, 5)
    ]
    rest = draws.fold("rest").normal(3, 4, dtype=torch.float64)
    wanted = sum(torch.einsum("kno,kni->koi", left, right) for left, right in parts)
    torch.testing.assert_close(joined(parts, None).dense(), wanted)
    torch.testing.assert_close(joined(parts, None).with_rest(rest).dense(), wanted + rest)
    torch.testing.assert_close(joined(parts, rest).with_rest(rest).dense(), wanted + 2 * rest)


@pytest.mark.parametrize(
    ("module", "width"),
    [
        (nn.Linear(1023, 2048), 1),  # 8 MiB
        (nn.Linear(1023, 1024), 1),  # two of them are not worth a stack
        (nn.Linear(1023, 512), 4),
        (nn.Linear(1, 1), CACHE // 8),
        (nn.Sequential(nn.Linear(1, 1), nn.Conv1d(1, 1, 1)), 1),
        (nn.Identity(), CACHE),
    ],
)
def test_stacks_are_as_wide_as_the_cache_allows(module, width):
    assert StackWidth.of(module).choose(10**6) == width
