"""FedRECON: the clients share the base of a model; heads are reconstructed and never travel."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from coterie.core.data.samples.samples import SampleData
from coterie.core.federation.cohort import Cohort
from coterie.core.local_training.fit import Params
from coterie.core.methods.fedavg import FedAvgServer
from coterie.core.methods.fedrecon_client import FedReconClient, MeasuredBase
from coterie.core.methods.kit.local_sgd import same_for_all
from coterie.core.methods.kit.model_server import ServerModel
from coterie.core.methods.reconstruction import Reconstruction, check_base, parted
from coterie.core.methods.settings.personal import FedReconSettings
from coterie.core.tensors.keys import Key


class FedReconServer(FedAvgServer[ServerModel]):
    """Server of FedRECON (Singhal et al., NeurIPS 2021, Algorithm 1), with averaging as S.

    Its model is a base and the initial head, which never changes. There is no global head, so to
    measure its model the server reconstructs one on its own validation samples: `server` and
    `global` accuracies are those of the base with that head. ``eval/server_…`` is thus measured on
    the samples that the head was fitted to; ``test/server_…`` is not. Without validation samples
    neither is measured.
    """

    settings: FedReconSettings

    @cached_property
    def reconstruct(self) -> Reconstruction:
        """Reconstructs a head on the server's samples."""
        return Reconstruction(self.module, self.settings, self._as_batch)

    def initial(self, key: Key) -> Params:
        """Draw the initial parameters.

        Raises:
            UserError: the module has no head, or its body has no parameters.
        """
        check_base(self.module)
        return super().initial(key)

    def aggregate(self, state: ServerModel, total: dict[str, Any], n_clients: int) -> ServerModel:
        """Set g <- g + η_s sum_k n_k (g_k - g) / sum_k n_k; n_k counts query samples."""
        change, weight, lr = total["change"], total["weight"], self.settings.server_lr
        moved = {name: state.weights[name] + lr * change[name] / weight for name in change}
        return replace(state, weights={**state.weights, **moved})

    def test(self, state: ServerModel, cohort: Cohort) -> None:
        """Enter the accuracies and losses, with a head reconstructed where one is needed."""
        head = self.head(state.weights)
        if head:
            self.test_server({**state.weights, **head}, cohort)
        self.test_clients(MeasuredBase(state.weights, head), cohort)

    def head(self, weights: Params) -> Params:
        """Reconstruct a head on the server's validation samples; empty without any."""
        count = len(next(iter(self.samples.valid.values()), ()))
        if not count:
            return {}
        own = SampleData(torch.zeros(1).long(), self.samples.valid, torch.tensor([0, count]))
        base, initial = parted(same_for_all(weights, 1))
        # Measuring must change no draw of the run, and the same model always measures the same.
        found = self.reconstruct(base, initial, own, Key.from_seed(0).fold(own.ids))
        return {name: value[0] for name, value in found.items()}


__all__ = ["FedReconClient", "FedReconServer", "FedReconSettings"]
