"""Local training: equal to separate `torch.optim` optimizers, row by row."""

import logging
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad_and_value

from coterie.core.data.samples.samples import MASK, MiniBatches, SampleData
from coterie.core.errors import Unstackable, UserError
from coterie.core.federation.store import PrivateStore
from coterie.core.local_training import stacking
from coterie.core.local_training.batch_values import of_clients
from coterie.core.local_training.fit import fit
from coterie.core.local_training.losses import MethodOf, masked
from coterie.core.local_training.row_adam import RowAdam
from coterie.core.local_training.row_optimizer import RowSGD, RowState
from coterie.core.protocol.messages import Private
from coterie.core.tensors.keys import Key

KEY = Key.from_seed(11)
STEPS = torch.tensor([3, 0, 7, 1, 5, 3])
LR = torch.tensor([0.1, 0.2, 0.05, 0.3, 0.01, 0.15], dtype=torch.float64)
CLIP = torch.tensor([0.1, 5.0, 0.5, 1e9, 0.02, 1.0], dtype=torch.float64)
C = len(STEPS)
OPTIMIZERS = {
    "sgd": (RowSGD(), torch.optim.SGD, {}),
    "sgd decay": (RowSGD(weight_decay=0.1), torch.optim.SGD, {"weight_decay": 0.1}),
    "adam": (RowAdam(), torch.optim.Adam, {}),
    "adam decay": (
        RowAdam(betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
        torch.optim.Adam,
        {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1},
    ),
}
each_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 3)
        self.out = nn.Linear(3, 1)
        self.scale = nn.Parameter(torch.tensor(0.7))

    def loss(self, batch):
        score = self.scale * self.out(torch.tanh(self.hidden(batch["x"])))[:, 0]
        return (score - batch["y"]).square().mean()


def net(dtype=torch.float64) -> Net:
    with KEY.torch_rng():
        return Net().to(dtype)


def stacked_params(module: nn.Module) -> dict[str, Tensor]:
    """A little different in every client."""
    noise = KEY.fold("noise").fold(torch.arange(C))
    return {
        name: value.detach() + 0.1 * noise.fold(name).normal(*value.shape, dtype=value.dtype)
        for name, value in module.named_parameters()
    }


def sample_data(lengths, dtype=torch.float64) -> SampleData:
    draws = KEY.fold("data")
    return SampleData.from_clients(
        [
            {
                "x": draws.fold("x", c).normal(n, 4, dtype=dtype),
                "y": draws.fold("y", c).normal(n, dtype=dtype),
            }
            for c, n in enumerate(lengths)
        ]
    )


def batch_of(number: int, rows: Tensor, dtype=torch.float64) -> dict[str, Tensor]:
    key = KEY.fold("batch", number).fold(rows)
    x = key.fold("x").normal(5, 4, dtype=torch.float64)
    y = key.fold("y").normal(5, dtype=torch.float64)
    return {"x": x.to(dtype), "y": y.to(dtype)}


def train_apart(name, module, params, dtype, clip) -> tuple[list[dict[str, Tensor]], list[float]]:
    """Every client with an optimizer of torch's own."""
    _, kind, options = OPTIMIZERS[name]
    ends, means = [], []
    for c in range(C):
        module.load_state_dict({key: value[c] for key, value in params.items()})
        optimizer = kind(module.parameters(), lr=float(LR[c]), **options)
        seen = []
        for number in range(int(STEPS[c])):
            batch = {k: v[0] for k, v in batch_of(number, torch.tensor([c]), dtype).items()}
            optimizer.zero_grad()
            loss = module.loss(batch)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(module.parameters(), float(CLIP[c]))
            optimizer.step()
            seen.append(float(loss.detach()))
        ends.append({k: v.detach().clone() for k, v in module.named_parameters()})
        means.append(sum(seen) / max(len(seen), 1))
    return ends, means


@each_optimizer
@pytest.mark.parametrize("clip", [False, True], ids=["free", "clipped"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=["f32", "f64"]
)
def test_equals_separate_torch_optimizers(name, dtype, tolerance, clip):
    module = net(dtype)
    params = stacked_params(module)
    ends, means = train_apart(name, net(dtype), params, dtype, clip)
    fitted = fit(
        MethodOf(module, "loss"),
        params,
        lambda number, rows: batch_of(number, rows, dtype),
        OPTIMIZERS[name][0],
        LR,
        STEPS,
        clip=CLIP if clip else None,
    )
    for c in range(C):
        for key, value in ends[c].items():
            torch.testing.assert_close(
                fitted.params[key][c], value, atol=tolerance, rtol=tolerance, check_dtype=True
            )
    torch.testing.assert_close(
        fitted.loss.double(), torch.tensor(means, dtype=torch.float64), atol=1e-6, rtol=1e-6
    )
    assert fitted.state.steps.tolist() == STEPS.tolist()


@each_optimizer
def test_stop_and_go_on_is_one_run(name):
    opt, loss, params = OPTIMIZERS[name][0], MethodOf(net(), "loss"), stacked_params(net())
    whole = fit(loss, params, batch_of, opt, LR, 5)
    half = fit(loss, params, batch_of, opt, LR, 2)
    rest = fit(
        loss, half.params, lambda n, rows: batch_of(n + 2, rows), opt, LR, 3, state=half.state
    )
    for key, value in whole.params.items():
        assert torch.equal(rest.params[key], value)


@each_optimizer
@pytest.mark.parametrize("size", [1, 2, 4])
def test_chunks_make_no_difference(name, size):
    opt, loss, params = OPTIMIZERS[name][0], MethodOf(net(), "loss"), stacked_params(net())
    whole = fit(loss, params, batch_of, opt, LR, STEPS)
    for rows in torch.arange(C).split(size):
        part = fit(
            loss,
            {key: value[rows] for key, value in params.items()},
            lambda number, some, rows=rows: batch_of(number, rows[some]),
            opt,
            LR[rows],
            STEPS[rows],
        )
        for key, value in part.params.items():
            torch.testing.assert_close(value, whole.params[key][rows], atol=1e-13, rtol=1e-13)


def test_arguments_are_left_alone():
    params = stacked_params(net())
    before = {key: value.clone() for key, value in params.items()}
    fit(MethodOf(net(), "loss"), params, batch_of, RowAdam(), LR, STEPS)
    assert all(torch.equal(params[key], before[key]) for key in params)


def test_no_clients_and_no_steps():
    loss, params = MethodOf(net(), "loss"), stacked_params(net())
    still = fit(loss, params, batch_of, RowAdam(), 0.1, 0)
    assert all(torch.equal(still.params[key], params[key]) for key in params)
    assert still.loss.tolist() == [0.0] * C
    nobody = {key: value[:0] for key, value in params.items()}
    assert fit(loss, nobody, batch_of, RowAdam(), 0.1, 3).loss.numel() == 0


def test_nan_of_one_client_does_not_reach_the_others():
    loss, params = MethodOf(net(), "loss"), stacked_params(net())

    def broken(number, rows):
        batch = batch_of(number, rows)
        batch["x"][rows == 2] = float("nan")
        return batch

    good = fit(loss, params, batch_of, RowAdam(), LR, STEPS)
    bad = fit(loss, params, broken, RowAdam(), LR, STEPS)
    others = torch.arange(C) != 2
    for key, value in good.params.items():
        assert torch.equal(bad.params[key][others], value[others])
        assert bad.params[key][2].isnan().all()


def test_optimizer_state_lives_in_private_state():
    @dataclass(frozen=True)
    class Mine(Private):
        state: RowState

    opt, params = RowAdam(), stacked_params(net())
    store: PrivateStore[Mine] = PrivateStore()
    ids = torch.arange(C)
    store.enrol(ids, Mine(opt.begin(params)))
    fitted = fit(MethodOf(net(), "loss"), params, batch_of, opt, LR, STEPS)
    store.commit(ids[1:3], Mine(stacking.tree.take(fitted.state, ids[1:3])))
    assert store.take(ids).state.steps.tolist() == [0, 0, 7, 0, 0, 0]


@pytest.mark.parametrize("batch_size", [1, 3, None])
@pytest.mark.parametrize("lengths", [[4, 7, 1], [3, 6, 3], [5]])
def test_padded_batches_train_as_unpadded_ones(batch_size, lengths):
    data = sample_data(lengths)
    module = net()
    shared = {k: v.detach() for k, v in module.named_parameters()}
    params = {k: v.expand(len(data), *v.shape) for k, v in shared.items()}
    keys = KEY.fold(data.ids)
    batches = MiniBatches(data, 2, batch_size, keys)
    fitted = fit(masked(MethodOf(module, "loss")), params, batches, RowSGD(), 0.1, batches.steps)
    for c in range(len(data)):
        one = data.take(torch.tensor([c]))
        alone = MiniBatches(one, 2, batch_size, Key(keys.state[c : c + 1]))
        reference = net()
        sgd = torch.optim.SGD(reference.parameters(), lr=0.1)
        for number in range(int(alone.steps[0])):
            batch = alone(number, torch.tensor([0]))
            assert MASK not in batch
            sgd.zero_grad()
            reference.loss({k: v[0] for k, v in batch.items()}).backward()
            sgd.step()
        for key, value in reference.named_parameters():
            torch.testing.assert_close(fitted.params[key][c], value, atol=1e-13, rtol=1e-13)


@pytest.mark.parametrize("batch_size", [1, 2, 4, 100, None])
def test_an_epoch_visits_every_sample_once(batch_size):
    lengths = [0, 5, 1, 8]
    data = SampleData.from_clients(
        [{"x": 100 * c + torch.arange(n)} for c, n in enumerate(lengths)]
    )
    batches = MiniBatches(data, 3, batch_size, KEY.fold(data.ids))
    per_epoch = [-(-n // batch_size) if batch_size else int(n > 0) for n in lengths]
    assert batches.steps.tolist() == [3 * count for count in per_epoch]
    orders = set()
    for c in (1, 2, 3):
        for epoch in range(3):
            seen = []
            for b in range(per_epoch[c]):
                # Asked together with whoever else still has such a batch.
                number = epoch * per_epoch[c] + b
                rows = (batches.steps > number).nonzero().flatten()
                batch = batches(number, rows)
                place = int((rows == c).nonzero())
                mask = batch.get(MASK, torch.ones_like(batch["x"], dtype=torch.bool))
                seen += batch["x"][place][mask[place]].tolist()
            assert sorted(seen) == [100 * c + i for i in range(lengths[c])]
            orders.add(tuple(seen))
    if batch_size in (1, 2, 4):
        assert len(orders) > 4  # a new order every epoch


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(4, 3, batch_first=True)

    def loss(self, batch):
        return (self.cell(batch["x"][:, None])[0].mean((1, 2)) - batch["y"]).square().mean()


class Choosy(Net):
    """Its control flow depends on the data, which torch cannot vectorise."""

    def loss(self, batch):
        weight = 2.0 if float(batch["y"].detach().sum()) > 0 else 1.0
        return weight * super().loss(batch)


@pytest.mark.filterwarnings("error:There is a performance drop")
def test_the_slow_fallback_of_torch_is_refused():
    if not torch.backends.mkldnn.is_available():
        pytest.skip("needs oneDNN, whose float32 LSTM torch cannot vectorise")
    module = Recurrent()
    params = {k: v.detach().expand(2, *v.shape) for k, v in module.named_parameters()}
    batch = {"x": torch.ones(2, 5, 4), "y": torch.ones(2, 5)}
    with pytest.raises(Unstackable, match="fallback"):
        stacking.stacked(grad_and_value(MethodOf(module, "loss")))(params, batch)
    assert torch._C._functorch._is_vmap_fallback_enabled()


@pytest.mark.parametrize("kind", [Recurrent, Choosy])
def test_what_torch_cannot_stack_runs_as_a_loop(kind, caplog):
    stacking.say_one_by_one.cache_clear()
    with KEY.torch_rng():
        module = kind().double()
    params = stacked_params(module)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            fitted = fit(MethodOf(module, "loss"), params, batch_of, RowSGD(), LR, STEPS)
    if kind is Choosy:
        assert [r.message.startswith("clients are trained one after") for r in caplog.records] == [
            True
        ]
    for c in range(C):
        module.load_state_dict({key: value[c] for key, value in params.items()})
        sgd = torch.optim.SGD(module.parameters(), lr=float(LR[c]))
        for number in range(int(STEPS[c])):
            sgd.zero_grad()
            module.loss(
                {k: v[0] for k, v in batch_of(number, torch.tensor([c])).items()}
            ).backward()
            sgd.step()
        for key, value in module.named_parameters():
            torch.testing.assert_close(fitted.params[key][c], value, atol=1e-12, rtol=1e-12)


def test_the_loop_needs_no_masks():
    data = sample_data([4, 2, 3])
    with KEY.torch_rng():
        module = Choosy().double()
    shared = {k: v.detach()[None] for k, v in module.named_parameters()}
    batches = MiniBatches(data, 1, None, KEY.fold(data.ids))
    found = of_clients(masked(MethodOf(module, "loss")), shared, batches, torch.tensor([2, 0]))
    expected = [module.loss(data.take(torch.tensor([c])).samples) for c in (2, 0)]
    torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.parametrize("n_clients", [1, 3])
def test_dropout_is_refused_with_a_remedy(n_clients):
    class Dropping(Net):
        def loss(self, batch):
            return super().loss({**batch, "x": nn.functional.dropout(batch["x"])})

    params = {k: v[:n_clients] for k, v in stacked_params(net()).items()}
    with pytest.raises(UserError, match="set dropout to 0"):
        fit(MethodOf(Dropping().double(), "loss"), params, batch_of, RowSGD(), 0.1, 1)


def test_errors_of_the_loss_are_its_own():
    def loss(params, batch):
        return (batch["x"] @ params["out.bias"][:1].expand(9)).sum()

    with pytest.raises(RuntimeError, match=r"size|shape") as caught:
        fit(loss, stacked_params(net()), batch_of, RowSGD(), 0.1, 1)
    assert not isinstance(caught.value, Unstackable)


def test_sample_data_that_does_not_fit_together_is_refused():
    with pytest.raises(ValueError, match="'y' must hold 3 rows"):
        SampleData(torch.arange(1), {"x": torch.ones(3), "y": torch.ones(2)}, torch.tensor([0, 3]))
    with pytest.raises(ValueError, match="one offset more"):
        SampleData(torch.arange(2), {}, torch.tensor([0, 3]))
    with pytest.raises(ValueError, match="ascend"):
        SampleData(torch.arange(2), {"x": torch.ones(1)}, torch.tensor([0, 3, 1]))


@pytest.mark.parametrize("given", ["autograd", "slope"])
@pytest.mark.parametrize("lengths", [[5, 0, 8, 3], [4]])
def test_what_is_fixed_goes_into_the_loss_and_stays(given, lengths):
    """Against training a model in which the rest has no gradient; the fixed differ by client."""
    data, count = sample_data(lengths), len(lengths)
    params = {name: value[:count] for name, value in stacked_params(net()).items()}
    free = {name: params.pop(name) for name in ("out.weight", "scale")}
    loss = masked(MethodOf(net(), "loss"))

    def slope(params, batch):
        return torch.func.vmap(torch.func.grad_and_value(loss))(params, batch)

    batches = MiniBatches(data, 2, 3, KEY.fold(data.ids))
    steep = slope if given == "slope" else None
    found = fit(loss, free, batches, RowSGD(), 0.1, batches.steps, slope=steep, fixed=params)
    assert list(found.params) == ["out.weight", "scale"]
    for c in range(count):
        module = net()
        module.load_state_dict({name: value[c] for name, value in (params | free).items()})
        for name in params:
            module.get_parameter(name).requires_grad_(False)
        sgd = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
        one = data.take(torch.tensor([c]))
        alone = MiniBatches(one, 2, 3, KEY.fold(one.ids))
        for number in range(int(alone.steps[0])):
            sgd.zero_grad()
            module.loss({k: v[0] for k, v in alone(number, torch.tensor([0])).items()}).backward()
            sgd.step()
        for name, value in found.params.items():
            torch.testing.assert_close(
                value[c], module.get_parameter(name).detach(), atol=1e-13, rtol=1e-13
            )
