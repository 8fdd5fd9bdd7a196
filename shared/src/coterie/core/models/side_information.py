"""What is known of users and items beside who had what: profiles, genres."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from coterie.core.models.layers import hidden_layer


@dataclass(frozen=True)
class Sides:
    """Features of all users and of all items, where there are any.

    Attributes:
        users: ``(n_users, d_u)`` or None.
        items: ``(n_items, d_i)`` or None.
    """

    users: Tensor | None = None
    items: Tensor | None = None

    def __len__(self) -> int:
        return sum(features is not None for features in (self.users, self.items))


NO_SIDES = Sides()
"""Nothing is known but who had what."""


class SideMap(nn.Module):
    """Features x of users or items, mapped by a linear layer to W x + b.

    The features are constants: they are in no state dict, and nothing trains them.

    Args:
        features: ``(n, d)``.
        dim: width of what is given.
    """

    features: Tensor

    def __init__(self, features: Tensor, dim: int) -> None:
        super().__init__()
        self.register_buffer("features", features, persistent=False)
        self.map = hidden_layer(features.shape[1], dim)

    def forward(self, number: Tensor | None) -> Tensor:
        """Map those of some numbers, ``(...)`` -> ``(..., dim)``; None = of all, ``(n, dim)``."""
        mapped: Tensor = self.map(self.features if number is None else self.features[number])
        return mapped


def side_map(features: Tensor | None, dim: int) -> SideMap | None:
    """Make a map drawn by torch's current generator; None where nothing is known."""
    return None if features is None else SideMap(features, dim)
