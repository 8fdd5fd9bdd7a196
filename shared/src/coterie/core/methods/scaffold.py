"""SCAFFOLD: FedAvg with control variates against the drift of the clients."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from coterie.core.local_training.fit import Params
from coterie.core.methods.kit.sizes import SizedModel, SizedServer, Sizes
from coterie.core.methods.scaffold_client import ControlledModel, ScaffoldClient
from coterie.core.methods.settings.drift import ScaffoldSettings
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


@dataclass(frozen=True, kw_only=True)
class ScaffoldModel(SizedModel):
    """State of the server: x is ``weights``.

    Attributes:
        control: c, the weighted mean of all clients' c_i.
    """

    control: Params = field(default_factory=dict)


class ScaffoldServer(SizedServer[ScaffoldModel]):
    """Server of SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1, option II)."""

    settings: ScaffoldSettings

    def begin(self, key: Key) -> ScaffoldModel:
        """Draw x, and start with c = 0."""
        weights = self.initial(key)
        return ScaffoldModel(weights, control=tree.map_tensors(torch.zeros_like, weights))

    def down(self, state: ScaffoldModel) -> ControlledModel:
        """Send x and c."""
        return ControlledModel(state.weights, state.control, state.block)

    def cleared(self, state: ScaffoldModel) -> ScaffoldModel:
        """Set c to 0."""
        return replace(state, control=tree.map_tensors(torch.zeros_like, state.control))

    def aggregate(
        self, state: ScaffoldModel, total: dict[str, Any], n_clients: int
    ) -> ScaffoldModel:
        """Set x <- x + η_g Δx and c <- c + |S|/N Δc (lines 16 and 17).

        Δx and Δc are means over S, so that |S|/N Δc is the sum over S divided by N; with weights
        N is the sum of the weights of all clients. Clients without data count in neither.
        """
        everybody = state.sizes.total(self.settings.weighting)
        step = self.settings.lr_g / int(total["weight"])
        return replace(
            state,
            weights={name: x + step * total["change"][name] for name, x in state.weights.items()},
            control={
                name: c + total["control"][name] / everybody for name, c in state.control.items()
            },
        )

    def resized(self, state: ScaffoldModel, sizes: Sizes) -> ScaffoldModel:
        """Keep c the mean of all c_i when clients join: theirs are 0."""
        before, now = (s.total(self.settings.weighting) for s in (state.sizes, sizes))
        share = before / now if before and now else 1.0
        control = {name: share * c for name, c in state.control.items()}
        return replace(state, control=control, sizes=sizes)


__all__ = ["ScaffoldClient", "ScaffoldModel", "ScaffoldServer", "ScaffoldSettings"]
