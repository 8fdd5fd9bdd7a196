"""Multi-gate mixture of experts (Ma et al., KDD 2018), made for speed."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from coterie.msmt.data.schema import Schema
from coterie.msmt.models.base import Batch, MultiTask
from coterie.msmt.models.fast.design import Design, design_of
from coterie.msmt.models.fast.fields import Plan, fields_of
from coterie.msmt.models.fast.input_norm import InputNorm
from coterie.msmt.models.fast.layers import Gates, Hidden, HiddenLayer, Towers, uniform
from coterie.msmt.models.fast.mixing import mixed
from coterie.msmt.models.inputs import Inputs
from coterie.msmt.settings.model import ModelSettings


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

    def first_weight(self) -> Tensor:
        """Weights of the first layers, ``(G, D, h1)`` of G experts."""
        return self.weight

    def design(self, batch: Batch) -> Design:
        """Input of experts and gates."""
        fields = fields_of(self.plan, self.inputs, batch)
        if self.input_norm is not None:
            fields = self.input_norm(fields)
        return design_of(self.plan, fields)

    def experts(self, design: Design) -> Tensor:
        """What the experts give, ``(*networks, h, B)``."""
        weight, bias = design.maps(self.first_weight())
        bias = None if bias is None else bias.view(*self.networks, -1)
        found = self.first.run(design.m, weight, bias, design.fixed)
        return self.rest(found).unflatten(0, self.networks)

    def logits(self, batch: Batch) -> Tensor:
        """Logits of the tasks' probabilities, ``(B, T)``.

        Raises:
            ValueError: in training, there is normalisation and the batch has one sample.
        """
        design = self.design(batch)
        return self.towers(mixed(self.gates(design), self.experts(design)))
