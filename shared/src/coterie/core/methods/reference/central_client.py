"""The client half of central training: a client only measures the server's model."""

from __future__ import annotations

import torch

from coterie.core.methods.kit.model_client import GlobalModel, ModelClient, OwnModel


class CentralClient(ModelClient[OwnModel]):
    """Client that trains nothing, keeps nothing, and evaluates."""

    def newcomers(self, n_clients: int) -> OwnModel:
        """Private state: nothing."""
        return OwnModel({}, torch.zeros(n_clients, dtype=torch.int64))


__all__ = ["CentralClient", "GlobalModel", "OwnModel"]
