"""SCAFFOLD: FedAvg with control variates against the drift of the clients."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_messages import GlobalModel, ModelUpdate, OwnModel
from coterie.core.methods.kit.model_server import ModelServer
from coterie.core.methods.kit.sizes import SizedModel, Sizes, TellsSize, anew, ask_sizes
from coterie.core.methods.kit.training import changes, same_for_all
from coterie.core.methods.kit.uploads import Weighted, changed, measured, noted
from coterie.core.methods.settings.any_module import ScaffoldSettings
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.messages import Step, carries
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

_OWN = {"control", "block"}  # the private fields that training depends on


@dataclass(frozen=True)
class ControlledModel(GlobalModel):
    """The server's model x and control variate c."""

    control: Params = carries("control variate c, in the form of the parameters")
    block: int = carries("number of the block, with which control variates begin")


@dataclass(frozen=True)
class ControlledUpdate(ModelUpdate):
    """What a client's local training changed; stacked over C clients."""

    change: Params = changed("the model's parameters, y_i - x", _OWN)  # each (C, ...)
    loss: Tensor = measured("mean training loss", _OWN)  # (C,)
    control: Params = changed("the control variate, c_i+ - c_i", _OWN)  # each (C, ...)


@dataclass(frozen=True)
class OwnControl(OwnModel):
    """What a client keeps.

    Attributes:
        control: c_i, each ``(C, ...)``.
        block: ``(C,)`` int64, number of the block that it is of.
    """

    control: Params
    block: Tensor


UPDATE = Step("update", ControlledModel, ControlledUpdate)


class ScaffoldClient(TellsSize, ModelClient[OwnControl]):
    """Client of SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1) for any module."""

    admits_branch = True

    def newcomers(self, n_clients: int) -> OwnControl:
        """Start with c_i = 0."""
        own = super().newcomers(n_clients)
        return OwnControl(
            own.personal, own.rounds, self.zeros(n_clients), torch.zeros_like(own.rounds)
        )

    @UPDATE
    def update(
        self, down: ControlledModel, mine: OwnControl, data: SplitSamples, key: Key
    ) -> tuple[ControlledUpdate, OwnControl]:
        """Run K steps y_i <- y_i - η_l (g_i(y_i) - c_i + c) from x, then c_i <- c_i+ (option II).

        K is the client's own number of steps; without data nothing changes.
        """
        start = same_for_all(down.weights, len(data))
        batches = self.local.batches(data.train, key)
        before = anew(mine.control, mine.block, down.block)
        correction = {name: c - before[name] for name, c in down.control.items()}
        fitted = self.local.train(start, batches, pull=corrected, context=correction)
        change = changes(fitted.params, down.weights)
        moved = control_moved(change, down.control, self.settings.lr * batches.steps.double())
        own = {name: c + moved[name] for name, c in before.items()}
        now = torch.full_like(mine.block, down.block)
        personal = self.own_model(start, fitted.params, data, key)
        kept = OwnControl(personal, mine.rounds + 1, own, now)
        return ControlledUpdate(change, data.lengths, fitted.loss, moved), kept


def corrected(params: Params, correction: Any) -> Params:
    """The pull of a correction that is the same in all steps, such as c - c_i."""
    return dict(correction)


def control_moved(change: Params, control: Params, way: Tensor) -> Params:
    """c_i+ - c_i = (x - y_i)/(K η_l) - c; 0 where K is.

    So c_i+ is the mean of the gradients g_i of the K steps, as their correction was c - c_i.

    Args:
        change: y_i - x, each ``(C, ...)``.
        control: c, or what stands in its place where the correction was another: each ``(...)`` or
            ``(C, ...)``.
        way: K η_l, ``(C,)``.
    """
    moved = {}
    for name, value in change.items():
        length = tree.columns(way.to(value.dtype), value)
        moved[name] = torch.where(length > 0, -value / length - control[name], 0.0)
    return moved


@dataclass(frozen=True, kw_only=True)
class ScaffoldModel(SizedModel):
    """State of the server: x is ``weights``.

    Attributes:
        control: c, the weighted mean of all clients' c_i.
    """

    control: Params = field(default_factory=dict)


class ScaffoldServer(ModelServer[ScaffoldModel]):
    """Server of SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1, option II)."""

    settings: ScaffoldSettings
    averages = sums = True

    def begin(self, key: Key) -> ScaffoldModel:
        """Draw x, and start with c = 0."""
        weights = self.initial(key)
        return ScaffoldModel(weights, control=tree.map_tensors(torch.zeros_like, weights))

    def start_block(
        self, state: ScaffoldModel, block: int, cohort: Cohort, key: Key
    ) -> ScaffoldModel:
        """Enrol newcomers and set c to 0."""
        cohort.enrol()
        control = tree.map_tensors(torch.zeros_like, state.control)
        return replace(state, control=control, sizes=Sizes(), block=block)

    def round(self, state: ScaffoldModel, cohort: Cohort, key: Key) -> ScaffoldModel:
        """One round: x <- x + η_g Δx and c <- c + |S|/N Δc (lines 16 and 17).

        Δx and Δc are means over S, so that |S|/N Δc is the sum over S divided by N; with weights
        N is the sum of the weights of all clients. Clients without data count in neither.
        """
        weighting = self.settings.weighting
        if state.sizes.asked != len(cohort):
            state = self._resized(state, ask_sizes(cohort))
        chosen = cohort.sample(self.settings.fraction, key.fold("sample"))
        down = ControlledModel(state.weights, state.control, state.block)
        replies = chosen.ask(UPDATE, down, reduce=Weighted(weighting))
        if (total := noted(replies, cohort.journal)) is not None:
            change, moved = total.sums.change, total.sums.control
            step, everybody = self.settings.lr_g / int(total.weight), state.sizes.total(weighting)
            weights = {name: x + step * change[name] for name, x in state.weights.items()}
            control = {name: c + moved[name] / everybody for name, c in state.control.items()}
            state = replace(state, weights=weights, control=control)
        self.evaluate_if_due(state, cohort)
        return state

    def _resized(self, state: ScaffoldModel, sizes: Sizes) -> ScaffoldModel:
        """Keep c the mean of all c_i when clients join: theirs are 0."""
        before, now = (s.total(self.settings.weighting) for s in (state.sizes, sizes))
        share = before / now if before and now else 1.0
        control = {name: share * c for name, c in state.control.items()}
        return replace(state, control=control, sizes=sizes)
