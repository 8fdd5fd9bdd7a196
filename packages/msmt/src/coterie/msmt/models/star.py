"""STAR: the weights of a scenario are weights that all share, times its own."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from coterie.msmt.data.task import Schema
from coterie.msmt.models.base import Batch, Inputs, MultiTask, ScenarioEmbedding, mlp
from coterie.msmt.settings import ModelSettings


class PartitionedNorm(nn.Module):
    """Partitioned normalisation (Sheng et al., CIKM 2021).

    z' = (γ γ_p)(z - μ_p)/√(σ²_p + ε) + (β + β_p) for a sample of scenario p; μ_p and σ²_p are in
    training those of the batch's samples of p, in evaluation their moving averages.

    Of a scenario with a single sample in a batch there is no variance: that sample is normalised
    by the moving averages, in training too, and does not change them.

    Args:
        n: length of what is normalised.
        n_scenarios: S.
        momentum: weight of a batch in the moving averages.
        epsilon: ε.

    Attributes:
        running_mean: ``(S, n)``, moving averages of μ_p.
        running_var: ``(S, n)``, those of the unbiased variance, as in ``nn.BatchNorm1d``.
        num_batches_tracked: ``(S,)`` int64, how many batches went into those of each scenario.

    Example:
        >>> norm = PartitionedNorm(1, 2)
        >>> z, scenario = torch.tensor([[1.0], [3.0], [50.0]]), torch.tensor([0, 0, 1])
        >>> norm(z, scenario).detach().round()
        tensor([[-1.],
                [ 1.],
                [50.]])
        >>> norm.num_batches_tracked
        tensor([1, 0])
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self, n: int, n_scenarios: int, momentum: float = 0.1, epsilon: float = 1e-5
    ) -> None:
        super().__init__()
        self.momentum, self.epsilon = momentum, epsilon
        self.scale, self.shift = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n))
        self.own_scale = nn.Parameter(torch.ones(n_scenarios, n))
        self.own_shift = nn.Parameter(torch.zeros(n_scenarios, n))
        self.register_buffer("running_mean", torch.zeros(n_scenarios, n))
        self.register_buffer("running_var", torch.ones(n_scenarios, n))
        self.register_buffer("num_batches_tracked", torch.zeros(n_scenarios, dtype=torch.int64))

    def forward(self, z: Tensor, scenario: Tensor) -> Tensor:
        """Normalise ``(B, n)``, samples of the scenarios ``(B,)`` int64."""
        mean, var = self.running_mean, self.running_var
        if self.training:
            mean, var = self._of_batch(z, scenario)
        z = (z - mean[scenario]) * (var + self.epsilon).rsqrt()[scenario]
        return z * (self.scale * self.own_scale)[scenario] + (self.shift + self.own_shift)[scenario]

    def _of_batch(self, z: Tensor, scenario: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance ``(S, n)`` of each scenario's samples; moves the averages there."""
        belongs = nn.functional.one_hot(scenario, len(self.running_mean)).to(z.dtype)
        count = belongs.sum(0).unsqueeze(1)
        mean = (belongs.T @ z) / count.clamp(min=1)
        var = (belongs.T @ (z - mean[scenario]).square()) / count.clamp(min=1)
        enough = count > 1
        found = (
            torch.where(enough, mean, self.running_mean),
            torch.where(enough, var, self.running_var),
        )
        with torch.no_grad():
            share = self.momentum * enough.to(z.dtype)
            unbiased = var * count / (count - 1).clamp(min=1)
            self.running_mean.add_(share * (mean - self.running_mean))
            self.running_var.add_(share * (unbiased - self.running_var))
            self.num_batches_tracked.add_(enough.squeeze(1))
        return found


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
