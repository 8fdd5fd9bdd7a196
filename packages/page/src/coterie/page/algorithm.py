"""PAGE, the server half: the follower answers with aggregation weights (section 4.4, Figure 1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.model_server import ModelServer, ServerModel, ServerSamples
from coterie.core.methods.kit.sizes import Sizes, ask_sizes
from coterie.core.methods.kit.uploads import Weighted, mean_added, noted
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.messages import Step
from coterie.core.protocol.server import Decision
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.page.answer import AgentState, LearnedAnswer, best_response
from coterie.page.drift import Drift, drift_of
from coterie.page.game import followers_reward, settled, utility_of
from coterie.page.messages import (
    CONTROLLED_UPDATE,
    UPDATE,
    ControlledMove,
    ControlledStage,
    Move,
    Stage,
)
from coterie.page.settings import Settings


@dataclass(frozen=True)
class ServerState(ServerModel):
    """State of the server between two stages.

    Attributes:
        weights: W(t).
        utility: ``()`` u_CS of the last stage; NaN before the first.
        seen: ``(N,)`` accuracy of every client's last model on D_CS, 0 where it sent none yet. The
            slot of a client that fails keeps its value.
        agent: what the server remembers of its strategy.
    """

    utility: Tensor
    seen: Tensor
    agent: AgentState


class PageServer(ModelServer[ServerState]):
    """The follower CS of the game; other arguments are those of `ModelServer`.

    Args:
        settings: of the paper, with the reading resolved.
        n_clients: N.
        samples: D_CS.

    Attributes:
        step: by which the leaders are asked to play a stage.

    Raises:
        UserError: there is nothing to measure the models on.
    """

    averages = True
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
        super().__init__(build, training, samples, as_batch)
        self.game, self.n_clients = settings.game, n_clients
        # In the reading decoupled, what each client's c_i moved is looked at, with or without p.
        decoupled = settings.reading == "decoupled"
        self.has_players = settings.game.tune_p or settings.has_leaders or decoupled
        self.released = settings.reading == "released"
        self.utility = utility_of(settings.game.utility or "bounded")
        self.agent = LearnedAnswer(n_clients, settings)
        measures = self.game.tune_p or (
            settings.has_leaders and self.game.server_utility == "aggregate"
        )
        if measures and not len(samples.valid["y"]):
            raise UserError(
                "the server has no validation samples, on which PAGE measures models: raise "
                "data.samples"
            )

    @property
    def sums(self) -> bool:  # type: ignore[override]
        """Only where no single client's model is looked at; then all count alike."""
        return not self.has_players

    @property
    def sums_alike(self) -> bool:
        """As there."""
        return self.sums

    def begin(self, key: Key) -> ServerState:
        """Draw W(1) and the agent."""
        weights = self.initial(key)
        dtype = next(iter(weights.values())).dtype
        agent = self.agent.begin(key.fold("agent"), dtype)
        if not (self.game.tune_p and self.game.follower == "ddpg"):
            agent = replace(agent, agents=None)
        seen = torch.zeros(self.n_clients, dtype=dtype)
        return ServerState(weights, torch.tensor(torch.nan, dtype=dtype), seen, agent)

    def round(self, state: ServerState, cohort: Cohort, key: Key) -> ServerState:
        """One stage t of the game."""
        leaders = cohort.sample(self.settings.fraction, key.fold("sample"))
        stage = self.stage(state, cohort.when[-1])
        if self.has_players:
            moves = leaders.ask(self.step, stage)  # ① to ④
            if moves.up is not None and bool((moves.up.samples > 0).any()):
                ids, move = with_samples(moves.ids, moves.up)
                state = self.answer(state, ids, move, key.fold("answer"), cohort)  # ⑤ and ⑥
            cohort.journal.scalar("fed/clients", len(moves))
        else:  # FedAvg, for which no single client's model is kept
            replies = leaders.ask(UPDATE, stage, reduce=Weighted("equal"))
            if (total := noted(replies, cohort.journal)) is not None:
                state = replace(state, weights=mean_added(state.weights, total))
        self.evaluate_if_due(state, cohort)
        return state

    def stage(self, state: ServerState, number: int) -> Stage:
        """What the leaders get at the begin of stage t, ``number``."""
        return Stage(state.weights, state.utility, number)

    def answer(
        self, state: ServerState, ids: Tensor, move: Move, key: Key, cohort: Cohort
    ) -> ServerState:
        """Choose p(t) (⑤) and aggregate W(t+1) = Σ p_i w_i(t) (⑥, Eq. 5); ``ids`` are ``(A,)``."""
        places = torch.searchsorted(cohort.ids.sort().values, ids)
        seen = self._accuracies(state, move, places)
        agent, p = self._weights(state, seen, move, places, key)
        weights = aggregated(cohort, state.weights, move.change, p)
        u_server = self._server_utility(weights, move, p)
        u_clients = self.utility(move.local_loss)
        reward = followers_reward(u_server, u_clients, self.game, self.released)
        note_stage(cohort.journal, ids, move, u_server, u_clients, p)
        agent = self.agent.rewarded(agent, reward)
        utility = u_server.to(seen.dtype)
        return replace(state, weights=weights, utility=utility, seen=seen, agent=agent)

    def stop(self, state: ServerState, history: Sequence[dict[str, float]]) -> Decision:
        """End in the equilibrium, or after T rounds; the public code plays all rounds.

        A game at rest goes on to its next evaluated round, so that its end is measured.
        """
        every = self.settings.evaluate_every
        measured = not every or len(history) % every == 0
        if not self.released and measured and settled(history, self.game):
            return "end"
        return super().stop(state, history)

    def _accuracies(self, state: ServerState, move: Move, places: Tensor) -> Tensor:
        """s_CS(t): accuracy of every w_i(t) on D_CS; only the agent looks at it."""
        if state.agent.agents is None:
            return state.seen
        quality = self.evaluator.of_models(clients_models(state.weights, move), self.samples.valid)
        return state.seen.index_copy(0, places, quality.accuracy.to(state.seen.dtype))

    def _weights(
        self, state: ServerState, seen: Tensor, move: Move, places: Tensor, key: Key
    ) -> tuple[AgentState, Tensor]:
        """p(t) of the clients that moved, ``(A,)``."""
        agent = state.agent
        if not self.game.tune_p:
            return agent, onto(torch.zeros_like(places, dtype=torch.float64))
        if agent.agents is None:
            return agent, self._best_response(clients_models(state.weights, move))
        known = seen if self.game.order == "after" else state.seen
        agent = self.agent.choose(agent, known, key)
        return agent, onto(agent.p[places])

    def policy(self, agent: AgentState, found: Params, seen: Tensor) -> Tensor:
        """Weights ``(N,)`` of models, each ``(N, ...)``, seen with accuracies ``(N,)`` on D_CS.

        The agent does not explore.
        """
        if agent.agents is None:
            return self._best_response(found)
        return self.agent.policy(agent, seen)

    def _best_response(self, found: Params) -> Tensor:
        return best_response(self.module, found, self.samples.valid, self.game)

    def _server_utility(self, weights: Params, move: Move, p: Tensor) -> Tensor:
        """u_CS(t): of the loss of W(t+1) on D_CS, or of Σ p_i f_i(w_i(t)) (Definition 1)."""
        if self.game.server_utility == "mixture":
            return self.utility((p * move.local_loss).sum())
        alone = {name: value[None] for name, value in weights.items()}
        return self.utility(self.evaluator.of_models(alone, self.samples.valid).loss[0])


def with_samples(ids: Tensor, move: Move) -> tuple[Tensor, Move]:
    """Clients that trained on something, ``(A,)``, and their moves; the others weigh 0."""
    index = (move.samples > 0).nonzero().flatten()
    return ids[index], tree.take(move, index)


def clients_models(weights: Params, move: Move) -> Params:
    """The clients' models w_i(t), each ``(A, ...)``."""
    return {name: weights[name] + change for name, change in move.change.items()}


def aggregated(cohort: Cohort, weights: Params, change: Params, p: Tensor) -> Params:
    """W(t+1) = Σ p_i w_i(t) (Eq. 5), as W(t) + Σ p_i (w_i(t) - W(t)); p is ``(A,)``, sum 1."""
    return moved(weights, cohort.summed(change, p))


def moved(weights: Params, change: Params) -> Params:
    """W(t) + Σ p_i (w_i(t) - W(t))."""
    return {name: w + change[name] for name, w in weights.items()}


def onto(p: Tensor) -> Tensor:
    """Scale the weights of the clients that moved to the sum 1; equal ones where all are 0."""
    total = p.sum()
    return p / total if total > 0 else torch.full_like(p, 1 / len(p))


def note_stage(
    journal: Journal, ids: Tensor, move: Move, u_server: Tensor, u_clients: Tensor, p: Tensor
) -> None:
    """Show what A players did, ``ids``, and what they have of it, ``u_clients``; both ``(A,)``."""
    journal.scalar("fed/loss", (move.loss * move.samples).sum() / move.samples.sum().clamp(min=1))
    journal.scalar("page/reward_server", u_server)
    journal.scalar("page/weights_entropy", torch.special.entr(p.double()).sum())
    strategy = {"reward_clients": u_clients, "lr": move.lr, "epochs": move.epochs.double()}
    for name, values in strategy.items():
        journal.scalar(f"page/{name}", values.mean())
        journal.per_client(f"page/{name}", ids, values)


# The server half of the reading decoupled: PAGE's follower, and c, the mean of all c_i.


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
        moved = cohort.summed(move.control)
        control = moved_mean(state.control, moved, max(state.sizes.clients, 1))
        for name, values in (("share", move.share), ("lr", move.branch_lr)):
            cohort.journal.scalar(f"page/branch_{name}", values.double().mean())
            cohort.journal.per_client(f"page/branch_{name}", ids, values.double())
        answered = super().answer(state, ids, move, key, cohort)
        assert isinstance(answered, DecoupledServerState)
        start = self.drift.start(answered.weights, control)
        return replace(answered, weights=start, mean=answered.weights, control=control)


def moved_mean(control: Params, moved: Params, n: int) -> Params:
    """Move c, the mean of N clients' c_i, by the sum of what some of them moved.

    Example:
        >>> moved_mean({"w": torch.zeros(1)}, {"w": torch.full((1,), 2.0)}, 4)["w"].tolist()
        [0.5]
    """
    return {name: c + moved[name] / n for name, c in control.items()}
