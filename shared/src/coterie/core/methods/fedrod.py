"""Fed-ROD: a generic predictor trained by a balanced loss, and a personal head a client."""

from __future__ import annotations

from coterie.core.local_training.fit import Params
from coterie.core.methods.fedavg import FedAvgServer
from coterie.core.methods.fedrod_client import FedRODClient
from coterie.core.methods.kit.head import with_head
from coterie.core.methods.settings.personal import FedRODSettings
from coterie.core.tensors.keys import Key


class FedRODServer(FedAvgServer):
    """Server of Fed-ROD (Chen and Chao, ICLR 2022, Algorithm 1): averages body and generic head."""

    def initial(self, key: Key) -> Params:
        """Draw the initial parameters.

        Raises:
            UserError: the module has no head.
        """
        with_head(self.module, "Fed-ROD")
        return super().initial(key)


__all__ = ["FedRODClient", "FedRODServer", "FedRODSettings"]
