"""FedALA: FedAvg whose clients learn how much of the server's model they take."""

from __future__ import annotations

from coterie.core.methods.fedala_client import FedALAClient
from coterie.core.methods.fedavg import FedAvgServer
from coterie.core.methods.settings.personal import FedALASettings


class FedALAServer(FedAvgServer):
    """Server of FedALA (Zhang et al., AAAI 2023, Algorithm 1): that of FedAvg."""


__all__ = ["FedALAClient", "FedALAServer", "FedALASettings"]
