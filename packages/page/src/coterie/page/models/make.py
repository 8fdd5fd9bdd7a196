"""Make a network by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from coterie.core.errors import UserError, nearest
from coterie.core.models.classifier import Classifier, SoftmaxRegression
from coterie.page.data.task import Task
from coterie.page.models.char_lstm import char_lstm
from coterie.page.models.normalise import CHANNELS, Normalise
from coterie.page.models.resnet import resnet18
from coterie.page.models.small_cnn import small_cnn
from coterie.page.settings.networks import NETWORKS, OF_TASK


def make_model(name: str | None, task: Task) -> Classifier:
    """Make a network for a task's samples; its start is drawn from torch's generator.

    Args:
        name: one of `coterie.page.settings.networks.NETWORKS`; None = what the paper trains on
            the task.
        task: its samples tell the width, its name how pictures are normalised.

    Raises:
        UserError: no such network, or it does not take samples of this kind.
    """
    name = OF_TASK.get(task.name, "softmax") if name is None else name
    if name not in NETWORKS:
        raise UserError(f"network '{name}' is unknown: {nearest(name, NETWORKS)}")
    _check(name, task)
    n_classes, shape = task.n_classes, _shape(task)
    make: Mapping[str, Callable[[], Classifier]] = {
        "softmax": lambda: SoftmaxRegression(shape[0], n_classes),
        "small-cnn": lambda: small_cnn(n_classes, shape[-1], _normalise(task)),
        "resnet18": lambda: resnet18(n_classes, _normalise(task)),
        "resnet18-small-stem": lambda: resnet18(n_classes, _normalise(task), small_stem=True),
        "char-lstm": lambda: char_lstm(n_classes),
    }
    return make[name]()


def _shape(task: Task) -> torch.Size:
    return task.clients.train.samples["x"].shape[1:]


def _normalise(task: Task) -> Normalise:
    return Normalise(*CHANNELS.get(task.name, ((0.5,) * 3, (0.25,) * 3)))


def _check(name: str, task: Task) -> None:
    x = task.clients.train.samples["x"]
    bytes_ = x.dtype == torch.uint8
    if name == "softmax":
        fits, takes = x.dim() == 2 and not bytes_, "vectors of features"
    elif name == "char-lstm":
        fits, takes = x.dim() == 2 and bytes_, "sequences of symbols"
    else:
        square = x.dim() == 4 and x.shape[1] == 3 and x.shape[2] == x.shape[3]
        fits, takes = bytes_ and square and x.shape[2] % 4 == 0, "square pictures in colour"
    if not fits:
        raise UserError(
            f"network '{name}' takes {takes}, which task '{task.name}' does not have: choose "
            f"another of {', '.join(other for other in NETWORKS if other != name)}"
        )
