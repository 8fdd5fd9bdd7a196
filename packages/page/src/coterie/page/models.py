"""The networks of PAGE, by name: for pictures, for text, for vectors of features.

Pictures of bytes become numbers about zero inside the network, so that memory holds bytes. Group
normalisation (Wu and He, ECCV 2018) has no running averages, which clients would have to share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.core.errors import UserError, nearest
from coterie.core.models.classifier import Classifier, SoftmaxRegression
from coterie.page.data.task import Form
from coterie.page.settings import Settings
from coterie.page.tasks import NETWORKS, OF_TASK

_GROUPS = 2
_WIDTHS = (64, 128, 256, 512)
CHANNELS = {
    "cifar-100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "tiny-imagenet-200": ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
}
"""Mean and standard deviation of each channel over a training set, of values in [0, 1]."""


class Normalise(nn.Module):
    """``(x/255 - mean)/sd`` by channel; what comes out has the network's dtype.

    Args:
        mean: of each of the C channels, of values in [0, 1].
        sd: their standard deviations.

    Example:
        >>> layer = Normalise([0.5], [0.5])
        >>> layer(torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1)).flatten().tolist()
        [-1.0, 1.0]
    """

    # Constants: no part of what is trained, sent or saved.
    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float], sd: Sequence[float]) -> None:
        super().__init__()
        spread = torch.tensor(sd, dtype=torch.float64).reshape(-1, 1, 1)
        centre = torch.tensor(mean, dtype=torch.float64).reshape(-1, 1, 1)
        dtype = torch.get_default_dtype()
        self.register_buffer("scale", (1 / (255 * spread)).to(dtype), persistent=False)
        self.register_buffer("shift", (-centre / spread).to(dtype), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, height, width)`` uint8 -> floating point of the same shape."""
        return x.to(self.scale.dtype) * self.scale + self.shift


def small_cnn(
    n_classes: int, side: int, normalise: Normalise, channels: tuple[int, int] = (16, 32)
) -> Classifier:
    """Make two layers of convolution with stride 2, group normalisation and ReLU, and a head.

    Strides in place of pooling make a step more than twice as fast, at the price of some accuracy
    in the end.

    Args:
        n_classes: number of classes.
        side: pixels of a picture's side, a multiple of 4.
        normalise: takes pictures of bytes to numbers.
        channels: that each layer puts out, even.
    """
    first, second = channels
    layers = [*_layer(3, first, 5), *_layer(first, second, 3)]
    body = nn.Sequential(normalise, *layers, nn.Flatten(start_dim=-3))
    return Classifier(body, nn.Linear(second * (side // 4) ** 2, n_classes))


def _layer(inputs: int, outputs: int, side: int) -> list[nn.Module]:
    return [_convolution(inputs, outputs, side, 2), nn.GroupNorm(_GROUPS, outputs), nn.ReLU()]


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, ``relu(f(x) + shortcut(x))``.

    Args:
        inputs: channels that come in.
        outputs: channels that go out.
        stride: of the first convolution and the shortcut.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, outputs, 3, stride)
        self.norm1 = nn.GroupNorm(_GROUPS, outputs)
        self.conv2 = _convolution(outputs, outputs, 3, 1)
        self.norm2 = nn.GroupNorm(_GROUPS, outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.append(_convolution(inputs, outputs, 1, stride))
            self.shortcut.append(nn.GroupNorm(_GROUPS, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """``(B, inputs, h, w)`` -> ``(B, outputs, h/stride, w/stride)``."""
        z = self.norm1(self.conv1(x)).relu()
        return (self.norm2(self.conv2(z)) + self.shortcut(x)).relu()


class ResNetBody(nn.Module):
    """Stem, four stages of two blocks, mean over the picture: ``(B, 3, h, w) -> (B, 512)``.

    Args:
        small_stem: a 3 x 3 convolution without pooling, for pictures of 32 x 32 pixels, where the
            7 x 7 stem with stride 2 and pooling leaves one pixel at the end.
    """

    def __init__(self, small_stem: bool = False) -> None:
        super().__init__()
        self.small_stem = small_stem
        self.conv = _convolution(3, _WIDTHS[0], *((3, 1) if small_stem else (7, 2)))
        self.norm = nn.GroupNorm(_GROUPS, _WIDTHS[0])
        self.stages = nn.Sequential()
        before = _WIDTHS[0]
        for number, width in enumerate(_WIDTHS):
            stride = 1 if number == 0 else 2
            self.stages.append(nn.Sequential(Block(before, width, stride), Block(width, width, 1)))
            before = width

    def forward(self, x: Tensor) -> Tensor:
        """Features, ``(B, 512)``."""
        z = self.norm(self.conv(x)).relu()
        if not self.small_stem:
            z = F.max_pool2d(z, kernel_size=3, stride=2, padding=1)
        features: Tensor = self.stages(z).mean((-2, -1))
        return features


def resnet18(n_classes: int, normalise: Normalise, small_stem: bool = False) -> Classifier:
    """Make ResNet-18 (He, Zhang, Ren and Sun, CVPR 2016).

    Convolutions start as in He et al. (ICCV 2015), by the number of channels that go out.

    Args:
        n_classes: number of classes.
        normalise: takes pictures of bytes to numbers.
        small_stem: see `ResNetBody`.
    """
    body, head = ResNetBody(small_stem), nn.Linear(_WIDTHS[-1], n_classes)
    for module in body.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return Classifier(nn.Sequential(normalise, body), head)


def _convolution(inputs: int, outputs: int, side: int, stride: int) -> nn.Conv2d:
    # Without a bias, which the normalisation would take back in part.
    return nn.Conv2d(inputs, outputs, side, stride, padding=side // 2, bias=False)


# The LSTM that predicts the next character of Shakespeare.
#
# McMahan et al., AISTATS 2017, section 3, with the sizes of PAGE's code.


class LastStep(nn.Module):
    """Embedding and LSTM; what comes out is the upper layer's state after the last symbol."""

    def __init__(self, n_symbols: int, dim: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_symbols, dim)
        self.lstm = nn.LSTM(dim, hidden, layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map symbols ``(B, length)``, of any integer type, to features ``(B, hidden)``."""
        states, _ = self.lstm(self.embedding(x.long()))
        features: Tensor = states[:, -1]
        return features


def char_lstm(n_symbols: int, dim: int = 8, hidden: int = 100, layers: int = 2) -> Classifier:
    """Make the LSTM with a linear layer over the symbols.

    Args:
        n_symbols: number of symbols, which are input and classes.
        dim: length of an embedding.
        hidden: length of a state.
        layers: of the LSTM.
    """
    return Classifier(LastStep(n_symbols, dim, hidden, layers), nn.Linear(hidden, n_symbols))


# Make a network by name.


def network(settings: Settings, form: Form) -> Callable[[], Classifier]:
    """What makes the network of a run; its start is drawn from torch's generator."""
    dtype = getattr(torch, settings.engine.dtype)
    return lambda: make_model(settings.model.name, form).to(dtype)


def make_model(name: str | None, form: Form) -> Classifier:
    """Make a network for samples of a form; its start is drawn from torch's generator.

    Args:
        name: one of `coterie.page.tasks.NETWORKS`; None = what the paper trains on
            the task.
        form: its shape tells the width, its name how pictures are normalised.

    Raises:
        UserError: no such network, or it does not take samples of this kind.
    """
    name = OF_TASK.get(form.name, "softmax") if name is None else name
    if name not in NETWORKS:
        raise UserError(f"network '{name}' is unknown: {nearest(name, NETWORKS)}")
    _check(name, form)
    n_classes, shape = form.n_classes, form.shape
    make: Mapping[str, Callable[[], Classifier]] = {
        "softmax": lambda: SoftmaxRegression(shape[0], n_classes),
        "small-cnn": lambda: small_cnn(n_classes, shape[-1], _normalise(form)),
        "resnet18": lambda: resnet18(n_classes, _normalise(form)),
        "resnet18-small-stem": lambda: resnet18(n_classes, _normalise(form), small_stem=True),
        "char-lstm": lambda: char_lstm(n_classes),
    }
    return make[name]()


def _normalise(form: Form) -> Normalise:
    return Normalise(*CHANNELS.get(form.name, ((0.5,) * 3, (0.25,) * 3)))


def _check(name: str, form: Form) -> None:
    shape, bytes_ = form.shape, form.dtype == "uint8"
    if name == "softmax":
        fits, takes = len(shape) == 1 and not bytes_, "vectors of features"
    elif name == "char-lstm":
        fits, takes = len(shape) == 1 and bytes_, "sequences of symbols"
    else:
        square = len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2]
        fits, takes = bytes_ and square and shape[1] % 4 == 0, "square pictures in colour"
    if not fits:
        raise UserError(
            f"network '{name}' takes {takes}, which task '{form.name}' does not have: choose "
            f"another of {', '.join(other for other in NETWORKS if other != name)}"
        )
