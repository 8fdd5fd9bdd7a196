"""The client half of the reading decoupled: it sends w_i, and keeps a branch v_i of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.fit import Fitted
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.branch import Branched
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.sizes import TellsSize
from coterie.core.methods.kit.training import changes, same_for_all
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.tensors.keys import Key
from coterie.page.decoupled.drift import drift_of
from coterie.page.decoupled.messages import (
    CONTROLLED_UPDATE,
    ControlledMove,
    ControlledStage,
    DecoupledState,
)
from coterie.page.game.utility import utility_of
from coterie.page.settings.run import Settings


class DecoupledClient(TellsSize, ModelClient[DecoupledState]):
    """A leader whose action is its personal branch; other arguments are those of `ModelClient`.

    What it sends is kept free of drift (`coterie.page.decoupled.drift`), and is no choice: it is
    the same bits whatever the branch is.

    Args:
        training: epochs and learning rate.
        settings: of the paper, with the reading resolved.
    """

    admits_branch = True

    def __init__(
        self,
        module: nn.Module,
        training: FedAvgSettings,
        settings: Settings,
        as_batch: Callable[[dict[str, Tensor]], Any] | None = None,
    ) -> None:
        super().__init__(module, training, as_batch)
        self.drift = drift_of(settings.game)
        self.utility = utility_of(settings.game.utility or "bounded")

    def newcomers(self, n_clients: int) -> DecoupledState:
        """Start with c_i = 0."""
        own = super().newcomers(n_clients)
        return DecoupledState(own.personal, own.rounds, self.zeros(n_clients))

    @CONTROLLED_UPDATE
    def update(
        self, down: ControlledStage, mine: DecoupledState, data: SplitSamples, key: Key
    ) -> tuple[ControlledMove, DecoupledState]:
        """Play a stage: train w_i from W, move c_i, choose the branch on the samples held out."""
        start = same_for_all(down.weights, len(data))
        fitted, moved = self.trained(down.weights, down.control, mine.control, data, key)
        own = self.own_branch(start, fitted.params, data, key)
        control = {name: c + moved[name] for name, c in mine.control.items()}
        kept = DecoupledState(self.kept(own.params), mine.rounds + 1, control)
        nothing = (data.valid.lengths == 0) & (data.lengths == 0)
        rates = own.loss.new_full((len(data),), self.settings.lr)
        move = ControlledMove(
            changes(fitted.params, down.weights),
            data.lengths,
            fitted.loss,
            own.loss.masked_fill(nothing, 0.0),
            rates,
            torch.full((len(data),), self.settings.epochs),
            torch.zeros(len(data), dtype=torch.bool),
            moved,
            own.share,
            own.lr,
        )
        return move, kept

    def trained(
        self, weights: Params, control: Params, own: Params, data: SplitSamples, key: Key
    ) -> tuple[Fitted, Params]:
        """Run K steps from W, with what keeps w_i from drifting; give also c_i+ - c_i.

        Args:
            weights: W, each ``(...)``.
            control: c, each ``(...)``; empty where the drift does not need it.
            own: c_i, each ``(C, ...)``.
            data: of C clients.
            key: the clients' keys, ``(C,)``.
        """
        start = same_for_all(weights, len(data))
        batches = self.local.batches(data.train, key)
        pull, context = self.drift.pull(start, control, own)
        fitted = self.local.train(start, batches, pull=pull, context=context)
        way = self.settings.lr * batches.steps.double()
        return fitted, self.drift.moved(changes(fitted.params, weights), control, own, way)

    def own_branch(self, received: Params, sent: Params, data: SplitSamples, key: Key) -> Branched:
        """The client's own model and its quality: its branch, or the model sent where it has none.

        Args:
            received: W, each ``(C, ...)``.
            sent: w_i, each ``(C, ...)``.
            data: of C clients.
            key: the clients' keys, ``(C,)``.
        """
        if self.branch is not None:
            return self.branch.best(received, sent, data, key)
        quality = self.evaluator.held_out(sent, data)
        one = torch.ones(len(data), dtype=torch.float64)
        return Branched(sent, one, torch.zeros_like(one), quality.loss, quality.accuracy)
