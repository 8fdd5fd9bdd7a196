"""pFedMe: personal models by Moreau envelopes, whose centre the server moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from coterie.core.federation.cohort import Cohort
from coterie.core.methods.fedavg import FedAvgServer
from coterie.core.methods.kit.model_server import ServerModel
from coterie.core.methods.pfedme_client import PFedMeClient
from coterie.core.methods.settings.proximal import PFedMeSettings
from coterie.core.tensors.keys import Key


class PFedMeServer(FedAvgServer[ServerModel]):
    """Server of pFedMe (Dinh et al., NeurIPS 2020, Algorithm 1)."""

    settings: PFedMeSettings

    def round(self, state: ServerModel, cohort: Cohort, key: Key) -> ServerModel:
        """One round: all clients train, those chosen send what they found."""
        chosen = cohort.sample(self.settings.fraction, key.fold("sample"))
        others = torch.isin(cohort.ids, chosen.ids, invert=True).nonzero().flatten()
        if others.numel() and self.settings.keep_models:
            cohort.part(others).ask("personalise", self.down(state))
        return super().round(state, cohort, key)

    def aggregate(self, state: ServerModel, total: dict[str, Any], n_clients: int) -> ServerModel:
        """Set W <- (1 - β) W + β mean w_i (line 13)."""
        share = self.settings.beta / int(total["weight"])
        weights = {name: w + share * total["change"][name] for name, w in state.weights.items()}
        return replace(state, weights=weights)


__all__ = ["PFedMeClient", "PFedMeServer", "PFedMeSettings"]
