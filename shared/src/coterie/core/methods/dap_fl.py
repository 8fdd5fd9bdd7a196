"""Dap-FL: FedAvg whose clients choose their learning rate and number of epochs themselves."""

from __future__ import annotations

from typing import Any

from coterie.core.methods.dap_fl_client import DapFLClient
from coterie.core.methods.dap_fl_settings import DapFLSettings
from coterie.core.methods.divergence import told_divergence
from coterie.core.methods.fedavg import FedAvgServer
from coterie.core.methods.model_server import ServerModel
from coterie.core.protocol.journal import Journal


class DapFLServer(FedAvgServer[ServerModel]):
    """Server of Dap-FL (Chen et al., TPDS 2023): FedAvg's, with p_i = 1/N by default.

    The paper's encrypted aggregation computes the same mean and is not built here.
    """

    who_diverged = staticmethod(told_divergence)

    def note(self, journal: Journal, total: dict[str, Any]) -> None:
        """Show the mean loss, and the mean of what the clients chose."""
        super().note(journal, total)
        for name in ("lr", "epochs"):
            journal.scalar(f"fed/{name}", total[name].double() / total["weight"])


__all__ = ["DapFLClient", "DapFLServer", "DapFLSettings"]
