"""Dropout of stacked clients: masks from the clients' keys, the same alone and in any chunk."""

import pytest
import torch
from torch import Tensor, nn

from coterie.core.data.samples.samples import MiniBatches, SampleData
from coterie.core.errors import UserError
from coterie.core.local_training.batch_values import of_clients
from coterie.core.local_training.dropout import (
    DropoutBatches,
    KeyedDropout,
    dropout_mask,
    keyed_layers,
)
from coterie.core.local_training.fit import fit
from coterie.core.local_training.losses import MethodOf, masked
from coterie.core.local_training.row_adam import RowAdam
from coterie.core.methods.kit.training import LocalTraining, same_for_all
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.tensors.keys import Key

KEY = Key.from_seed(3)
LENGTHS, EPOCHS, SIZE = [7, 4, 9, 1], 3, 4
WORD = (1 << 64) - 1


class Net(nn.Module):
    def __init__(self, rate: float = 0.4) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 1)
        self.inputs = KeyedDropout("inputs", (5,), rate / 2)
        self.hidden = KeyedDropout("hidden", (6,), rate)

    def loss(self, batch):
        hidden = torch.tanh(self.first(self.inputs(batch["x"], batch)))
        score = self.last(self.hidden(hidden, batch))[:, 0]
        return (score - batch["y"]).square().mean()


def net() -> Net:
    with KEY.torch_rng():
        return Net().double()


def samples() -> SampleData:
    draws = KEY.fold("data")
    return SampleData.from_clients(
        [
            {
                "x": draws.fold("x", c).normal(n, 5, dtype=torch.float64),
                "y": draws.fold("y", c).normal(n, dtype=torch.float64),
            }
            for c, n in enumerate(LENGTHS)
        ]
    )


def trained(data: SampleData) -> dict[str, Tensor]:
    """Of the clients of ``data``, stacked."""
    module, keys = net(), KEY.fold("client").fold(data.ids)
    params = same_for_all(dict(module.named_parameters()), len(data))
    batches = MiniBatches(data, EPOCHS, SIZE, keys, by_place=True)
    dropping = DropoutBatches(batches, module, keys)
    return fit(
        masked(MethodOf(module, "loss")), params, dropping, RowAdam(), 0.05, batches.steps
    ).params


def mix(state: int) -> int:
    """One output of SplitMix64."""
    state = (state + 0x9E3779B97F4A7C15) & WORD
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & WORD
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & WORD
    return state ^ state >> 31


def test_a_mask_is_the_hash_of_its_key():
    """Against SplitMix64 in Python: a number below rate 2^32, as a signed one, is dropped."""
    key, rate, shape = KEY.fold("mask"), 0.3, (3, 5)
    wanted = []
    for word in range(8):
        bits = mix((int(key.state) + word * 0x9E3779B97F4A7C15) & WORD)
        for half in (bits & 0xFFFFFFFF, bits >> 32):
            signed = half - (1 << 32) if half >> 31 else half
            wanted.append(0.0 if signed + 2**31 < round(rate * 2**32) else 1 / (1 - rate))
    found = dropout_mask(key, shape, rate, torch.float64)
    torch.testing.assert_close(found, torch.tensor(wanted[:15]).double().reshape(shape))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mask_keeps_the_mean(rate, dtype):
    n_clients, count = 4, 40_000
    mask = dropout_mask(KEY.fold(torch.arange(n_clients)), (count // 100, 100), rate, dtype)
    assert mask.shape == (n_clients, count // 100, 100)
    assert mask.dtype == dtype
    torch.testing.assert_close(
        mask.unique(), torch.tensor([0.0, 1 / (1 - rate)], dtype=dtype), atol=0, rtol=0
    )
    deviation = (rate / (1 - rate) / count) ** 0.5  # of the mean of a client's mask
    assert ((mask.mean((1, 2)) - 1).abs() < 5 * deviation).all()
    # Neither clients nor neighbours, two of which share a hash, drop together.
    dropped = (mask == 0).double().flatten(1)
    pairs = torch.corrcoef(dropped) - torch.eye(n_clients)
    neighbours = torch.corrcoef(torch.stack([dropped[0, ::2], dropped[0, 1::2]]))[0, 1]
    assert pairs.abs().max() < 5 / count**0.5
    assert neighbours.abs() < 5 / (count / 2) ** 0.5


def test_a_mask_knows_its_client_only():
    ids = torch.tensor([4, 1, 8])
    together = dropout_mask(KEY.fold(ids), (6, 3), 0.5)
    for row, one in enumerate(ids):
        alone = dropout_mask(KEY.fold(one[None]), (6, 3), 0.5)
        assert torch.equal(alone[0], together[row])
    shorter = dropout_mask(KEY.fold(ids), (5, 3), 0.5)  # an odd number of entries
    assert torch.equal(shorter, together[:, :5])


@pytest.mark.parametrize("shape", [(0,), (3, 0), (1,), ()])
def test_small_masks(shape):
    assert dropout_mask(KEY.fold(torch.arange(2)), shape, 0.5).shape == (2, *shape)
    assert dropout_mask(KEY, shape, 0.5).shape == shape


def test_a_rate_of_zero_changes_nothing():
    assert torch.equal(dropout_mask(KEY, (50,), 0.0), torch.ones(50))
    assert not dropout_mask(KEY, (50,), 1 - 1e-15).any()  # rounded up it would drop nothing


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_a_rate_outside_is_refused(rate):
    with pytest.raises(UserError, match=r"outside \[0, 1\)"):
        dropout_mask(KEY, (2,), rate)
    with pytest.raises(UserError, match=r"outside \[0, 1\)"):
        KeyedDropout("hidden", (2,), rate)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_chunks_make_no_difference(size):
    data = samples()
    whole = trained(data)
    for rows in torch.arange(len(data)).split(size):
        for name, value in trained(data.take(rows)).items():
            torch.testing.assert_close(value, whole[name][rows], atol=1e-12, rtol=1e-12)


def test_stacked_equals_a_loop_over_clients():
    """With an optimizer of torch's own, masks drawn one client and batch at a time."""
    data, found = samples(), trained(samples())
    for c, length in enumerate(LENGTHS):
        module, key = net(), KEY.fold("client").fold(torch.tensor([c]))
        batches = MiniBatches(data.take(torch.tensor([c])), EPOCHS, SIZE, key, by_place=True)
        optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
        assert int(batches.steps) == EPOCHS * -(-length // SIZE)
        for number in range(int(batches.steps)):
            batch = {n: v[0] for n, v in batches(number, torch.tensor([0])).items()}
            for layer in (module.inputs, module.hidden):
                own = key.fold("dropout").fold(number).fold(layer.name)
                shape = (len(batch["x"]), *layer.shape)
                [batch[layer.field]] = dropout_mask(own, shape, layer.rate, torch.float64)
            optimizer.zero_grad()
            module.loss(batch).backward()
            optimizer.step()
        for name, value in module.named_parameters():
            torch.testing.assert_close(found[name][c], value.detach(), atol=1e-12, rtol=1e-12)


def test_without_masks_nothing_is_dropped():
    """As a model is measured, whether the module is in training mode or not."""
    data, module = samples(), net().train()
    params = same_for_all(dict(module.named_parameters()), len(data))
    batches = MiniBatches(data, 1, None, None)
    rows = torch.arange(len(data))
    found = of_clients(masked(MethodOf(module, "loss")), params, batches, rows)
    for c in rows:
        of_c = data.take(c[None]).samples
        score = module.last(torch.tanh(module.first(of_c["x"])))[:, 0]
        torch.testing.assert_close(found[c].detach(), (score - of_c["y"]).square().mean().detach())


def test_the_batch_decides_and_not_the_mode():
    layer, x = KeyedDropout("hidden", (2,), 0.5), torch.ones(1, 2)
    mask = torch.tensor([[0.0, 2.0]])
    for mode in (True, False):
        assert torch.equal(layer.train(mode)(x, {layer.field: mask}), mask)
        assert torch.equal(layer(x, {}), x)


def test_the_methods_for_any_module_draw_masks():
    """`LocalTraining` trains a module with its dropout; one whose rate is zero is trained without.

    All have one batch here, which is shuffled all the same.
    """
    data, ends, size = samples(), {}, max(LENGTHS)
    for rate in (0.0, 0.4):
        with KEY.torch_rng():
            module = Net(rate).double()
        local = LocalTraining(module, FedAvgSettings(rounds=1, epochs=2, batch_size=size, lr=0.1))
        keys = KEY.fold(data.ids)
        start = same_for_all(dict(module.named_parameters()), len(data))
        batches = local.batches(data, keys)
        fields = batches(0, torch.arange(len(data)))
        assert fields["dropout.hidden"].shape == (len(data), size, 6)
        ends[rate] = local.train(start, batches).params["last.weight"]
        plain = MiniBatches(data, 2, size, keys, by_place=True)
        given = plain if rate == 0 else DropoutBatches(plain, module, keys)
        wanted = fit(local.loss, start, given, local.optimizer, 0.1, plain.steps).params
        assert torch.equal(ends[rate], wanted["last.weight"])
    assert not torch.allclose(ends[0.0], ends[0.4])


def test_two_layers_of_one_name_are_refused():
    layers = nn.ModuleList([KeyedDropout("hidden", (2,), 0.5) for _ in range(2)])
    with pytest.raises(UserError, match="several KeyedDropout layers are named 'hidden'"):
        keyed_layers(layers)


def test_torchs_dropout_is_refused_with_this_as_the_remedy():
    class Dropping(Net):
        def loss(self, batch):
            return super().loss(batch | {"x": nn.functional.dropout(batch["x"])})

    module, data = Dropping().double(), samples()
    params = same_for_all(dict(module.named_parameters()), len(data))
    batches = MiniBatches(data, 1, None, None)
    with pytest.raises(UserError, match=r"local_training\.dropout\.KeyedDropout"):
        fit(masked(MethodOf(module, "loss")), params, batches, RowAdam(), 0.1, 1)
