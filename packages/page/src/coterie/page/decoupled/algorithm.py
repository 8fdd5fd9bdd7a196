"""The server half of the reading decoupled: PAGE's follower, and c, the mean of all c_i."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.sizes import Sizes, ask_sizes
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.step import Step
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.page.algorithm import PageServer, ServerState
from coterie.page.decoupled.drift import Drift, drift_of
from coterie.page.decoupled.messages import CONTROLLED_UPDATE, ControlledMove, ControlledStage
from coterie.page.messages import Move


@dataclass(frozen=True, kw_only=True)
class DecoupledServerState(ServerState):
    """State of the server between two stages; ``weights`` is W, from which clients start.

    Attributes:
        mean: Σ p_i w_i of the last stage, the model that is measured.
        control: c, the mean of all clients' c_i.
        sizes: how much data the clients hold.
    """

    mean: Params = field(default_factory=dict)
    control: Params = field(default_factory=dict)
    sizes: Sizes = field(default_factory=Sizes)


class DecoupledServer(PageServer):
    """The follower of the reading decoupled, with c beside; see `PageServer`.

    What it gets of a client depends on W, c and the client's data, on no choice of the client's.
    """

    step: ClassVar[Step[Any, Any]] = CONTROLLED_UPDATE

    @cached_property
    def drift(self) -> Drift:
        """How what clients send is kept free of drift."""
        return drift_of(self.game)

    def begin(self, key: Key) -> DecoupledServerState:
        """Draw W(1), and start with c = 0."""
        state = super().begin(key)
        control = tree.map_tensors(torch.zeros_like, state.weights)
        return DecoupledServerState(
            state.weights,
            state.utility,
            state.seen,
            state.agent,
            mean=tree.clone(state.weights),
            control=control,
        )

    def model(self, state: ServerState) -> Params:
        """Σ p_i w_i; W may lie off it."""
        assert isinstance(state, DecoupledServerState)
        return state.mean

    def round(self, state: ServerState, cohort: Cohort, key: Key) -> ServerState:
        """One stage; before the first, clients say how much data they hold."""
        assert isinstance(state, DecoupledServerState)
        if state.sizes.asked != len(cohort):
            state = replace(state, sizes=ask_sizes(cohort))
        return super().round(state, cohort, key)

    def stage(self, state: ServerState, number: int) -> ControlledStage:
        """W(t), and c where it is needed."""
        assert isinstance(state, DecoupledServerState)
        told = state.control if self.drift.needs_mean else {}
        return ControlledStage(state.weights, state.utility, number, told)

    def answer(
        self, state: ServerState, ids: Tensor, move: Move, key: Key, cohort: Cohort
    ) -> ServerState:
        """Choose p, aggregate, c <- c + Σ_S (c_i+ - c_i)/N, and give the next W by both."""
        assert isinstance(state, DecoupledServerState)
        assert isinstance(move, ControlledMove)
        control = moved_mean(state.control, move.control, max(state.sizes.clients, 1))
        for name, values in (("share", move.share), ("lr", move.branch_lr)):
            cohort.journal.scalar(f"page/branch_{name}", values.double().mean())
            cohort.journal.per_client(f"page/branch_{name}", ids, values.double())
        answered = super().answer(state, ids, move, key, cohort)
        assert isinstance(answered, DecoupledServerState)
        start = self.drift.start(answered.weights, control)
        return replace(answered, weights=start, mean=answered.weights, control=control)


def moved_mean(control: Params, moved: Params, n: int) -> Params:
    """Move c, the mean of N clients' c_i, by what those of A moved, each ``(A, ...)``.

    Example:
        >>> moved_mean({"w": torch.zeros(1)}, {"w": torch.ones(2, 1)}, 4)["w"].tolist()
        [0.5]
    """
    return {name: c + moved[name].sum(0) / n for name, c in control.items()}
