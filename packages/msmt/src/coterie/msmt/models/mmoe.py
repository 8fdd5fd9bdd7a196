"""Multi-gate mixture of experts (Ma et al., KDD 2018), made for speed."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from coterie.core.tensors.device import without_autocast
from coterie.msmt.data.task import Schema
from coterie.msmt.models.base import Batch, Inputs, MultiTask
from coterie.msmt.models.fast.fields import Design, Plan, design_of, fields_of
from coterie.msmt.models.fast.layers import Gates, Hidden, HiddenLayer, Towers, mixed, uniform
from coterie.msmt.models.fast.norm import InputNorm
from coterie.msmt.settings import ModelSettings


class MMoE(MultiTask):
    """N experts that all tasks share, a gate and a tower for each task.

    In the way of MTReclib: experts and gates see the embeddings of all fields end to end, layers
    are linear, batch normalisation, ReLU, dropout. Everything is computed feature-major, all
    networks side by side, and the first layer on projected tables
    (`coterie.msmt.models.fast.projection`).

    Args:
        schema: form of the samples.
        settings: sizes.
        input_norm: whether the experts' and gates' input is normalised (Eq. 2).

    Attributes:
        weight: of the experts' first layers, ``(N, D, h1)``.
    """

    def __init__(
        self, schema: Schema, settings: ModelSettings, *, input_norm: bool = False
    ) -> None:
        super().__init__(schema)
        self.settings = settings
        self.inputs = Inputs(schema, settings.embedding)
        self.plan = Plan(schema.vocabularies, schema.n_numbers, settings.embedding)
        self.input_norm = InputNorm(self.plan) if input_norm else None
        n_in, first = self.inputs.n_features, settings.expert_layers[0]
        weights, networks = (settings.experts,), self.networks
        how = settings.dropout, settings.mlp_norm
        self.gates = Gates(n_in, schema.n_tasks, settings.experts)
        self.weight = uniform(*weights, n_in, first, n_in=n_in)
        self.first = Hidden(networks, networks, n_in, first, *how)
        ends = pairwise(settings.expert_layers)
        self.rest = nn.Sequential(*(HiddenLayer(networks, weights, *pair, *how) for pair in ends))
        last = settings.expert_layers[-1]
        self.towers = Towers(schema.n_tasks, last, settings.tower_layers, *how)

    @property
    def networks(self) -> tuple[int, ...]:
        """Shape of the experts that are run side by side."""
        return (self.settings.experts,)

    def design(self, batch: Batch) -> Design:
        """Input of experts and gates."""
        fields = fields_of(self.plan, self.inputs, batch)
        if self.input_norm is not None:
            fields = self.input_norm(fields)
        return design_of(self.plan, fields)

    def logits(self, batch: Batch) -> Tensor:
        """Logits of the tasks' probabilities, ``(B, T)``.

        Raises:
            ValueError: in training, there is normalisation and the batch has one sample.
        """
        with without_autocast():  # layers write in place, in the format of the parameters
            design = self.design(batch)
            return self.outputs(design, *design.maps(self.weight))

    def outputs(self, design: Design, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Run everything behind the experts' first linear maps.

        Args:
            design: the input.
            weight: of the maps of all G experts on the design, ``(G, h1, K)``.
            bias: of the maps, ``(G, h1)``; None = zeros.

        Returns:
            Logits ``(B, T)``.
        """
        bias = None if bias is None else bias.view(*self.networks, -1)
        found = self.rest(self.first.run(design.m, weight, bias, design.fixed))
        experts = found.unflatten(0, self.networks)
        return self.tower_logits(mixed(self.gates(design), experts))

    def tower_logits(self, x: Tensor) -> Tensor:
        """Logits ``(B, T)`` of what the gates make of the experts, ``(T, h, B)``."""
        logits: Tensor = self.towers(x)
        return logits
