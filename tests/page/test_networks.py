"""The networks: against independent computations, stacked against alone, and refusals."""

import logging
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import UserError
from coterie.core.local_training import stacking
from coterie.core.local_training.fit import fit
from coterie.core.local_training.losses import MethodOf
from coterie.core.local_training.row_optimizer import RowSGD
from coterie.core.tensors.keys import Key
from coterie.page.data.task import Task
from coterie.page.models import Normalise, char_lstm, make_model, resnet18, small_cnn
from coterie.page.tasks import NETWORKS, OF_TASK

KEY = Key.from_seed(5)
MEAN, SD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)


def pictures(n, side, key=KEY):
    return key.integers(256, torch.arange(n * 3 * side**2)).reshape(n, 3, side, side).byte()


def made(build):
    with KEY.torch_rng():
        model = build()
        # Norms start as the identity; a test of the wiring needs them apart.
        for name, value in model.named_parameters():
            if value.dim() == 1 and "head" not in name:
                nn.init.uniform_(value, 0.5, 1.5)
    return model.double()


def group_norm(z, weight, bias):
    """Two halves of the channels, each with mean 0 and variance 1 over channels and pixels."""
    n, channels, h, w = z.shape
    parts = z.reshape(n, 2, -1)
    centred = parts - parts.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled.reshape(n, channels, h, w) * weight[:, None, None] + bias[:, None, None]


def convolve(z, weight, stride):
    """A convolution as one matrix product over unfolded patches."""
    side = weight.shape[-1]
    patches = F.unfold(z, side, padding=side // 2, stride=stride)
    size = (z.shape[-1] + 2 * (side // 2) - side) // stride + 1
    return (weight.flatten(1) @ patches).reshape(len(z), len(weight), size, size)


def plain_resnet(state, x, small_stem):
    """Table 1 of He et al. (2016), 18 layers, from a list of weights."""

    def norm(z, name):
        return group_norm(z, state[f"{name}.weight"], state[f"{name}.bias"])

    z = (x.double() / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(SD)[:, None, None]
    z = norm(convolve(z, state["conv.weight"], 1 if small_stem else 2), "norm").clamp(min=0)
    if not small_stem:
        padded = F.pad(z, (1, 1, 1, 1), value=-math.inf)
        z = padded.unfold(2, 3, 2).unfold(3, 3, 2).amax((-2, -1))
    for stage in range(4):
        for block in range(2):
            at = f"stages.{stage}.{block}."
            stride = 2 if stage > 0 and block == 0 else 1
            f = norm(convolve(z, state[at + "conv1.weight"], stride), at + "norm1").clamp(min=0)
            f = norm(convolve(f, state[at + "conv2.weight"], 1), at + "norm2")
            if stride == 2:
                z = norm(convolve(z, state[at + "shortcut.0.weight"], 2), at + "shortcut.1")
            z = (z + f).clamp(min=0)
    return z.flatten(2).mean(-1)


@pytest.mark.parametrize(("side", "small_stem"), [(32, False), (64, False), (32, True)])
def test_resnet18_equals_a_plain_computation(side, small_stem):
    model = made(lambda: resnet18(7, Normalise(MEAN, SD), small_stem))
    x = pictures(2, side)
    state = {name.removeprefix("body.1."): v for name, v in model.state_dict().items()}
    features = plain_resnet(state, x, small_stem)
    expected = features @ state["head.weight"].T + state["head.bias"]
    torch.testing.assert_close(model(x), expected, atol=1e-6, rtol=1e-6)


def torchvision_models():
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as error:  # a build for another torch raises the latter
        pytest.skip(f"needs torchvision of this torch: {error}")
    return models


def test_resnet18_equals_torchvisions():
    models = torchvision_models()
    theirs = models.resnet18(norm_layer=partial(nn.GroupNorm, 2), num_classes=100)
    ours = resnet18(100, Normalise(MEAN, SD))
    state = dict(zip(_names_of_theirs(), theirs.state_dict().values(), strict=True))
    ours.load_state_dict(state)
    x = pictures(3, 64)
    normalised = Normalise(MEAN, SD)(x)
    torch.testing.assert_close(ours(x), theirs(normalised), atol=1e-5, rtol=1e-5)


def _names_of_theirs():
    """Our names of torchvision's parameters, in torchvision's order."""
    yield from ("body.1.conv.weight", "body.1.norm.weight", "body.1.norm.bias")
    for stage in range(4):
        for block in range(2):
            at = f"body.1.stages.{stage}.{block}."
            for part in (1, 2):
                yield f"{at}conv{part}.weight"
                yield from (f"{at}norm{part}.weight", f"{at}norm{part}.bias")
            if stage and not block:
                yield f"{at}shortcut.0.weight"
                yield from (f"{at}shortcut.1.weight", f"{at}shortcut.1.bias")
    yield from ("head.weight", "head.bias")


def test_resnet18_has_the_published_size():
    # 11,689,512 with 1000 classes, as torchvision documents; norms have as many either way.
    model = resnet18(1000, Normalise(MEAN, SD))
    assert sum(value.numel() for value in model.parameters()) == 11_689_512
    weight = model.body[1].stages[1][0].conv1.weight.detach()
    assert float(weight.std()) == pytest.approx(math.sqrt(2 / (128 * 9)), rel=0.02)


def test_small_cnn_equals_a_plain_computation():
    model = made(lambda: small_cnn(7, 16, Normalise(MEAN, SD), (4, 6)))
    x, state = pictures(3, 16), model.state_dict()
    z = (x.double() / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(SD)[:, None, None]
    for layer in (1, 4):
        z = convolve(z, state[f"body.{layer}.weight"], 2)
        z = group_norm(z, state[f"body.{layer + 1}.weight"], state[f"body.{layer + 1}.bias"])
        z = z.clamp(min=0)
    expected = z.flatten(1) @ state["head.weight"].T + state["head.bias"]
    torch.testing.assert_close(model(x), expected, atol=1e-6, rtol=1e-6)


def test_char_lstm_equals_a_plain_recurrence():
    model = made(lambda: char_lstm(11, dim=3, hidden=5))
    state = model.body.state_dict()
    x = KEY.integers(11, torch.arange(2 * 9)).reshape(2, 9).byte()
    inputs = [state["embedding.weight"][x[:, t].long()] for t in range(9)]
    for layer in range(2):
        h = c = torch.zeros(2, 5, dtype=torch.float64)
        outputs = []
        for z in inputs:
            gates = (
                z @ state[f"lstm.weight_ih_l{layer}"].T
                + state[f"lstm.bias_ih_l{layer}"]
                + h @ state[f"lstm.weight_hh_l{layer}"].T
                + state[f"lstm.bias_hh_l{layer}"]
            )
            i, f, g, o = gates.chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        inputs = outputs
    expected = inputs[-1] @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(x), expected)


def train(model, x, y, rows):
    params = {
        name: value.detach().expand(len(rows), *value.shape)
        for name, value in model.named_parameters()
    }

    def batch(number, at):
        return {"x": x[rows][at], "y": y[rows][at]}

    return fit(MethodOf(model, "loss"), params, batch, RowSGD(), 0.05, 2).params


@pytest.mark.parametrize(
    ("build", "stacks"),
    [
        (lambda: small_cnn(5, 16, Normalise(MEAN, SD)), True),
        (lambda: resnet18(5, Normalise(MEAN, SD)), True),
        (lambda: char_lstm(5), False),
    ],
    ids=["small-cnn", "resnet18", "char-lstm"],
)
@pytest.mark.filterwarnings("error")
def test_stacked_clients_are_trained_as_alone(build, stacks, caplog):
    if not stacks and not torch.backends.mkldnn.is_available():
        pytest.skip("needs oneDNN, whose LSTM torch cannot stack")
    stacking.say_one_by_one.cache_clear()
    with KEY.torch_rng():
        model = build()
    x = pictures(2 * 2, 16).reshape(2, 2, 3, 16, 16) if stacks else pictures(2, 4)[:, :2, 0] % 5
    y = torch.tensor([[0, 1], [2, 3]])
    with caplog.at_level(logging.WARNING):
        train(model, x, y, [0, 1])
        together = train(model, x, y, [0, 1])
    said = [record.message for record in caplog.records]
    assert len(said) == (0 if stacks else 1)
    assert all("one after the other" in message for message in said)
    for client in range(2):
        alone = train(model, x, y, [client])
        for name, value in alone.items():
            torch.testing.assert_close(together[name][client], value[0], atol=2e-5, rtol=1e-4)


def task(name, x, n_classes=6):
    y = torch.zeros(len(x), dtype=torch.int64)
    clients = SplitSamples.of(SampleData.from_clients([{"x": x, "y": y}]))
    return Task(name, clients, {"x": x, "y": y}, {"x": x, "y": y}, n_classes)


SAMPLES = {
    "synthetic": torch.ones(3, 30),
    "synthetic-fedprox": torch.ones(3, 60),
    "cifar-100": pictures(3, 32),
    "tiny-imagenet-200": pictures(3, 64),
    "shakespeare": torch.zeros(3, 80, dtype=torch.uint8),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_task_has_a_network(name):
    given = task(name, SAMPLES[name], 80)
    for network in (None, OF_TASK[name]):
        model = make_model(network, given.form)
        assert model(SAMPLES[name]).shape == (3, 80)
        assert bool(model.loss(given.server_test).isfinite())
    again = [make_with_key(given) for _ in range(2)]
    assert all(map(torch.equal, *(list(model.parameters()) for model in again)))


def make_with_key(given):
    with KEY.torch_rng():
        return make_model(None, given.form)


def test_pictures_are_normalised_by_their_data_set():
    x = torch.full((1, 3, 8, 8), 255, dtype=torch.uint8)
    first = make_model("small-cnn", task("cifar-100", x).form).body[0]
    expected = (1 - torch.tensor([0.5071, 0.4865, 0.4409])) / torch.tensor([0.2673, 0.2564, 0.2762])
    torch.testing.assert_close(first(x)[0, :, 0, 0], expected)
    assert list(first.state_dict()) == []  # constants are neither sent nor saved
    assert first.double()(x).dtype == torch.float64


def test_unknown_networks_and_samples_that_do_not_fit():
    with pytest.raises(UserError, match="did you mean 'resnet18'"):
        make_model("resnet", task("cifar-100", SAMPLES["cifar-100"]).form)
    fitting = {
        "softmax": ("synthetic", "synthetic-fedprox"),
        "char-lstm": ("shakespeare",),
    }
    for network in NETWORKS:
        for name, x in SAMPLES.items():
            if name not in fitting.get(network, ("cifar-100", "tiny-imagenet-200")):
                with pytest.raises(
                    UserError, match=f"'{network}' takes .* '{name}' does not"
                ) as refused:
                    make_model(network, task(name, x).form)
                others = str(refused.value).split("another of ")[1].split(", ")
                assert {*others, network} == set(NETWORKS) > set(others)
    for shape in ((2, 3, 32, 30), (2, 1, 32, 32), (2, 3, 30, 30)):
        with pytest.raises(UserError, match="square pictures"):
            make_model("small-cnn", task("own", torch.zeros(shape, dtype=torch.uint8)).form)
