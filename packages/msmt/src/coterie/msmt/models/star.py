"""STAR: the weights of a scenario are weights that all share, times its own."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from coterie.msmt.data.schema import Schema
from coterie.msmt.models.base import Batch, MultiTask
from coterie.msmt.models.inputs import Inputs, ScenarioEmbedding
from coterie.msmt.models.layers import mlp
from coterie.msmt.models.partitioned_norm import PartitionedNorm
from coterie.msmt.settings.model import ModelSettings


class Star(MultiTask):
    """Star topology adaptive recommender (Sheng et al., CIKM 2021), with a tower for each task.

    The input passes a partitioned normalisation, then star layers: an expert that the tasks share
    and a tower each, all weights of which are W_p ⊗ W for scenario p. An auxiliary network, which
    sees the embeddings and the scenario's, adds to the logits.

    Readings: where `ModelSettings.mlp_norm` is on, hidden star layers have a partitioned
    normalisation too, so that no statistic mixes scenarios; the last layer is linear and nothing
    else. At the start W_p = 1 and b_p = 0, thus all scenarios are equal there but for what the
    auxiliary network adds. `ModelSettings.experts` has no meaning here.

    Args:
        schema: form of the samples.
        settings: sizes; the auxiliary network has the hidden layers of a tower.
    """

    def __init__(self, schema: Schema, settings: ModelSettings) -> None:
        super().__init__(schema)
        self.inputs = Inputs(schema, settings.embedding)
        n_features, width = self.inputs.n_features, settings.expert_layers[-1]
        self.norm = PartitionedNorm(n_features, schema.n_scenarios)
        self.expert = StarMlp(n_features, settings.expert_layers, schema.n_scenarios, settings)
        self.towers = nn.ModuleList(
            StarTower(width, schema.n_scenarios, settings) for _ in schema.tasks
        )
        self.scenario = ScenarioEmbedding(schema, settings.embedding)
        self.auxiliary = nn.Sequential(
            *mlp(
                n_features + settings.embedding,
                settings.tower_layers,
                settings.dropout,
                settings.mlp_norm,
            ),
            nn.Linear(settings.tower_layers[-1], schema.n_tasks),
        )

    def logits(self, batch: Batch) -> Tensor:
        """Logits of the tasks' probabilities, ``(B, T)``."""
        x, scenario = self.inputs(batch), batch["scenario"]
        beside: Tensor = self.auxiliary(torch.cat([x, self.scenario(scenario)], dim=1))
        return self.star_logits(x, scenario) + beside

    def star_logits(self, x: Tensor, scenario: Tensor) -> Tensor:
        """What the star layers add to the logits.

        Args:
            x: ``(B, D)`` embeddings.
            scenario: ``(B,)`` int64.

        Returns:
            ``(B, T)``.
        """
        hidden = self.expert(self.norm(x, scenario), scenario)
        return torch.cat([tower(hidden, scenario) for tower in self.towers], dim=1)


class StarLinear(nn.Module):
    """A linear layer whose weights are W_p ⊗ W and b_p + b for samples of scenario p.

    Args:
        n_in: length of the input.
        n_out: units.
        n_scenarios: S.
    """

    def __init__(self, n_in: int, n_out: int, n_scenarios: int) -> None:
        super().__init__()
        self.shared = nn.Linear(n_in, n_out)
        self.own_weight = nn.Parameter(torch.ones(n_scenarios, n_out, n_in))
        self.own_bias = nn.Parameter(torch.zeros(n_scenarios, n_out))

    def forward(self, x: Tensor, scenario: Tensor) -> Tensor:
        """Map ``(B, n_in)`` to ``(B, n_out)``, each row by its scenario's weights."""
        weights, biases = self.own_weight.unbind(), self.own_bias.unbind()
        there = scenario.unique().tolist() or [0]  # no rows: none of any scenario
        rows = [(scenario == p).nonzero().squeeze(1) for p in there]
        found = [
            nn.functional.linear(
                x[mine], weights[p] * self.shared.weight, biases[p] + self.shared.bias
            )
            for p, mine in zip(there, rows, strict=True)
        ]
        return torch.cat(found)[torch.cat(rows).argsort()]


class StarMlp(nn.Module):
    """Star layers, each with partitioned normalisation, ReLU and dropout behind it.

    Args:
        n_in: length of the input.
        widths: units of the layers.
        n_scenarios: S.
        settings: dropout, and whether there is normalisation.
    """

    def __init__(
        self, n_in: int, widths: Iterable[int], n_scenarios: int, settings: ModelSettings
    ) -> None:
        super().__init__()
        self.layers, self.norms = nn.ModuleList(), nn.ModuleList()
        for width in widths:
            self.layers.append(StarLinear(n_in, width, n_scenarios))
            if settings.mlp_norm:
                self.norms.append(PartitionedNorm(width, n_scenarios))
            n_in = width
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x: Tensor, scenario: Tensor) -> Tensor:
        """Map ``(B, n_in)`` to ``(B, widths[-1])``."""
        for number, layer in enumerate(self.layers):
            x = layer(x, scenario)
            if self.norms:
                x = self.norms[number](x, scenario)
            x = self.dropout(x.relu())
        return x


class StarTower(nn.Module):
    """Hidden star layers and a linear star unit.

    Args:
        n_in: length of the input.
        n_scenarios: S.
        settings: sizes of the hidden layers.
    """

    def __init__(self, n_in: int, n_scenarios: int, settings: ModelSettings) -> None:
        super().__init__()
        self.hidden = StarMlp(n_in, settings.tower_layers, n_scenarios, settings)
        self.unit = StarLinear(settings.tower_layers[-1], 1, n_scenarios)

    def forward(self, x: Tensor, scenario: Tensor) -> Tensor:
        """Logits ``(B, 1)``."""
        found: Tensor = self.unit(self.hidden(x, scenario), scenario)
        return found
