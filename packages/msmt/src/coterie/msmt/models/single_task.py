"""Single-task: a network for each task, which share nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.msmt.data.schema import Schema
from coterie.msmt.models.base import Batch, MultiTask
from coterie.msmt.models.inputs import Inputs
from coterie.msmt.models.layers import expert, tower
from coterie.msmt.settings.model import ModelSettings


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
