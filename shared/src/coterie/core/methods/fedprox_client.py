"""The client half of FedProx: local training held near the server's model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from coterie.core.methods.fedavg_client import FedAvgClient
from coterie.core.methods.kit.local_sgd import towards
from coterie.core.methods.settings.fedavg import FedProxSettings


class FedProxClient(FedAvgClient):
    """Client of FedProx (Li et al., MLSys 2020, Algorithm 2) for any module.

    It minimises h_k(w; wᵗ) = F_k(w) + μ/2 ‖w - wᵗ‖² (Eq. 2).
    """

    def __init__(
        self,
        module: nn.Module,
        settings: FedProxSettings,
        as_batch: Callable[[dict[str, Tensor]], Any] | None = None,
    ) -> None:
        super().__init__(module, settings, as_batch)
        self.pull = towards(settings.mu)
