"""Dap-FL: FedAvg whose clients choose their learning rate and number of epochs themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from coterie.core.agents.action_maps import Integers, Logarithmic
from coterie.core.agents.ddpg import DDPG, Agents, Experience
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.losses import AsBatch
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.evaluation import Quality, has_diverged, restored
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_messages import GlobalModel, ModelUpdate, OwnModel
from coterie.core.methods.kit.model_server import ModelServer, ServerModel
from coterie.core.methods.kit.training import changes, same_for_all
from coterie.core.methods.kit.uploads import Weighted, changed, mean_added, measured, noted
from coterie.core.methods.settings.any_module import DapFLSettings
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.messages import Step
from coterie.core.protocol.uploads import Count, Flag
from coterie.core.tensors.keys import Key

_AGENT = {"agents", "last"}  # the private fields that an agent's choice depends on
_LOWEST = -1.0  # score of a model without accuracy and of infinite loss


@dataclass(frozen=True)
class TunedUpdate(ModelUpdate):
    """A client's update, and what its agent chose for it."""

    change: Params = changed("the model's parameters, w_k - w", _AGENT)  # each (C, ...)
    loss: Tensor = measured("mean training loss", _AGENT)  # (C,)
    lr: Tensor = measured("learning rate", _AGENT)  # (C,)
    epochs: Tensor = measured("local epochs", _AGENT, Count())  # (C,) int64
    diverged: Tensor = measured(  # (C,) bool
        "whether the training diverged; such a model does not count", _AGENT, Flag()
    )


@dataclass(frozen=True)
class Tuner(OwnModel):
    """What a client keeps beside its model.

    Attributes:
        agents: its agent.
        last: its agent's last round.
    """

    agents: Agents
    last: Experience


UPDATE = Step("update", GlobalModel, TunedUpdate, diverged="diverged")


class DapFLClient(ModelClient[Tuner]):
    """Client of Dap-FL (Chen et al., TPDS 2023) for any module.

    A state is accuracy a and loss f of the model received, each in [0, 1]: in place of the mean
    cross-entropy f stands 1 - exp(-f), which an agent's network can take. An action is learning
    rate, on a logarithmic scale, and number of epochs. The reward is what the client's own training
    won, (a - f) of the model trained minus (a - f) of the model received. The authors' public code
    differs: it rewards the change of the received model from round to round, which all clients
    cause together, its state has the F1 score too, and it measures on training samples. Of a module
    without ``correct`` accuracies count as 0.
    """

    settings: DapFLSettings

    def __init__(
        self, module: nn.Module, settings: DapFLSettings, as_batch: AsBatch | None = None
    ) -> None:
        super().__init__(module, settings, as_batch)
        self.ddpg = DDPG(2, 2, settings.agent)
        several = settings.lr_min < settings.lr
        self._lr = Logarithmic(settings.lr_min, settings.lr) if several else None
        self._epochs = Integers(settings.epochs_min, settings.epochs)
        self._dtype = next(iter(self._form.values())).dtype if self._form else torch.float32

    def enrol(self, data: SplitSamples, key: Key) -> Tuner:
        """Start with an agent that knows nothing."""
        own = self.newcomers(len(data))
        agents = self.ddpg.begin(key.fold("agent"), self._dtype)
        nothing = Experience.none(self.ddpg, len(data), self._dtype)
        return Tuner(own.personal, own.rounds, agents, nothing)

    @UPDATE
    def update(
        self, down: GlobalModel, mine: Tuner, data: SplitSamples, key: Key
    ) -> tuple[TunedUpdate, Tuner]:
        """Let the agent learn of the last round and choose, then run SGD from w as it says.

        Training that diverges is rewarded as a model without accuracy and of infinite loss would
        be; the client's model is w then, and what it sends does not count.
        """
        state = self.state({n: w[None] for n, w in down.weights.items()}, data)
        last = mine.last
        agents = self.ddpg.remember(
            mine.agents, last.state, last.action, last.utility, state, last.known
        )
        agents, _ = self.ddpg.learn(agents, key.fold("learn"))
        # A state that is not finite has the client refused, for it is kept in ``last``.
        action, agents = self.ddpg.act(agents, state.nan_to_num(0.0), key.fold("act"))
        lr, epochs = self.read(action)
        start = same_for_all(down.weights, len(data))
        fitted = self.local.train(start, self.local.batches(data.train, key, epochs), lr=lr)
        quality = self.measure(fitted.params, data)
        diverged = has_diverged(fitted, quality)
        fitted = restored(diverged, fitted, start)
        score = _score(self._bounded(quality)).masked_fill(diverged, _LOWEST)
        won = score - _score(state)
        last = Experience(state, action, won, data.lengths > 0)
        up = TunedUpdate(
            changes(fitted.params, down.weights), data.lengths, fitted.loss, lr, epochs, diverged
        )
        return up, Tuner(self.kept(fitted.params), mine.rounds + 1, agents, last)

    def state(self, params: Params, data: SplitSamples) -> Tensor:
        """Accuracy and bounded loss of models, ``(C, 2)``; 0 for a client without samples."""
        return self._bounded(self.measure(params, data))

    def measure(self, params: Params, data: SplitSamples) -> Quality:
        """Measure models on the samples chosen; the loss of a client without samples is 0.

        ``params`` are each ``(C, ...)``, or ``(1, ...)`` where all clients have the same.
        """
        if self.settings.measure_on == "valid":
            found = self.evaluator.held_out(params, data)
        else:
            found = self.evaluator.of_clients(params, data.train)
        nothing = (data.lengths == 0) & (data.valid.lengths == 0)
        loss = found.loss.masked_fill(nothing, 0.0)
        return Quality(found.values | {"loss": loss})

    def _bounded(self, found: Quality) -> Tensor:
        accuracy = found.accuracy.nan_to_num(0.0)
        return torch.stack([accuracy, 1 - (-found.loss).exp()], dim=1).to(self._dtype)

    def read(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Learning rates ``(C,)`` and numbers of epochs ``(C,)`` int64 of actions ``(C, 2)``."""
        most = action.new_full((len(action),), self.settings.lr)
        return most if self._lr is None else self._lr(action[:, 0]), self._epochs(action[:, 1])


def _score(state: Tensor) -> Tensor:
    return state[:, 0] - state[:, 1]


class DapFLServer(ModelServer[ServerModel]):
    """Server of Dap-FL (Chen et al., TPDS 2023): FedAvg's, with p_i = 1/N by default.

    The paper's encrypted aggregation computes the same mean and is not built here.
    """

    averages = sums = True

    def round(self, state: ServerModel, cohort: Cohort, key: Key) -> ServerModel:
        """One round of FedAvg, in which training that diverged does not count."""
        chosen = cohort.sample(self.settings.fraction, key.fold("sample"))
        down, fold = GlobalModel(state.weights), Weighted(self.settings.weighting)
        replies = chosen.ask(UPDATE, down, reduce=fold)
        if (total := noted(replies, cohort.journal)) is not None:
            state = replace(state, weights=mean_added(state.weights, total))
            for name, value in (("lr", total.sums.lr), ("epochs", total.sums.epochs)):
                cohort.journal.scalar(f"fed/{name}", value.double() / total.weight)
        self.evaluate_if_due(state, cohort)
        return state
