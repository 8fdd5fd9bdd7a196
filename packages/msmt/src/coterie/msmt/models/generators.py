"""Networks that generate the template's parameters from an embedding (Eq. 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.msmt.models.fast.layers import uniform

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
