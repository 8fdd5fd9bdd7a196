"""Make a network by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from coterie.core.errors import UserError, nearest
from coterie.core.models.classifier import Classifier, SoftmaxRegression
from coterie.page.data.task import Form
from coterie.page.models.char_lstm import char_lstm
from coterie.page.models.pictures import CHANNELS, Normalise, resnet18, small_cnn
from coterie.page.settings.run import Settings
from coterie.page.settings.tasks import NETWORKS, OF_TASK


def network(settings: Settings, form: Form) -> Callable[[], Classifier]:
    """What makes the network of a run; its start is drawn from torch's generator."""
    dtype = getattr(torch, settings.engine.dtype)
    return lambda: make_model(settings.model.name, form).to(dtype)


def make_model(name: str | None, form: Form) -> Classifier:
    """Make a network for samples of a form; its start is drawn from torch's generator.

    Args:
        name: one of `coterie.page.settings.tasks.NETWORKS`; None = what the paper trains on
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
