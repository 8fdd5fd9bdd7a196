"""What scenarios share of the experts' first layers: W_s, all its numbers or its factors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.core.errors import UserError
from coterie.core.local_training.row_optimizer import Params
from coterie.msmt.models.generators import Factored
from coterie.msmt.models.template import TemplateMMoE


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
