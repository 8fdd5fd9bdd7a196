"""Ditto: FedAvg, beside which every client trains a personal model."""

from __future__ import annotations

from coterie.core.methods.ditto_client import DittoClient
from coterie.core.methods.fedavg import FedAvgServer
from coterie.core.methods.kit.model_server import ServerModel
from coterie.core.methods.settings.proximal import DittoSettings


class DittoServer(FedAvgServer[ServerModel]):
    """Server of Ditto (Li et al., ICML 2021, Algorithm 1), which is FedAvg's."""


__all__ = ["DittoClient", "DittoServer", "DittoSettings"]
