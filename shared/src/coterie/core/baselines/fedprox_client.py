"""The client half of FedProx: local training held near the server's model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from coterie.core.baselines.fedavg_client import FedAvgClient, GlobalModel
from coterie.core.baselines.settings import FedProxSettings
from coterie.core.local import Batch, Loss, Params


class FedProxClient(FedAvgClient):
    """Client of FedProx (Li et al., MLSys 2020, Algorithm 2) for any module.

    Args:
        module: see `FedAvgClient`.
        settings: of the method.
        as_batch: see `FedAvgClient`.
    """

    def __init__(
        self,
        module: nn.Module,
        settings: FedProxSettings,
        as_batch: Callable[[dict[str, Tensor]], Any] | None = None,
    ) -> None:
        super().__init__(module, settings, as_batch)
        self.mu = settings.mu

    def objective(self, down: GlobalModel) -> Loss:
        """What a client minimises: h_k(w; wᵗ) = F_k(w) + μ/2 ‖w - wᵗ‖² (Eq. 2)."""

        def loss(params: Params, batch: Batch) -> Tensor:
            squares = [(w - down.weights[name]).square().sum() for name, w in params.items()]
            return self._loss(params, batch) + 0.5 * self.mu * sum(squares)

        return loss
