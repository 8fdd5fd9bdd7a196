"""Make a network by name; the simplest, a network for each task, is here."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from coterie.msmt.data.task import Schema
from coterie.msmt.models.aesm2 import Aesm2
from coterie.msmt.models.base import Batch, Inputs, MultiTask, expert, tower
from coterie.msmt.models.funnel import Aitm, Esmm
from coterie.msmt.models.mmoe import MMoE
from coterie.msmt.models.pepnet import PepNet
from coterie.msmt.models.ple import Ple
from coterie.msmt.models.star import Star
from coterie.msmt.models.template import TemplateMMoE
from coterie.msmt.settings import ModelSettings, Settings


class OneTask(nn.Module):
    """The network of one task: embeddings, one expert, one tower."""

    def __init__(self, schema: Schema, settings: ModelSettings) -> None:
        super().__init__()
        self.inputs = Inputs(schema, settings.embedding)
        self.expert = expert(self.inputs.n_features, settings)
        self.tower = tower(settings.expert_layers[-1], settings)

    def forward(self, batch: Batch) -> Tensor:
        """Logits of the task, ``(B, 1)``."""
        found: Tensor = self.tower(self.expert(self.inputs(batch)))
        return found


class SingleTask(MultiTask):
    """A network for each task, with embeddings of its own.

    PF-MSMTrec, section 4.1.4: "two separate expert networks and two separate tower networks".
    `ModelSettings.experts` has no meaning here.
    """

    def __init__(self, schema: Schema, settings: ModelSettings) -> None:
        super().__init__(schema)
        self.tasks = nn.ModuleList(OneTask(schema, settings) for _ in schema.tasks)

    def logits(self, batch: Batch) -> Tensor:
        """Logits of the tasks' probabilities, ``(B, T)``."""
        return torch.cat([task(batch) for task in self.tasks], dim=1)


# Make a network by name.

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
