"""The server half of PF-MSMTrec (section 3.3): it aggregates what scenarios share.

It has no model of its own; every scenario has one, with what the others learned in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.model_server import ModelServer, ServerModel
from coterie.core.methods.kit.parts import part, without
from coterie.core.methods.kit.training import same_for_all
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.messages import Aligned
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.msmt.aggregation.fedbn import Affine
from coterie.msmt.aggregation.personalised import (
    Aggregated,
    Tree,
    average,
    federated_average,
    personalised,
    rule_of,
)
from coterie.msmt.messages import (
    AFFINE,
    AGGREGATE,
    EVALUATE,
    TOWERS,
    UPDATE,
    Aggregate,
    Request,
    ScenarioUpdate,
    Shapes,
)
from coterie.msmt.models.template import TemplateMMoE, scenario_part
from coterie.msmt.settings import AggregationOptions


@dataclass(frozen=True)
class ServerState(ServerModel):
    """State of the server: ``weights`` is what every scenario's network starts from.

    Attributes:
        reference: W_s and Θ without what each scenario's ψ adds, each ``(N, ...)`` or ``(T, ...)``.
        average: W̄ of the round before, as of W_s.
        tower_average: as of Θ.
    """

    reference: Params = field(kw_only=True)
    average: Params = field(kw_only=True)
    tower_average: Params = field(kw_only=True)


class PFServer(ModelServer[ServerState]):
    """Server of PF-MSMTrec.

    Args:
        build: makes the network; its initial parameters are drawn under the server's key.
        training: of the scenarios.
        options: what is federated, with the reading resolved.
    """

    def __init__(
        self,
        build: Callable[[], TemplateMMoE],
        training: FedAvgSettings,
        options: AggregationOptions,
    ) -> None:
        super().__init__(build, training)
        self.options, self.rule = options, rule_of(options)

    def begin(self, key: Key) -> ServerState:
        """Draw the network that all scenarios start from; W̄ of nothing uploaded is the first."""
        weights = self.initial(key)
        assert isinstance(self.module, TemplateMMoE)
        scenario = scenario_part(self.module, self.options.upload).generated(weights)
        towers = {name: value for name, value in weights.items() if name.startswith(TOWERS)}
        affine = Affine(*(weights[name][None] for name in AFFINE.values()))
        return ServerState(
            weights,
            reference={**scenario, **towers},
            average=average(same_for_all(scenario, 1), self.rule, affine=affine),
            tower_average=average(same_for_all(towers, 1), self.rule.for_towers(), affine=affine),
        )

    def start_block(self, state: ServerState, block: int, cohort: Cohort, key: Key) -> ServerState:
        """Enrol newcomers and give them the first network."""
        self.welcome(cohort, state.weights)
        return state

    def round(self, state: ServerState, cohort: Cohort, key: Key) -> ServerState:
        """One communication round r; scenarios whose upload is no number are in no sum."""
        chosen = cohort.sample(self.settings.fraction, key.fold("sample"))
        replies = chosen.ask(UPDATE, self.request(state))  # Eqs. 11, 14, 24: scenarios train
        cohort.journal.scalar("fed/clients", replies.ids.numel())
        if replies.up is not None and bool((replies.up.samples > 0).any()):
            up = replies.up
            experts = self.experts(state, up).stepped(self.options.server_lr)  # Eqs. 7 to 17
            towers = self.towers(state, up)  # Eq. 21, the same for each task's towers
            shared = federated_average(up.shared, self.shares(up)) if up.shared else {}
            self.note(replies.ids, up, experts, cohort.journal)
            # The last terms of Eqs. 18 and 21 are the scenarios' own: they know their ψ.
            self.send(cohort, replies.ids, experts, towers, shared)
            state = moved(state, experts, towers)
        self.evaluate_if_due(state, cohort)
        return state

    def experts(self, state: ServerState, up: ScenarioUpdate) -> Aggregated:
        """ΔW̄ and U* of the experts' scenario parameters (sections 3.3.1 and 3.3.2)."""
        before = part(state.reference, up.scenario)
        if self.options.expert == "fedavg":
            return self.averaged(before, up.scenario, up)
        return personalised(
            up.scenario,
            same_for_all(before, len(up.samples)),
            self.rule,
            affine=Affine(*up.input_norm().values()),
            before=state.average,
            sound=up.samples > 0,
        )

    def towers(self, state: ServerState, up: ScenarioUpdate) -> Aggregated:
        """The same of the towers, over the scenarios' towers of each task."""
        before = part(state.reference, up.towers)
        if self.options.tower == "fedavg":
            return self.averaged(before, up.towers, up)
        return personalised(
            up.towers,
            same_for_all(before, len(up.samples)),
            self.rule.for_towers(),
            affine=Affine(*up.input_norm().values()),
            before=state.tower_average,
            sound=up.samples > 0,
        )

    def averaged(self, before: Params, increments: Params, up: ScenarioUpdate) -> Aggregated:
        """FedAvg in place of both (ablations A1 to A4): mean increments, and no direction."""
        mean = federated_average(increments, self.shares(up))
        nothing = {name: torch.zeros_like(value) for name, value in mean.items()}
        return Aggregated(mean, nothing, {n: v + mean[n][0] for n, v in before.items()})

    def shares(self, up: ScenarioUpdate) -> Tensor:
        """What plain averages weigh the scenarios by, ``(S,)``."""
        return up.samples if self.options.weighting == "samples" else (up.samples > 0).long()

    def send(
        self,
        cohort: Cohort,
        answered: Tensor,
        experts: Aggregated,
        towers: Aggregated,
        shared: Tree,
    ) -> None:
        """Send all scenarios what was made of the uploads, also those that did not train.

        Else what the server knows of their parameters were not what they have, and the anchor a
        place that they never reach: increments towards it would move it on and on. A ball around
        the mean gives all the same direction; balls around the scenarios' own increments another
        to each that answered, and none to the others.
        """
        down = Aggregate(
            experts.mean,
            experts.direction,
            same_for_all(experts.average, len(answered)),
            towers.mean,
            towers.direction,
            shared,
        )
        together = self.options.expert == "pf" and self.rule.grouping == "all"
        alike = {"mean", "direction", "average"} if together else set()
        kept = {f.name: _of_one(getattr(down, f.name), f.name in alike) for f in fields(down)}
        if self.rule.centre == "global" or not self.rule.coordinate:
            cohort.ask(AGGREGATE, Aggregate(**kept))
            return
        trained = torch.isin(cohort.ids, answered)
        cohort.part(_places(trained)).ask(AGGREGATE, Aligned(answered, tree.clone(down)))
        if not bool(trained.all()):
            for name in ("direction", "tower_direction"):
                kept[name] = tree.map_tensors(torch.zeros_like, kept[name])
            cohort.part(_places(~trained)).ask(AGGREGATE, Aggregate(**kept))

    def request(self, state: ServerState) -> Request:
        """Say in which shapes uploads are expected."""
        towers = [name for name in state.reference if name.startswith(TOWERS)]
        shared = self.options.averaged(state.weights)
        return Request(
            scenario=_shapes(without(state.reference, towers)),
            towers=_shapes(part(state.reference, towers)),
            affine=_shapes({name: state.weights[of] for name, of in AFFINE.items()}),
            shared=_shapes(part(state.weights, shared)),
        )

    def test(self, state: ServerState, cohort: Cohort) -> None:
        """Let every scenario measure its own model on its validation and test samples."""
        replies = cohort.ask(EVALUATE, None)
        if (up := replies.up) is not None:
            self.note_measures(up, replies.ids, cohort)
            for name in ("psi", "psi_tower", "distance"):
                values = getattr(up, name)
                cohort.journal.scalar(f"msmt/{name}", values.mean())
                cohort.journal.per_client(f"msmt/{name}", replies.ids, values)

    def note(self, ids: Tensor, up: ScenarioUpdate, found: Aggregated, journal: Journal) -> None:
        """Note the loss, and how the experts' increments are in conflict."""
        counts = up.samples.double()
        journal.scalar("fed/loss", (up.loss.double() @ counts) / counts.sum())
        if not found.found:
            return
        journal.scalar("msmt/conflict", _mean(each.cosine for each in found.found))
        journal.scalar("msmt/opposed", _mean(each.opposed for each in found.found))
        journal.scalar("msmt/dual_gap", max(float(each.gap.max()) for each in found.found))
        weights = torch.stack([each.weights.mean(0) for each in found.found])  # (P, M)
        of_scenarios = weights.mean(0).reshape(len(ids), -1).sum(1)
        journal.per_client("msmt/dual_weights", ids, of_scenarios)
        journal.scalar("msmt/dual_weights", weights.max())


def moved(state: ServerState, experts: Aggregated, towers: Aggregated) -> ServerState:
    """Move what the server knows of W_s and Θ by the mean increments."""
    mean = {name: value[0] for name, value in {**experts.mean, **towers.mean}.items()}
    reference = {name: value + mean[name] for name, value in state.reference.items()}
    return replace(
        state,
        reference=reference,
        average=tree.clone(experts.average),
        tower_average=tree.clone(towers.average),
    )


def _shapes(params: Params) -> Shapes:
    return {name: tuple(value.shape) for name, value in params.items()}


def _of_one(values: Tree, alike: bool) -> Tree:
    """What all scenarios ``(S, K, ...)`` have in common, once; if all parts have, ``(1, ...)``."""
    return tree.clone({n: v[0, :1] if alike else v[0] for n, v in values.items()})


def _places(chosen: Tensor) -> Tensor:
    return chosen.nonzero().flatten()


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
