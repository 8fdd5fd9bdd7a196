"""PF-MSMTrec's local network: experts made by a parameter template (section 3.2)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.core.tensors.device import without_autocast
from coterie.msmt.data.schema import Schema
from coterie.msmt.models.base import Batch, cross_entropy
from coterie.msmt.models.fast.design import Design
from coterie.msmt.models.fast.scenario_weight import factored_weight
from coterie.msmt.models.fast.template_maps import template_maps
from coterie.msmt.models.generators import Dense, Factored
from coterie.msmt.models.mmoe import MMoE
from coterie.msmt.settings.model import ModelSettings

GeneratorName = Literal["factored", "full", "leaf"]


class TemplateMMoE(MMoE):
    """MMoE whose experts have first layers E[t, n] = W_loc[n] * W_t[t, n] * W_s[n] (Eq. 4).

    W_loc is the client's, W_t is generated of a task's embedding, and W_s, which is what clients
    share, of the scenario's. All that is generated starts at 1, where the network is an `MMoE` with
    normalised input. An expert's further layers serve all tasks, with batch normalisation of their
    own for each.

    What the server decides arrives in buffers: W_s is generated + ``scenario_residual`` +
    ψ_n ``scenario_direction``, and a tower's parameter is p + ψ'_i p's direction; ψ learns how far
    to follow the direction (Eqs. 18 and 21).

    Args:
        schema: form of the samples.
        settings: sizes.
        generator: factored (W = 1 + v_a + u_b, a row's and a column's part), full (all numbers of
            W_t and W_s, for small networks), or leaf (factored W_t, and W_s a parameter).
        lam: λ, weight of the alignment with the anchor (Eq. 24).

    Attributes:
        weight: W_loc, ``(N, D, h1)``.
        psi: ``(N,)``.
        psi_tower: ``(T,)``.
        scenario_residual: ``(N, D, h1)``.
        scenario_direction: ``(N, D, h1)``.
        anchor: ``(N, D, h1)``, what W_s is drawn to; only where ``has_anchor`` is 1 and not 0.

    Raises:
        UserError: the generator is full and the network not small.
    """

    scenario_residual: Tensor
    scenario_direction: Tensor
    anchor: Tensor
    has_anchor: Tensor

    def __init__(
        self,
        schema: Schema,
        settings: ModelSettings,
        *,
        generator: GeneratorName = "factored",
        lam: float = 0.5,
    ) -> None:
        super().__init__(schema, settings, input_norm=True)
        self.lam = lam
        n_experts, *shape = self.weight.shape
        kind = Dense if generator == "full" else Factored
        self.task_generator = kind(schema.n_tasks, n_experts, shape)
        self.scenario_generator = None if generator == "leaf" else kind(1, n_experts, shape)
        if generator == "leaf":
            self.scenario = nn.Parameter(torch.ones_like(self.weight))
        self.psi = nn.Parameter(torch.zeros(n_experts))
        self.psi_tower = nn.Parameter(torch.zeros(schema.n_tasks))
        for name in ("scenario_residual", "scenario_direction", "anchor"):
            self.register_buffer(name, torch.zeros_like(self.weight))
        self.register_buffer("has_anchor", torch.tensor(0.0))
        for name, parameter in self.towers.named_parameters():
            self.register_buffer(direction_name(name), torch.zeros_like(parameter))

    @property
    def networks(self) -> tuple[int, ...]:
        """Shape of the experts that are run side by side."""
        return (self.schema.n_tasks, self.settings.experts)

    def scenario_generated(self) -> Tensor:
        """W_s without what the server sent, ``(N, D, h1)``."""
        if self.scenario_generator is None:
            return self.scenario
        return self.scenario_generator.weights()[0]

    def scenario_weight(self) -> Tensor:
        """W_s, ``(N, D, h1)``."""
        return self._aligned(self.anchor)[0]

    def tower_parameters(self) -> dict[str, Tensor]:
        """Parameters of the towers, each ``(T, ...)``, with what ψ' makes of their directions."""
        buffers = dict(self.named_buffers(recurse=False))
        return {
            name: torch.addcmul(
                parameter,
                self.psi_tower.view(-1, *[1] * (parameter.dim() - 1)),
                buffers[direction_name(name)],
            )
            for name, parameter in self.towers.named_parameters()
        }

    def logits(self, batch: Batch) -> Tensor:
        """Logits of the tasks' probabilities, ``(B, T)``.

        Raises:
            ValueError: the batch has one sample, in training.
        """
        with without_autocast():
            return self._logits(batch, self.scenario_weight())

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy, and λ times the alignment if there is an anchor (Eq. 24)."""
        with without_autocast():
            scenario, apart = self._aligned(self.anchor)
            logits = self._logits(batch, scenario)
            loss = cross_entropy(logits, batch["labels"].to(logits.dtype))
            return loss + self.lam * self.has_anchor * apart

    def alignment(self, anchor: Tensor) -> Tensor:
        """How far W_s is from an anchor: the sum over experts of the mean square (Eq. 23).

        Args:
            anchor: ``(N, D, h1)``, or ``(D, h1)`` for all experts.
        """
        return self._aligned(anchor.expand_as(self.weight))[1]

    def _aligned(self, anchor: Tensor) -> tuple[Tensor, Tensor]:
        """W_s, and how far it is from an anchor ``(N, D, h1)``."""
        sent = self.scenario_residual, self.psi, self.scenario_direction
        if isinstance(self.scenario_generator, Factored):
            rows, columns = self.scenario_generator.factors()
            return factored_weight(rows[0], columns[0], *sent, anchor)
        residual, psi, direction = sent
        found = self.scenario_generated() + residual + psi[:, None, None] * direction
        return found, (found - anchor).square().mean((1, 2)).sum()

    def _logits(self, batch: Batch, scenario: Tensor) -> Tensor:
        design = self.design(batch)
        return self.outputs(design, *self._maps(design, scenario))

    def _maps(self, design: Design, scenario: Tensor) -> tuple[Tensor, Tensor | None]:
        """Give the first layers' maps of the design, as `Design.maps`."""
        if isinstance(self.task_generator, Dense):
            weights = self.weight * scenario * self.task_generator.weights()
            return design.maps(weights.flatten(0, 1))
        rows, columns = self.task_generator.factors()
        return design.split(
            template_maps(self.weight, scenario, columns, rows, design.tables, design.parts)
        )

    def tower_logits(self, x: Tensor) -> Tensor:
        """Logits ``(B, T)`` of what the gates make of the experts, ``(T, h, B)``."""
        logits: Tensor = functional_call(self.towers, self.tower_parameters(), (x,))
        return logits


def direction_name(name: str) -> str:
    """Name of the buffer with the direction of a tower's parameter."""
    return f"tower_{name.removeprefix('towers.').replace('.', '_')}_direction"
