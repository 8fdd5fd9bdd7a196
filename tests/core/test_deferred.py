"""Weights whose steps are added up late: the same as torch's, and never read before they are."""

import pytest
import torch
from torch import Tensor, nn

from coterie.core.data.samples.samples import MiniBatches, SampleData
from coterie.core.local_training import fit as fitting
from coterie.core.local_training.fit import fit
from coterie.core.local_training.linear_layers import Deferred, Outer, room
from coterie.core.local_training.losses import MethodOf, masked
from coterie.core.local_training.row_optimizer import RowSGD
from coterie.core.local_training.stacking import StackWidth
from coterie.core.tensors.keys import Key

KEY = Key.from_seed(37)
C, LR = 4, 0.05
NAMES = ("first.weight", "last.weight")


class Plain(nn.Module):
    """Room for the products of 6 samples in the first layer, of 7 in the second."""

    def __init__(self, bias=True):
        super().__init__()
        self.first, self.last = nn.Linear(24, 28, bias=bias), nn.Linear(28, 30, bias=bias)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))

    def loss(self, batch):
        return (self(batch["x"]).mean(-1) - batch["y"]).square().mean()


class NoBias(Plain):
    def __init__(self):
        super().__init__(bias=False)


class Twice(Plain):
    def forward(self, x):
        return super().forward(x) + super().forward(x.flip(-1))


class Words(Plain):
    def forward(self, x):
        return super().forward(torch.stack([x, x.square()], -2)).mean(-2)


class Ridge(Plain):
    def loss(self, batch):
        return super().loss(batch) + 0.1 * self.first.weight.square().sum()


class RidgeOverAll(Plain):
    def loss(self, batch):
        return super().loss(batch) + 0.1 * sum(p.square().sum() for p in self.parameters())


class Scaled(Plain):
    """Reads the weight where autograd does not see it."""

    def loss(self, batch):
        return super().loss(batch) / (1 + self.first.weight.detach().square().mean())


class Late(Plain):
    """Reads it by another way, and as an argument among others."""

    def loss(self, batch):
        return super().loss(batch) + torch.stack([self.last.weight, self.last.weight]).mean()


class Teaching(Plain):
    def loss(self, batch):
        with torch.no_grad():
            wanted = self(batch["x"]).mean(-1)
        return super().loss(batch | {"y": wanted + batch["y"]})


PLAIN, READING = [Plain, NoBias, Twice, Words, Teaching], [Ridge, RidgeOverAll, Scaled, Late]


def built(make) -> nn.Module:
    with KEY.torch_rng():
        return make().double()


def sample_data(lengths) -> SampleData:
    draws = KEY.fold("data")
    clients = [
        {
            "x": draws.fold("x", c).normal(n, 24, dtype=torch.float64),
            "y": draws.fold("y", c).normal(n, dtype=torch.float64),
        }
        for c, n in enumerate(lengths)
    ]
    return SampleData.from_clients(clients)


def start_of(module: nn.Module, shared: bool) -> dict[str, Tensor]:
    params = {n: v.detach().expand(C, *v.shape) for n, v in module.named_parameters()}
    noise = KEY.fold("noise").fold(torch.arange(C))
    if shared:
        return params
    return {
        n: v + 0.1 * noise.fold(n).normal(*v.shape[1:], dtype=v.dtype) for n, v in params.items()
    }


def torch_loop(make, params, batches) -> list[dict[str, Tensor]]:
    ends = []
    for c in range(C):
        module = built(make)
        module.load_state_dict({n: v[c] for n, v in params.items()})
        optimizer = torch.optim.SGD(module.parameters(), lr=LR)
        for number in range(int(batches.steps[c])):
            batch = {n: v[0] for n, v in batches(number, torch.tensor([c])).items()}
            optimizer.zero_grad()
            module.loss(batch).backward()
            optimizer.step()
        ends.append({n: v.detach() for n, v in module.named_parameters()})
    return ends


@pytest.fixture
def made(monkeypatch) -> list[Deferred]:
    """The deferred weights that training made."""
    found: list[Deferred] = []

    def noting(*arguments):
        found.append(Deferred(*arguments))
        return found[-1]

    monkeypatch.setattr(fitting, "Deferred", noting)
    return found


EVEN, UNEVEN = [6, 6, 6, 6], [2, 9, 0, 5]


@pytest.mark.parametrize("make", [*PLAIN, *READING])
@pytest.mark.parametrize(
    ("shared", "lengths", "width"),
    [(True, EVEN, None), (False, EVEN, 3), (True, UNEVEN, 1), (False, UNEVEN, None)],
)
def test_training_is_that_of_torch(make, shared, lengths, width, made):
    """Steps of three samples: two fit into the room; with six words of them, one does."""
    module, data = built(make), sample_data(lengths)
    params, batches = start_of(module, shared), MiniBatches(data, 2, 3, KEY.fold(data.ids))
    before = {name: value.clone() for name, value in params.items()}
    loss = masked(MethodOf(module, "loss"))
    how = {"width": width, "deferrable": NAMES}
    fitted = fit(loss, params, batches, RowSGD(), LR, batches.steps, **how)
    assert made
    for c, end in enumerate(torch_loop(make, params, batches)):
        for name, value in end.items():
            torch.testing.assert_close(fitted.params[name][c], value, atol=1e-12, rtol=1e-12)
    assert all(value.equal(before[name]) for name, value in params.items())


@pytest.mark.parametrize("how", ["clip", "decay", "pull", "slope", "rates"])
def test_only_plain_descent_is_deferred(how, made):
    module, data = built(Plain), sample_data([6] * C)
    params, batches = start_of(module, True), MiniBatches(data, 1, 3, KEY.fold(data.ids))
    loss = MethodOf(module, "loss")
    more = {
        "clip": {"clip": 0.1},
        "pull": {"pull": lambda now, near: now},
        "slope": {"slope": torch.func.vmap(torch.func.grad_and_value(loss))},
    }.get(how, {})
    opt = RowSGD(weight_decay=0.1 if how == "decay" else 0.0)
    lr = torch.tensor([0.1, 0.2, 0.0, 0.3], dtype=torch.float64) if how == "rates" else LR
    late, soon = (
        fit(loss, params, batches, opt, lr, batches.steps, deferrable=names, **more).params
        for names in (NAMES, ())
    )
    assert bool(made) == (how == "rates")
    for name, value in late.items():
        torch.testing.assert_close(value, soon[name], atol=1e-13, rtol=1e-12)


def test_a_weight_read_elsewhere_is_deferred_no_more(made):
    module, data = built(Scaled), sample_data([6] * C)
    params, batches = start_of(module, True), MiniBatches(data, 1, 3, KEY.fold(data.ids))
    loss = MethodOf(module, "loss")
    fit(loss, params, batches, RowSGD(), LR, batches.steps, width=1, deferrable=NAMES)
    assert len(made) == len(NAMES)  # by the first client, and no other


def test_while_there_is_room_the_weight_itself_stays():
    draws = KEY.fold("grads").fold(torch.arange(2))
    own, base = torch.full((2, 24, 28), torch.nan), torch.ones(24, 28)
    kept, wanted = Deferred(own, base), base.expand(2, 24, 28).clone()
    for step, size in enumerate([3, 3, 2, 9, 1]):
        left, right = draws.fold("l", step).normal(size, 24), draws.fold("r", step).normal(size, 28)
        kept.descend(Outer(left, right), 0.5)
        wanted -= 0.5 * left.mT @ right
        assert own.isnan().all() == (step < 2)
        assert kept.used == [3, 6, 2, 0, 1][step]
    kept.settle()
    torch.testing.assert_close(own, wanted)
    assert room(24, 28) == 6


@pytest.mark.parametrize(
    ("module", "samples", "width", "names"),
    [
        (nn.Linear(2048, 2047), 511, 8, ("weight",)),
        (nn.Linear(2048, 2047), 512, 1, ("weight",)),
        (nn.Linear(512, 512), 10**6, 7, ("weight",)),
        (nn.Sequential(nn.Embedding(4096, 1024), nn.Linear(1024, 255)), 9, 1, ()),
        (nn.Sequential(nn.Conv1d(1, 1, 1), nn.Linear(2048, 2047)), 9, 1, ("1.weight",)),
    ],
)
def test_who_shares_a_large_weight_is_stacked(module, samples, width, names):
    found = StackWidth.of(module)
    assert found.deferrable == names
    assert found.choose(samples) == width
