"""FedProx: FedAvg with a proximal term in the clients' objective."""

from __future__ import annotations

from coterie.core.methods.fedavg import FedAvgServer
from coterie.core.methods.fedprox_client import FedProxClient
from coterie.core.methods.settings.fedavg import FedProxSettings


class FedProxServer(FedAvgServer):
    """Server of FedProx (Li et al., MLSys 2020, Algorithm 2).

    The paper draws clients with probability n_k / n and averages them evenly; here they are drawn
    evenly and weighted by n_k, the other of the two schemes it names and the one of FedAvg, so that
    the methods differ in the proximal term alone.
    """


__all__ = ["FedProxClient", "FedProxServer", "FedProxSettings"]
