"""What crosses between a scenario and the server, and what a scenario keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.model_messages import OwnModel, QualityReport
from coterie.core.methods.kit.uploads import counted, measured
from coterie.core.protocol.messages import Down, Reveals, Step, Up, carries, leaves
from coterie.core.protocol.uploads import Shaped

Shapes = dict[str, tuple[int, ...]]
AFFINE = {"gamma": "input_norm.weight", "beta": "input_norm.bias"}
"""Names of γ and β in an upload, and in the network (Eq. 2)."""
TOWERS = "towers."
"""Before the names of the towers' parameters."""


@dataclass(frozen=True)
class Request(Down):
    """The shapes of what is to be uploaded."""

    scenario: Shapes = carries("shapes of the experts' scenario parameters")
    towers: Shapes = carries("shapes of the towers' parameters")
    affine: Shapes = carries("shapes of γ and β")
    shared: Shapes = carries("shapes of what else is averaged")


_TRAINED = {"personal", "optimizer", "held", "residual", "direction", "anchor", "anchored"}
"""What training and its increments depend on: not the running statistics."""


_PARAMETERS: Any = {"reveals": Reveals.PARAMETERS, "depends_on": _TRAINED}


@dataclass(frozen=True)
class ScenarioUpdate(Up):
    """What a scenario uploads; stacked over C of them."""

    scenario: Params = leaves(
        "increments of the experts' scenario parameters W_s",
        **_PARAMETERS,
        expected=Shaped("scenario"),
    )
    towers: Params = leaves(
        "increments of the towers' parameters Θ", **_PARAMETERS, expected=Shaped("towers")
    )  # each (C, T, ...)
    affine: Params = leaves(
        "γ - 1 and β of the input's normalisation", **_PARAMETERS, expected=Shaped("affine")
    )  # (C, D)
    shared: Params = leaves(
        "increments of other parameters that are averaged", **_PARAMETERS, expected=Shaped("shared")
    )
    samples: Tensor = counted("number of samples n_j")  # (C,) int64
    loss: Tensor = measured("mean training loss", _TRAINED)  # (C,)

    @staticmethod
    def changed(personal: Params) -> Params:
        """Give ``affine`` of networks: by how much γ and β are from where they began, 1 and 0.

        A clip of the upload would otherwise be spent on the length of γ, about √D.
        """
        gamma, beta = (personal[name] for name in AFFINE.values())
        return {"gamma": gamma - 1, "beta": beta.clone()}

    def input_norm(self) -> Params:
        """Give γ and β themselves, by their names in the network."""
        gamma, beta = AFFINE.values()
        return {gamma: self.affine["gamma"] + 1, beta: self.affine["beta"]}


@dataclass(frozen=True)
class Aggregate(Down):
    """What the server made of a round; a leading axis of 1 is the same for all experts or tasks."""

    mean: Params = carries("mean increments ΔW̄ of the scenario parameters")
    direction: Params = carries("their coordinated direction U*")
    average: Params = carries("averaged scenario parameters W̄, to be aligned with")
    tower_mean: Params = carries("mean increments of the towers")
    tower_direction: Params = carries("their coordinated direction")
    shared: Params = carries("mean increments of what else is averaged")


@dataclass(frozen=True)
class ScenarioReport(QualityReport):
    """How good the scenario's own model is, and how far it went from the others."""

    measures: dict[str, Tensor] = measured(
        "quality of its own model", {"personal", "statistics", "residual", "direction"}
    )
    psi: Tensor = measured("mean ψ of its experts", {"personal"})  # (C,)
    psi_tower: Tensor = measured("mean ψ' of its towers", {"personal"})  # (C,)
    distance: Tensor = measured("root mean square of W_s - its anchor", _TRAINED)  # (C,)


@dataclass(frozen=True)
class ScenarioModel(OwnModel):
    """What a scenario keeps beside its whole model, ``personal``; each ``(C, ...)``.

    The scenario parameters go by the names of `coterie.msmt.models.template`.

    Attributes:
        held: all that is federated, as it was after the last aggregation.
        direction: U* of the scenario parameters and of the towers.
        residual: what is added to the generated W_s so that it is what it was set to (R).
        added: Σ ψ U* of all rounds, which is what W_s has beside what the server knows of it.
        anchor: W̄ and what was ``added`` before the last aggregation, to be aligned with once
            ``anchored``, ``(C,)``, is 1 and not 0.
    """

    held: Params = field(kw_only=True)
    direction: Params = field(kw_only=True)
    residual: Params = field(kw_only=True)
    added: Params = field(kw_only=True)
    anchor: Params = field(kw_only=True)
    anchored: Tensor = field(kw_only=True)


UPDATE = Step("update", Request, ScenarioUpdate)
AGGREGATE = Step("aggregate", Aggregate, None)
EVALUATE = Step("evaluate", None, ScenarioReport)
