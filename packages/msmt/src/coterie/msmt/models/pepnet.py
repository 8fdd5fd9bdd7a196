"""PEPNet: gates that see the scenario scale the embeddings and the hidden units of each task."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.msmt.data.task import Schema
from coterie.msmt.models.base import Batch, Inputs, MultiTask, ScenarioEmbedding, mlp
from coterie.msmt.settings import ModelSettings


class PepNet(MultiTask):
    """Parameter and embedding personalised network (Chang et al., KDD 2023).

    EPNet: O = GateNU([scenario; sg(E)]) ⊗ E, where E are the embeddings and sg stops gradients.
    PPNet: each task has a multi-layer perceptron over O, and before its layer l a gate
    GateNU([prior; sg(O)]) scales what comes in; one gate network a layer serves all tasks.

    Readings: a schema does not name the user's, the item's and the author's fields of the paper's
    prior, so the prior is the scenario's embedding. A task's layers are those of an expert and of a
    tower. `ModelSettings.experts` has no meaning here. PF-MSMTrec's own words on its PEPNet (a
    gate network replaced by such gates, an element-wise attention on the input) leave its form
    open; this is PEPNet as its authors have it.

    Args:
        schema: form of the samples.
        settings: sizes.
        gate_units: hidden units of each gate network; None = as many as a task's input has.
    """

    def __init__(
        self, schema: Schema, settings: ModelSettings, gate_units: int | None = None
    ) -> None:
        super().__init__(schema)
        self.inputs = Inputs(schema, settings.embedding)
        self.scenario = ScenarioEmbedding(schema, settings.embedding)
        n_features, n_tasks = self.inputs.n_features, schema.n_tasks
        n_seen = settings.embedding + n_features
        widths = (n_features, *settings.expert_layers, *settings.tower_layers)
        self.embedding_gate = GateNU(n_seen, n_features, gate_units or n_features)
        self.layers = nn.ModuleList(
            PersonalLayer(n_seen, n_in, n_out, settings, n_tasks, gate_units)
            for n_in, n_out in zip(widths, [*widths[1:], None], strict=True)
        )

    def logits(self, batch: Batch) -> Tensor:
        """Logits of the tasks' probabilities, ``(B, T)``."""
        embeddings, scenario = self.inputs(batch), self.scenario(batch["scenario"])
        gate = self.embedding_gate(torch.cat([scenario, embeddings.detach()], dim=1))
        personal = gate * embeddings
        seen = torch.cat([scenario, personal.detach()], dim=1)
        streams = [personal] * self.schema.n_tasks
        for layer in self.layers:
            streams = layer(seen, streams)
        return torch.cat(streams, dim=1)


class PersonalLayer(nn.Module):
    """A layer of PPNet: a gate network, and a layer of each task.

    Args:
        n_seen: length of what the gate network sees.
        n_in: length of a task's stream.
        n_out: units of a task's layer; None = a single linear unit, the last layer.
        settings: dropout, and whether there is batch normalisation.
        n_tasks: T.
        gate_units: hidden units of the gate network; None = ``n_in``.
    """

    def __init__(
        self,
        n_seen: int,
        n_in: int,
        n_out: int | None,
        settings: ModelSettings,
        n_tasks: int,
        gate_units: int | None,
    ) -> None:
        super().__init__()
        self.gate = GateNU(n_seen, n_tasks * n_in, gate_units or n_in)
        self.tasks = nn.ModuleList(
            nn.Linear(n_in, 1)
            if n_out is None
            else mlp(n_in, [n_out], settings.dropout, settings.mlp_norm)
            for _ in range(n_tasks)
        )

    def forward(self, seen: Tensor, streams: list[Tensor]) -> list[Tensor]:
        """Scale the tasks' streams, T times ``(B, n_in)``, and send them through their layers."""
        gates = self.gate(seen).chunk(len(streams), dim=1)
        return [
            layer(gate * stream)
            for layer, gate, stream in zip(self.tasks, gates, streams, strict=True)
        ]


class GateNU(nn.Module):
    """Gate neural unit: 2 σ(W2 relu(W1 x + b1) + b2), numbers from 0 to 2 that scale something.

    Args:
        n_in: length of what it sees.
        n_out: length of what it scales.
        units: hidden units.

    Example:
        >>> GateNU(3, 2, 4)(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(self, n_in: int, n_out: int, units: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(n_in, units)
        self.out = nn.Linear(units, n_out)

    def forward(self, x: Tensor) -> Tensor:
        """Gates ``(B, n_out)`` of what is seen, ``(B, n_in)``."""
        found: Tensor = 2 * self.out(self.hidden(x).relu()).sigmoid()
        return found
