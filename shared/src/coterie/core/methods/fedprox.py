"""FedProx: FedAvg with a proximal term in the clients' objective."""

from __future__ import annotations

from coterie.core.local_training.gradients import Pull, towards
from coterie.core.methods.fedavg import FedAvgClient
from coterie.core.methods.settings.any_module import FedProxSettings


class FedProxClient(FedAvgClient):
    """Client of FedProx (Li et al., MLSys 2020, Algorithm 2) for any module.

    It minimises h_k(w; wᵗ) = F_k(w) + μ/2 ‖w - wᵗ‖² (Eq. 2). The server is FedAvg's: the paper
    draws clients with probability n_k / n and averages them evenly; here they are drawn evenly and
    weighted by n_k, the other of the two schemes it names and the one of FedAvg, so that the
    methods differ in the proximal term alone.
    """

    settings: FedProxSettings

    @property
    def pull(self) -> Pull:
        """μ (w - wᵗ)."""
        return towards(self.settings.mu)
