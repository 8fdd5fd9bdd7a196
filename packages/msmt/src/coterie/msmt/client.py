"""The client half of PF-MSMTrec: a scenario trains, uploads its part, and takes the others' in."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_messages import RECEIVE, OwnStart
from coterie.core.methods.kit.parts import part, without
from coterie.core.methods.kit.training import same_for_all
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.msmt.aggregation.personalised import applied
from coterie.msmt.messages import (
    AGGREGATE,
    EVALUATE,
    TOWERS,
    UPDATE,
    Aggregate,
    Request,
    ScenarioModel,
    ScenarioReport,
    ScenarioUpdate,
)
from coterie.msmt.models.template import TemplateMMoE, direction_name, scenario_part
from coterie.msmt.settings import AggregationOptions

_PSI = ("psi", "psi_tower")


class PFClient(ModelClient[ScenarioModel]):
    """A scenario j with its own data, network and ψ; other arguments are those of `ModelClient`.

    Args:
        module: the network, whose values do not matter.
        training: epochs, batches, optimizer.
        options: what is federated, with the reading resolved.
    """

    admits_alone = True

    def __init__(
        self, module: TemplateMMoE, training: FedAvgSettings, options: AggregationOptions
    ) -> None:
        super().__init__(module, training)
        self.options, self.scenario = options, scenario_part(module, options.upload)
        self.towers = [name for name in self._form if name.startswith(TOWERS)]
        self.averaged = options.averaged(self._form)
        self.fixed = [] if options.psi else list(_PSI)

    def newcomers(self, n_clients: int) -> ScenarioModel:
        """Private state before the model has come: zeros in its form."""
        own, models = super().newcomers(n_clients), self.zeros(n_clients)
        moments = self.moments(self.local.optimizer.begin(without(models, self.fixed)))
        scenario = same_for_all(self.scenario.generated(self._form), n_clients)
        nothing = tree.map_tensors(torch.zeros_like, scenario)
        towers = part(models, self.towers)
        return ScenarioModel(
            own.personal,
            own.rounds,
            optimizer=moments,
            statistics=own.statistics,
            held=tree.clone({**nothing, **towers, **part(models, self.averaged)}),
            direction=tree.clone({**nothing, **towers}),
            residual=tree.clone(nothing),
            added=tree.clone(nothing),
            anchor=nothing,
            anchored=next(iter(nothing.values())).new_zeros(n_clients),
        )

    @RECEIVE
    def receive(
        self, down: OwnStart, mine: ScenarioModel, data: SplitSamples, key: Key
    ) -> tuple[None, ScenarioModel]:
        """Take the first model, once; all scenarios start from the same."""
        mine = replace(mine, personal=tree.clone(same_for_all(down.own, len(data))))
        return None, replace(mine, held=self.federated(mine))

    @UPDATE
    def update(
        self, down: Request, mine: ScenarioModel, data: SplitSamples, key: Key
    ) -> tuple[ScenarioUpdate, ScenarioModel]:
        """Train for E epochs on L_j (Eq. 24), and upload the increments of what is federated."""
        fitted = self.local.train(
            without(mine.personal, self.fixed),
            self.local.batches(data.train, key),
            fixed={**self.buffers(mine), **part(mine.personal, self.fixed)},
            state=mine.optimizer,
            statistics=mine.statistics,
        )
        mine = replace(
            mine,
            personal=part({**mine.personal, **fitted.params}, self._form),
            rounds=mine.rounds + 1,
            optimizer=self.moments(fitted.state),
            statistics=fitted.statistics,
        )
        now = self.federated(mine)
        change = {name: value - mine.held[name] for name, value in now.items()}
        up = ScenarioUpdate(
            scenario=part(change, mine.residual),
            towers=part(change, self.towers),
            affine=ScenarioUpdate.changed(mine.personal),
            shared=part(change, self.averaged),
            samples=data.lengths,
            loss=fitted.loss,
        )
        return up, mine

    @AGGREGATE
    def aggregate(
        self, down: Aggregate, mine: ScenarioModel, data: SplitSamples, key: Key
    ) -> tuple[None, ScenarioModel]:
        """Set W_s and Θ to [·]^{r-1} + Δ̄ + ψ U* (Eqs. 18, 21), and keep U* for ψ to learn.

        The server's W̄ is of W_s without any ψ U*. Aligned with it as it is, a scenario would
        undo, in increments that are averaged for all, what its ψ added in all rounds, and the mean
        drift away. So the anchor is W̄ and what ψ added before; from what it adds now the alignment
        holds it back (Eq. 23).
        """
        mean = {**down.mean, **down.tower_mean, **down.shared}
        base = {name: value + mean[name] for name, value in mine.held.items()}
        sent = {**down.direction, **down.tower_direction}
        direction = {name: sent[name].expand_as(old) for name, old in mine.direction.items()}
        personal = {**mine.personal, **part(base, [*self.towers, *self.averaged])}
        mine = replace(mine, personal=personal)  # the generator may be among what is averaged
        residual = {
            name: base[name] - generated for name, generated in self.generated(mine).items()
        }
        mine = replace(
            mine,
            direction=tree.clone(direction),
            residual=residual,
            anchor={n: down.average[n] + old for n, old in mine.added.items()},
            anchored=torch.ones_like(mine.anchored),
        )
        held = self.federated(mine)
        added = {name: old + held[name] - base[name] for name, old in mine.added.items()}
        return None, replace(mine, held=held, added=added)

    @EVALUATE
    def evaluate(
        self, down: None, mine: ScenarioModel, data: SplitSamples, key: Key
    ) -> tuple[ScenarioReport, None]:
        """Measure the scenario's own model; nothing is sent for it."""
        model = {**mine.personal, **self.buffers(mine), **mine.statistics}
        found = self.measured({"personal": model}, data)
        return ScenarioReport(
            found.measures,
            found.samples,
            mine.personal["psi"].mean(1),
            mine.personal["psi_tower"].mean(1),
            self.distance(mine),
        ), None

    def generated(self, mine: ScenarioModel) -> Params:
        """What the scenarios' networks generate of W_s, each ``(C, N, ...)``."""
        models = [
            self.scenario.generated({name: value[row] for name, value in mine.personal.items()})
            for row in range(len(mine.rounds))
        ]
        return {name: torch.stack([model[name] for model in models]) for name in models[0]}

    def federated(self, mine: ScenarioModel) -> Params:
        """All that is federated, as the network has it now; each ``(C, ...)``."""
        scenario = {n: v + mine.residual[n] for n, v in self.generated(mine).items()}
        towers = part(mine.personal, self.towers)
        psi, psi_tower = (mine.personal[name] for name in _PSI)
        return {
            **applied(scenario, mine.direction, psi),
            **applied(towers, mine.direction, psi_tower),
            **part(mine.personal, self.averaged),
        }

    def buffers(self, mine: ScenarioModel) -> Params:
        """What the server decided, as the network takes it; each ``(C, ...)``."""
        scenario = part(mine.direction, mine.residual)
        return {
            "scenario_residual": self.scenario.spread(mine.residual),
            "scenario_direction": self.scenario.spread(scenario),
            "anchor": self.scenario.whole(mine.anchor),
            "has_anchor": mine.anchored,
            **{direction_name(name): mine.direction[name] for name in self.towers},
        }

    def distance(self, mine: ScenarioModel) -> Tensor:
        """Root mean square of W_s - its anchor, ``(C,)``; 0 before the first aggregation."""
        now = self.scenario.whole(part(self.federated(mine), mine.residual))
        apart = (now - self.scenario.whole(mine.anchor)).flatten(1).square().mean(1).sqrt()
        return torch.where(mine.anchored > 0, apart, torch.zeros_like(apart))
