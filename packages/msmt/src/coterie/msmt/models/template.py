"""PF-MSMTrec's local network: experts made by a template, and what scenarios share of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.core.errors import UserError
from coterie.core.local_training.row_optimizer import Params
from coterie.core.tensors.device import without_autocast
from coterie.msmt.data.task import Schema
from coterie.msmt.models.base import Batch, cross_entropy
from coterie.msmt.models.fast.fields import Design
from coterie.msmt.models.fast.layers import uniform
from coterie.msmt.models.fast.template import factored_weight, template_maps
from coterie.msmt.models.mmoe import MMoE
from coterie.msmt.settings import ModelSettings

EMBEDDING, HIDDEN = 16, 32
DENSE_LIMIT = 20_000_000
"""Most parameters in the heads of a dense generator."""


class Generator(nn.Module):
    """Embeddings, and for each expert a network "dedicated" to it that makes numbers of them.

    The last layer starts at zero, hence so does everything generated.

    Args:
        n_embeddings: V, of tasks, or 1 for the client's scenario.
        n_experts: N.
        n_outputs: numbers that are generated for an expert.

    Attributes:
        embedding: ``(V, 16)``, standard normal at first.

    Example:
        >>> Generator(2, 4, 10)().shape
        torch.Size([2, 4, 10])
    """

    def __init__(self, n_embeddings: int, n_experts: int, n_outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(n_embeddings, EMBEDDING))
        self.weight = uniform(n_experts, EMBEDDING, HIDDEN, n_in=EMBEDDING)
        self.bias = uniform(n_experts, 1, HIDDEN, n_in=EMBEDDING)
        self.head = nn.Parameter(torch.zeros(n_experts, HIDDEN, n_outputs))
        self.head_bias = nn.Parameter(torch.zeros(n_experts, 1, n_outputs))

    def forward(self) -> Tensor:
        """Generate numbers, ``(V, N, n_outputs)``."""
        inner = torch.relu(self.embedding @ self.weight + self.bias)
        return torch.baddbmm(self.head_bias, inner, self.head).transpose(0, 1)


class Factored(Generator):
    """Generates the factors of weights 1 + v_a + u_b, D + h numbers instead of D h.

    Args:
        n_embeddings: V.
        n_experts: N.
        shape: (D, h) of the weights.
    """

    def __init__(self, n_embeddings: int, n_experts: int, shape: Sequence[int]) -> None:
        super().__init__(n_embeddings, n_experts, sum(shape))
        self.shape = tuple(shape)

    def factors(self) -> tuple[Tensor, Tensor]:
        """Generate v ``(V, N, D)`` and u ``(V, N, h)``."""
        rows, columns = self().split(self.shape, dim=-1)
        return rows, columns

    def weights(self) -> Tensor:
        """Generate weights ``(V, N, D, h)``."""
        rows, columns = self.factors()
        return rows[..., None] + (1 + columns[..., None, :])


class Dense(Generator):
    """Generates all D h numbers of a weight, as Eq. 3 reads; for small networks.

    Args:
        n_embeddings: V.
        n_experts: N.
        shape: (D, h) of the weights.

    Raises:
        UserError: the heads would have more than 20 million parameters.
    """

    def __init__(self, n_embeddings: int, n_experts: int, shape: Sequence[int]) -> None:
        size = n_experts * (HIDDEN + 1) * math.prod(shape)
        if size > DENSE_LIMIT:
            raise UserError(
                f"the generator 'full' would have {size:,} parameters, more than "
                f"{DENSE_LIMIT:,}: take 'factored'"
            )
        super().__init__(n_embeddings, n_experts, math.prod(shape))
        self.shape = tuple(shape)

    def weights(self) -> Tensor:
        """Generate weights ``(V, N, D, h)``."""
        return 1 + self().unflatten(-1, self.shape)


# PF-MSMTrec's local network: experts made by a parameter template (section 3.2).

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


# What scenarios share of the experts' first layers: W_s, all its numbers or its factors.


class ScenarioPart(ABC):
    """How W_s = generated + residual + ψ U* is written as a tree of parameters ``(N, ...)``."""

    def __init__(self, module: TemplateMMoE) -> None:
        self._generated = _Generated(module)

    def generated(self, params: Params) -> Params:
        """What a network of one scenario generates by its parameters."""
        named = {f"module.{name}": value for name, value in params.items()}
        return self.tree(functional_call(self._generated, named, ()))

    @abstractmethod
    def tree(self, generated: tuple[Tensor, ...]) -> Params:
        """Name what was generated."""

    @abstractmethod
    def spread(self, tree: Params) -> Tensor:
        """Give changes of W_s, ``(..., N, D, h1)``, of a tree ``(..., N, ...)``."""

    def whole(self, tree: Params) -> Tensor:
        """Give W_s itself."""
        return self.spread(tree)


class FullPart(ScenarioPart):
    """All D h1 numbers of each expert's W_s."""

    def tree(self, generated: tuple[Tensor, ...]) -> Params:
        """Name W_s."""
        return {"scenario": generated[0]}

    def spread(self, tree: Params) -> Tensor:
        """Give them as they are."""
        return tree["scenario"]


class FactoredPart(ScenarioPart):
    """The factors v and u of W_s = 1 + v_a + u_b: D + h1 numbers of each expert.

    Raises:
        UserError: the network's generator makes no factors.
    """

    def __init__(self, module: TemplateMMoE) -> None:
        if not isinstance(module.scenario_generator, Factored):
            raise UserError(
                "'pf.upload' factored needs factors to upload: set pf.generator to factored"
            )
        super().__init__(module)

    def tree(self, generated: tuple[Tensor, ...]) -> Params:
        """Name v and u."""
        return {"scenario.rows": generated[1], "scenario.columns": generated[2]}

    def spread(self, tree: Params) -> Tensor:
        """Add rows and columns."""
        return tree["scenario.rows"][..., None] + tree["scenario.columns"][..., None, :]

    def whole(self, tree: Params) -> Tensor:
        """Add the 1 around which the factors are."""
        return 1 + self.spread(tree)


def scenario_part(module: TemplateMMoE, upload: Literal["full", "factored"]) -> ScenarioPart:
    """Make the part by what is uploaded."""
    return FullPart(module) if upload == "full" else FactoredPart(module)


class _Generated(nn.Module):
    def __init__(self, module: TemplateMMoE) -> None:
        super().__init__()
        self.module = module

    @torch.no_grad()
    def forward(self) -> tuple[Tensor, ...]:
        """W_s ``(N, D, h1)``, and its factors where it has any, ``(N, D)`` and ``(N, h1)``."""
        generator = self.module.scenario_generator
        if not isinstance(generator, Factored):
            return (self.module.scenario_generated(),)
        rows, columns = generator.factors()
        return self.module.scenario_generated(), rows[0], columns[0]
