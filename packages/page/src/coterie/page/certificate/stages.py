"""A game frozen at its present stage: what the leaders made of it, what the follower answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import UserError
from coterie.core.federation.chunks import fitting
from coterie.core.local_training.fit import Fitted
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.evaluation import Quality, has_diverged, restored
from coterie.core.methods.kit.training import changes
from coterie.core.protocol.cohort import summed
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors import tree
from coterie.page.algorithm import PageServer, ServerState, moved, onto
from coterie.page.answer import best_weights, mixture_of
from coterie.page.certificate.game import Answer
from coterie.page.game import followers_reward


@dataclass(frozen=True)
class Condition:
    """Gaming conditions z of D plays.

    Attributes:
        weights: W, each ``(D, ...)``.
        accuracy: ``(D, N)`` of the clients' last models on their validation samples.
        seen: ``(D, N)`` of the same on D_CS.
    """

    weights: Params
    accuracy: Tensor
    seen: Tensor

    def play(self, d: int) -> Params:
        """W of one play, each ``(...)``."""
        return {name: value[d] for name, value in self.weights.items()}


@dataclass(frozen=True)
class Trained:
    """What the leaders made of a stage, in D plays; in one, without the first axis.

    Attributes:
        models: ``(D, N, ...)``; W of a client that diverged.
        loss: ``(D, N)`` on their validation samples: infinite for one that diverged, NaN where it
            cannot be measured.
        accuracy: ``(D, N)``, 0 for one that diverged.
        counts: ``(D, N)`` bool, whose models the follower weighs.
    """

    models: Params
    loss: Tensor
    accuracy: Tensor
    counts: Tensor

    def play(self, d: int) -> Trained:
        """One play."""
        return tree.map_tensors(lambda leaf: leaf[d], self)

    def replaced(self, plays: Tensor, who: Tensor, rows: Trained) -> Trained:
        """Put what K clients made of it, ``(K, ...)``, in the places of ``who`` in ``plays``."""
        return tree.map_tensors(lambda leaf, some: leaf.index_put((plays, who), some), self, rows)

    @property
    def counted(self) -> Params:
        """Models that the follower weighs in one play, ``(A, ...)``."""
        return {name: value[self.counts] for name, value in self.models.items()}

    def mixed(self, start: Params, p: Tensor) -> Params:
        """The next W after a stage of one play from ``start``, by p ``(N,)`` or zeros."""
        return moved(start, summed(changes(self.models, start), p))


def outcome(start: Params, fitted: Fitted, quality: Quality, some: Tensor) -> Trained:
    """Put what a training that diverged gives in the place of such clients' numbers.

    Args:
        start: what K clients began with, each ``(K, ...)``.
        fitted: what they have trained.
        quality: of that on their validation samples.
        some: ``(K,)`` bool, who has samples to train on.
    """
    diverged = has_diverged(fitted, quality)
    models = restored(diverged, fitted, start).params
    loss = quality.loss.masked_fill(diverged, torch.inf)
    accuracy = quality.accuracy.masked_fill(diverged, 0.0)
    return Trained(dict(models), loss, accuracy, some & loss.isfinite())


def all_weights(p: Tensor, counts: Tensor) -> Tensor:
    """Weights ``(N,)`` float64 of all clients, by those of the A that count.

    Example:
        >>> all_weights(torch.tensor([0.25, 0.75]), torch.tensor([True, False, True])).tolist()
        [0.25, 0.0, 0.75]
    """
    return torch.zeros(len(counts), dtype=torch.float64).masked_scatter(counts, p.double())


def equal_weights(counts: Tensor) -> Tensor:
    """Equal weights ``(N,)`` of the clients that count; zeros where there is none."""
    return counts.double() / counts.sum().clamp(min=1)


# The follower's part of a game that is frozen at its present stage.

_EXACT = 1e-5  # Frank-Wolfe gap of the follower's best answer


class FollowersPart:
    """What the follower answers, could answer, and has of it.

    Attributes:
        client: half of the run; has the players' utility.
        server: the other half.
        state: of the server at the present stage.
        data: of the N clients.
    """

    client: Any
    server: PageServer
    state: ServerState
    data: SplitSamples

    def _stand(self, module: FederatedRun) -> Any:
        """Take up where a run stands; gives the clients' private state.

        Raises:
            UserError: not everybody takes part in every round.
        """
        if self.server.settings.fraction < 1:
            raise UserError("a certificate needs all clients in every round: train.participation 1")
        cohort = module.newest_cohort()
        cohort.enrol()
        self.data, self.state = module.newest_data, module.server_state
        self._chunk = module.federation.chunk
        return module.store.take(cohort.ids)

    @property
    def n_leaders(self) -> int:
        """N."""
        return len(self.data)

    def problem(self, here: Trained, seen: Tensor) -> Answer:
        """The follower's problem after what the leaders made of the present stage.

        Args:
            here: of one play.
            seen: ``(N,)`` accuracies of their models on D_CS.
        """
        learned = self._reply(here, seen, self.state.seen)
        best, loss, bound = self._best_answer(here)

        def reward(of_loss: float) -> float:
            return float(self._followers(self._u_server(of_loss), here))

        return Answer(
            learned,
            reward(self._server_loss(self.state.weights, here, learned)),
            best,
            reward(loss),
            None if bound is None else reward(max(bound, 0.0)),
            equal_weights(here.counts)[None],
        )

    def _pieces(self, who: Tensor) -> Sequence[Tensor]:
        """Cut the places in ``who``, ``(K,)``, in chunks as large as a run's."""
        places = torch.arange(len(who))
        if self._chunk is not None:
            return places.split(self._chunk)
        return places.split(fitting(self.client.footprint(self.data, None)[who]))

    def _u_server(self, loss: float) -> Tensor:
        return self.server.utility(torch.tensor(loss, dtype=torch.float64))

    def _followers(self, u_server: Tensor, here: Trained) -> Tensor:
        u_clients = self.client.utility(here.loss[here.counts])
        return followers_reward(u_server, u_clients, self.server.game, self.server.released)

    def _seen(self, trained: Trained, before: Tensor) -> Tensor:
        """Accuracies on D_CS, ``(D, N)``; only an agent looks at them."""
        before = before.expand(len(trained.loss), -1)
        if self.state.agent.agents is None:
            return before
        flat = {name: value.flatten(0, 1) for name, value in trained.models.items()}
        quality = self.server.evaluator.of_models(flat, self.server.samples.valid)
        accuracy = quality.accuracy.reshape(trained.loss.shape).to(before.dtype)
        return torch.where(trained.counts, accuracy, before)

    def _reply(self, here: Trained, seen: Tensor, before: Tensor) -> Tensor:
        """The follower's learned answer ``(N,)`` float64 to one play.

        It depends on what the models' accuracies on D_CS are, ``seen``, or were ``before`` for a
        server that chooses first, ``(N,)``.
        """
        if not self._has_choice(here):
            return equal_weights(here.counts)
        known = seen if self.server.game.order == "after" else before
        p = self.server.policy(self.state.agent, here.counted, known).double()
        own = p if self.state.agent.agents is None else onto(p[here.counts])
        return all_weights(own, here.counts)

    def _has_choice(self, here: Trained) -> bool:
        return self.server.game.tune_p and bool(here.counts.any())

    def _best_answer(self, here: Trained) -> tuple[Tensor, float, float | None]:
        """Best answer found, its loss, and a lower bound of any answer's loss."""
        if not self._has_choice(here):  # there is no other answer
            equal = equal_weights(here.counts)
            value = self._server_loss(self.state.weights, here, equal)
            return equal, value, value
        if self.server.game.server_utility == "mixture":  # linear in p: all on the least loss
            loss = here.loss.masked_fill(~here.counts, torch.inf)
            best = torch.nn.functional.one_hot(loss.argmin(), self.n_leaders).double()
            return best, float(loss.min()), float(loss.min())
        mixture = mixture_of(self.server.module, here.counted, self.server.samples.valid)
        found = best_weights(mixture, _EXACT)
        return all_weights(found.p, here.counts), found.value, found.bound

    def _server_loss(self, start: Params, here: Trained, p: Tensor) -> float:
        """Loss that u_CS is of, by p and W at the stage's start; NaN if none is measured."""
        if self.server.game.server_utility == "mixture":
            return float((p * here.loss.masked_fill(~here.counts, 0.0)).sum() / p.sum())
        mixed = {name: value[None] for name, value in here.mixed(start, p).items()}
        return float(self.server.evaluator.of_models(mixed, self.server.samples.valid).loss)
