"""The client halves of PAGE: leaders, who choose how they train, or their branch (section 4.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.agents.ddpg import DDPG
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.fit import Fitted
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.branch import Branched
from coterie.core.methods.kit.evaluation import Quality, has_diverged, restored
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.sizes import TellsSize
from coterie.core.methods.kit.training import changes, same_for_all
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.page.drift import drift_of
from coterie.page.game import leaders_reward, strategies_of, utility_of
from coterie.page.messages import (
    CONTROLLED_UPDATE,
    UPDATE,
    ClientState,
    ControlledMove,
    ControlledStage,
    DecoupledState,
    Experience,
    Move,
    Stage,
)
from coterie.page.settings import Settings

_LEAST = 1e-30  # likelihood, so that its logarithm is finite


class PageClient(ModelClient[ClientState]):
    """A leader c_i of the game, with its agent; other arguments are those of `ModelClient`.

    Args:
        training: epochs and learning rate are the most that may be chosen.
        settings: of the paper, with the reading resolved.
    """

    def __init__(
        self,
        module: nn.Module,
        training: FedAvgSettings,
        settings: Settings,
        as_batch: Callable[[dict[str, Tensor]], Any] | None = None,
    ) -> None:
        super().__init__(module, training, as_batch)
        self.page = settings
        self.strategies = strategies_of(settings)
        self.utility = utility_of(settings.game.utility or "bounded")
        n_state = 3 if settings.reading == "recommended" else 1
        self.ddpg = DDPG(n_state, self.strategies.n_action, settings.client_agent.ddpg())
        self._dtype = next((v.dtype for v in self._form.values()), torch.float32)

    def enrol(self, data: SplitSamples, key: Key) -> ClientState:
        """Start with an agent that knows nothing."""
        own, n_clients = self.newcomers(len(data)), len(data)
        chooses = self.strategies.n_action > 0
        return ClientState(
            own.personal,
            own.rounds,
            self.ddpg.begin(key.fold("agent"), self._dtype) if chooses else None,
            Experience.none(self.ddpg, n_clients, self._dtype),
            torch.zeros(n_clients, dtype=self._dtype),
            torch.zeros(n_clients, dtype=torch.int64),
        )

    @UPDATE
    def update(
        self, down: Stage, mine: ClientState, data: SplitSamples, key: Key
    ) -> tuple[Move, ClientState]:
        """Play a stage (section 4.4, ② to ④): update the agent, choose (η_i, α_i), train."""
        received = self.measure({n: w[None] for n, w in down.weights.items()}, data)
        state = self.state(received, mine)
        mine = self.learnt(down, mine, state, key)
        mine, action = self.chosen(mine, state, key)
        return self.trained(down, mine, data, key, state, action)

    def measure(self, params: Params, data: SplitSamples) -> Quality:
        """Measure models as `Evaluator.held_out`; without samples, loss and accuracy are 0."""
        found = self.evaluator.held_out(params, data)
        nothing = (data.valid.lengths == 0) & (data.lengths == 0)
        return tree.map_tensors(lambda values: values.masked_fill(nothing, 0.0), found)

    def state(self, received: Quality, mine: ClientState) -> Tensor:
        """State s_i(t), ``(C, n_state)``.

        recommended: accuracy and likelihood of W(t), accuracy of w_i(t - 1); literal: the last
        alone, which is the paper's acc_i as far as it is known before the stage is played;
        released: the accuracy of W(t).
        """
        accuracy = received.accuracy.expand(len(mine.accuracy)).to(self._dtype)
        match self.page.reading:
            case "recommended":
                likelihood = (-received.loss).exp().to(self._dtype)
                last = mine.accuracy.to(self._dtype)
                return torch.stack([accuracy, likelihood, last], dim=1)
            case "literal":
                return mine.accuracy[:, None]
            case _:  # released
                return accuracy[:, None]

    def learnt(self, down: Stage, mine: ClientState, state: Tensor, key: Key) -> ClientState:
        """Complete the last stage's experience by the state it led to, and update the agent."""
        if mine.agents is None:
            return mine
        last, released = mine.last, self.page.reading == "released"
        # NaN before anybody's training counted, which is as little as the server can have.
        server = down.server_utility.nan_to_num(0.0).to(self._dtype)
        reward = leaders_reward(last.utility, server, self.page.game, released)
        if self.page.reading == "recommended":
            # Of a stage only what training added: W is given, so the best action stays the same,
            # and the steady rise of W does not drown the difference that an action makes.
            received = self.utility(-last.state[:, 1].clamp(min=_LEAST).log())
            nothing = torch.zeros_like(server)
            reward = reward - leaders_reward(received, nothing, self.page.game, released)
        known = last.known
        if self.page.game.reward_ratio is not None:  # what u_CS is of, others may not have played
            known = known & (mine.stage == down.number - 1)
        agents = self.ddpg.remember(mine.agents, last.state, last.action, reward, state, known)
        agents, _ = self.ddpg.learn(agents, key.fold("learn"))
        return replace(mine, agents=agents)

    def chosen(self, mine: ClientState, state: Tensor, key: Key) -> tuple[ClientState, Tensor]:
        """Let the agents choose actions, ``(C, n_action)``."""
        if mine.agents is None:
            return mine, state.new_zeros(len(state), 0)
        warm = self.ddpg.warming_up(mine.agents)
        # A state that is not finite has the client refused, for it is kept in ``last``.
        raw, agents = self.ddpg.act(mine.agents, state.nan_to_num(0.0), key.fold("act"))
        action = self.strategies.choose(raw, warm, key.fold("warm up"))
        return replace(mine, agents=agents), action

    def trained(
        self,
        down: Stage,
        mine: ClientState,
        data: SplitSamples,
        key: Key,
        state: Tensor,
        action: Tensor,
    ) -> tuple[Move, ClientState]:
        """Train w_i(t) = Train(η_i, α_i; W(t)) (Eq. 4) and take note of the stage.

        Where the training of a client with an agent diverges, its utility is the lowest, 0, and so
        is its accuracy; its model is W(t), and what it sends does not count.

        Args:
            down: the stage.
            mine: after the agents have chosen.
            data: of C clients.
            key: of the step.
            state: ``(C, n_state)`` that the actions answer to.
            action: ``(C, n_action)``.
        """
        lr, epochs = self.strategies.read(action)
        start = same_for_all(down.weights, len(data))
        batches = self.local.batches(data.train, key, epochs)
        fitted = self.local.train(start, batches, lr=lr)
        quality = self.measure(fitted.params, data)
        utility = self.utility(quality.loss).to(self._dtype)
        diverged = torch.zeros(len(data), dtype=torch.bool)
        if mine.agents is not None:  # who is refused leaves no trace: its agent would never learn
            diverged = has_diverged(fitted, quality)
            fitted = restored(diverged, fitted, start)
            quality = tree.map_tensors(lambda values: values.masked_fill(diverged, 0.0), quality)
            utility = utility.masked_fill(diverged, 0.0)
        kept = ClientState(
            self.kept(fitted.params),
            mine.rounds + 1,
            mine.agents,
            Experience(state, action, utility, data.lengths > 0),
            quality.accuracy.to(self._dtype),
            torch.full_like(mine.stage, down.number),
        )
        move = Move(
            changes(fitted.params, down.weights),
            data.lengths,
            fitted.loss,
            quality.loss,
            lr,
            epochs,
            diverged,
        )
        return move, kept


# The client half of the reading decoupled: it sends w_i, and keeps a branch v_i of its own.


class DecoupledClient(TellsSize, ModelClient[DecoupledState]):
    """A leader whose action is its personal branch; other arguments are those of `ModelClient`.

    What it sends is kept free of drift (`coterie.page.drift`), and is no choice: it is
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
