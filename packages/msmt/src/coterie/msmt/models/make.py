"""Make a network by name."""

from __future__ import annotations

from collections.abc import Callable

import torch

from coterie.msmt.data.schema import Schema
from coterie.msmt.models.aesm2 import Aesm2
from coterie.msmt.models.aitm import Aitm
from coterie.msmt.models.base import MultiTask
from coterie.msmt.models.esmm import Esmm
from coterie.msmt.models.mmoe import MMoE
from coterie.msmt.models.pepnet import PepNet
from coterie.msmt.models.ple import Ple
from coterie.msmt.models.single_task import SingleTask
from coterie.msmt.models.star import Star
from coterie.msmt.models.template import TemplateMMoE
from coterie.msmt.settings.run import Settings

_BASELINES: dict[str, Callable[..., MultiTask]] = {
    "single-task": SingleTask,
    "mmoe": MMoE,
    "ple": Ple,
    "esmm": Esmm,
    "aitm": Aitm,
    "star": Star,
    "aesm2": Aesm2,
    "pepnet": PepNet,
}


def network(settings: Settings, schema: Schema) -> Callable[[], MultiTask]:
    """What makes the network of a run; its start is drawn from torch's generator."""
    dtype = getattr(torch, settings.engine.dtype)
    return lambda: make_model(settings, schema).to(dtype)


def make_model(settings: Settings, schema: Schema) -> MultiTask:
    """Make a network for samples of a form; its start is drawn from torch's generator.

    Raises:
        UserError: it does not suit these samples.
    """
    model, pf = settings.model, settings.pf
    if model.name == "template":
        return TemplateMMoE(schema, model, generator=pf.generator, lam=pf.lam)
    return _BASELINES[model.name](schema, model)
