"""The server half of the reading decoupled: PAGE's follower, and the control variate c."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from coterie.core.methods.kit.model_server import ServerSamples
from coterie.core.methods.kit.sizes import Sizes, ask_sizes
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.step import Step
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.page.algorithm import PageServer, ServerState
from coterie.page.decoupled.messages import UPDATE, ControlledMove, ControlledStage
from coterie.page.messages import Move
from coterie.page.settings.run import Settings


@dataclass(frozen=True, kw_only=True)
class DecoupledServerState(ServerState):
    """State of the server between two stages.

    Attributes:
        control: c, the mean of all clients' c_i.
        sizes: how much data the clients hold.
    """

    control: dict[str, Tensor] = field(default_factory=dict)
    sizes: Sizes = field(default_factory=Sizes)


class DecoupledServer(PageServer):
    """The follower of the reading decoupled: W(t+1) = Σ p_i w_i(t), and c beside; see `PageServer`.

    What it gets of a client depends on W, c and the client's data, on no choice of the client's.
    """

    step: ClassVar[Step[Any, Any]] = UPDATE

    def __init__(
        self,
        build: Callable[[], nn.Module],
        training: FedAvgSettings,
        settings: Settings,
        n_clients: int,
        samples: ServerSamples,
        as_batch: Callable[[dict[str, Tensor]], Any] | None = None,
    ) -> None:
        super().__init__(build, training, settings, n_clients, samples, as_batch)
        self.has_players = True  # each client's control variate is looked at, with or without p

    def begin(self, key: Key) -> DecoupledServerState:
        """Draw W(1), and start with c = 0."""
        state = super().begin(key)
        control = tree.map_tensors(torch.zeros_like, state.weights)
        return DecoupledServerState(
            state.weights, state.utility, state.seen, state.agent, control=control
        )

    def round(self, state: ServerState, cohort: Cohort, key: Key) -> ServerState:
        """One stage; before the first, clients say how much data they hold."""
        assert isinstance(state, DecoupledServerState)
        if state.sizes.asked != len(cohort):
            state = replace(state, sizes=ask_sizes(cohort))
        return super().round(state, cohort, key)

    def stage(self, state: ServerState, number: int) -> ControlledStage:
        """W(t) and c."""
        assert isinstance(state, DecoupledServerState)
        return ControlledStage(state.weights, state.utility, number, state.control)

    def answer(
        self, state: ServerState, ids: Tensor, move: Move, key: Key, cohort: Cohort
    ) -> ServerState:
        """Choose p, aggregate, and c <- c + Σ_S (c_i+ - c_i)/N (SCAFFOLD, line 17)."""
        assert isinstance(state, DecoupledServerState)
        assert isinstance(move, ControlledMove)
        control = moved_mean(state.control, move.control, max(state.sizes.clients, 1))
        for name, values in (("share", move.share), ("lr", move.branch_lr)):
            cohort.journal.scalar(f"page/branch_{name}", values.double().mean())
            cohort.journal.per_client(f"page/branch_{name}", ids, values.double())
        answered = super().answer(state, ids, move, key, cohort)
        assert isinstance(answered, DecoupledServerState)
        return replace(answered, control=control)


def moved_mean(control: dict[str, Tensor], moved: dict[str, Tensor], n: int) -> dict[str, Tensor]:
    """Move c, the mean of N clients' c_i, by what those of A moved, each ``(A, ...)``.

    Example:
        >>> moved_mean({"w": torch.zeros(1)}, {"w": torch.ones(2, 1)}, 4)["w"].tolist()
        [0.5]
    """
    return {name: c + moved[name].sum(0) / n for name, c in control.items()}
