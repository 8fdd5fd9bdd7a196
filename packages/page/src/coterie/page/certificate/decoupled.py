"""The game of the reading decoupled, frozen at its present stage.

A leader's action is its branch: the share a_i, and the learning rate of u_i (0 = the model that is
sent). What a client sends does not depend on it, so all deviations of leaders meet one and the same
course of W, which is played once a key. Only a deviation of the follower has a course of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.local_training.row_optimizer import Params
from coterie.core.local_training.stacking import concatenate
from coterie.core.methods.kit.evaluation import Quality
from coterie.core.methods.kit.training import same_for_all
from coterie.core.protocol.cohort import summed
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.page.algorithm import DecoupledServer, DecoupledServerState, moved_mean
from coterie.page.certificate.game import Answer, Deviation
from coterie.page.certificate.stages import FollowersPart, Trained, outcome
from coterie.page.client import DecoupledClient
from coterie.page.messages import DecoupledState

_KEPT = 8  # first stages and courses, one a key: more than the fresh seeds of a usual test


@dataclass(frozen=True)
class _Moved:
    """What the leaders make of a stage, each ``(N, ...)``.

    Attributes:
        trained: models w_i, and losses of v_i.
        control: c_i+ - c_i; 0 for a client that diverged.
        sent: w_i, of a client that diverged too.
        action: ``(N, 2)`` a_i, and the learning rate of u_i.
    """

    trained: Trained
    control: Params
    sent: Params
    action: Tensor


class DecoupledGame(FollowersPart):
    """A run of the reading decoupled, where it stands, as `coterie.page.certificate.game.Game`.

    Args:
        module: the run.

    Raises:
        UserError: not everybody takes part in every round, or the clients keep no branch.
    """

    state: DecoupledServerState

    def __init__(self, module: FederatedRun) -> None:
        client, server = module.federation.client, module.federation.server
        if not isinstance(client, DecoupledClient) or not isinstance(server, DecoupledServer):
            raise UserError("certify a run of --method page --reading decoupled")
        if client.branch is None:
            raise UserError(
                "the clients of this run have nothing to choose, so there is no game to certify: "
                "train with branch.use"
            )
        self.client, self.server, self.branch = client, server, client.branch
        self.mine: DecoupledState = self._stand(module)
        self._first = lru_cache(maxsize=_KEPT)(self._present)
        self._course = lru_cache(maxsize=_KEPT)(partial(self._plays, answer=None))
        self._paid: dict[tuple[Key, int, tuple[float, ...]], float] = {}

    def candidates(self, size: int) -> Tensor:
        """Actions that are tried for each leader, ``(G, 2)``.

        ``size`` shares from 0 to 1, and for each but 0 as many learning rates from game.lr_min to
        train.lr and the model that is sent; finer than what the policy looks at, or between.
        """
        most, rates = self.client.settings.lr, torch.zeros(1, dtype=torch.float64)
        if len(self.branch.rates) > 1:
            least = min(self.server.game.lr_min, most)
            steps = torch.linspace(0, 1, size, dtype=torch.float64)
            rates = torch.cat([rates, least * (most / least) ** steps])  # on a logarithmic scale
        shares = torch.linspace(0, 1, size, dtype=torch.float64)[1:]
        return torch.cat([shares.new_zeros(1, 2), torch.cartesian_prod(shares, rates)])

    def learned_actions(self) -> Tensor:
        """Actions of the leaders' policy, ``(N, 2)``, under one draw."""
        return self._first(Key.from_seed(0)).action

    def described(self, action: Tensor) -> dict[str, float]:
        """Share a_i, and learning rate of u_i, 0 for the model that is sent."""
        share, lr = action.tolist()
        return {"share": share, "lr": lr}

    def stage_payoffs(self, actions: Tensor, key: Key) -> Tensor:
        """Utilities ``(N,)`` of this stage, if leader i plays ``actions[i]``."""
        return self._played(torch.arange(self.n_leaders), actions, key)

    def payoffs(
        self, deviations: Sequence[Deviation], horizon: int, gamma: float, key: Key
    ) -> Tensor:
        """Play on, ``(D, N + 1)``: discounted utilities of the leaders and the follower.

        A leader's deviation changes its own utility of the present stage, and nothing else.
        """
        weight = gamma ** torch.arange(horizon, dtype=torch.float64)[:, None]
        total = []
        for one in deviations:
            learned = one.answer is None
            course = (
                self._course(key, horizon) if learned else self._plays(key, horizon, one.answer)
            )
            total.append((weight * course).sum(0))
        found, first = torch.stack(total), self._first(key)
        own = self.client.utility(first.trained.loss).double()
        moved = [(d, one) for d, one in enumerate(deviations) if one.leader is not None]
        if moved:
            rows = torch.tensor([d for d, _ in moved])
            who = torch.tensor([one.leader for _, one in moved])
            actions = torch.stack([torch.as_tensor(one.action) for _, one in moved])
            found[rows, who] += self._played(who, actions, key).double() - own[who]
        return found

    def answer(self, deviation: Deviation, key: Key) -> Answer:
        """The follower's problem; a leader's deviation does not reach it."""
        trained = self._first(key).trained
        return self.problem(trained, self._seen_by_one(trained, self.state.seen))

    def _played(self, who: Tensor, actions: Tensor, key: Key) -> Tensor:
        """Utilities ``(K,)`` of leaders ``who`` by their actions ``(K, 2)`` in this stage."""
        names = [
            (key, leader, tuple(action))
            for leader, action in zip(who.tolist(), actions.tolist(), strict=True)
        ]
        rows = [row for row, name in enumerate(names) if name not in self._paid]
        if rows:
            some = torch.tensor(rows)
            paid = self.client.utility(self._losses(who[some], actions[some], key)).tolist()
            self._paid |= {names[row]: value for row, value in zip(rows, paid, strict=True)}
        return torch.tensor([self._paid[name] for name in names], dtype=torch.float64)

    def _losses(self, who: Tensor, actions: Tensor, key: Key) -> Tensor:
        """Losses ``(K,)`` of the branches of leaders ``who``, by ``(K, 2)`` actions."""
        sent, keys = self._first(key).sent, self._keys(key, 0)
        found = []
        for places in self._pieces(who):
            mine, data = who[places], self.data.take(who[places])
            start = same_for_all(self.state.weights, len(mine))
            share, lr = actions[places].unbind(1)
            made = self.branch.played(
                start, tree.take(sent, mine), data, keys.take(mine), share, lr
            )
            nothing = (data.valid.lengths == 0) & (data.lengths == 0)
            found.append(made.loss.masked_fill(nothing, 0.0))
        return torch.cat(found)

    def _present(self, key: Key) -> _Moved:
        """The leaders' part of the present stage, by their policy."""
        return self._stage(
            self.state.weights, self.state.control, self.mine.control, self._keys(key, 0)
        )

    def _keys(self, key: Key, stage: int) -> Key:
        return key.fold("stage", stage).fold(self.data.ids)

    def _stage(self, weights: Params, control: Params, own: Params, keys: Key) -> _Moved:
        """What the leaders make of a stage from W, c and c_i."""

        def stacked(places: Tensor) -> _Moved:
            data, mine, drawn = self.data.take(places), tree.take(own, places), keys.take(places)
            fitted, moved = self.client.trained(weights, control, mine, data, drawn)
            start = same_for_all(weights, len(data))
            branch = self.client.own_branch(start, fitted.params, data, drawn)
            nothing = (data.valid.lengths == 0) & (data.lengths == 0)
            quality = tree.map_tensors(
                lambda values: values.masked_fill(nothing, 0.0),
                Quality({"loss": branch.loss, "accuracy": branch.accuracy}),
            )
            trained = outcome(start, fitted, quality, data.lengths > 0)
            still = tree.map_tensors(torch.zeros_like, moved)
            return _Moved(
                trained,
                tree.where_rows(trained.counts, moved, still),
                dict(fitted.params),
                torch.stack([branch.share, branch.lr], dim=1),
            )

        return concatenate([stacked(p) for p in self._pieces(torch.arange(self.n_leaders))])

    def _plays(self, key: Key, horizon: int, answer: Tensor | None) -> Tensor:
        """Utilities of leaders and follower in every stage, ``(H, N + 1)``.

        ``answer`` is the follower's in the present stage; None = by its policy.
        """
        weights, control, own = self.state.weights, self.state.control, self.mine.control
        seen, rewards = self.state.seen, []
        n = max(int((self.data.lengths > 0).sum()), 1)
        for stage in range(horizon):
            now = self._first(key)
            if stage:
                now = self._stage(weights, control, own, self._keys(key, stage))
            before, seen = seen, self._seen_by_one(now.trained, seen)
            given = answer is not None and stage == 0
            p = answer if given else self._reply(now.trained, seen, before)
            assert p is not None
            u_server = self._u_server(self._server_loss(weights, now.trained, p))
            u_clients = self.client.utility(now.trained.loss).double()
            follower = self._followers(u_server, now.trained).reshape(1).double()
            rewards.append(torch.cat([u_clients, follower]))
            control = moved_mean(control, summed(now.control), n)
            weights = self.client.drift.start(now.trained.mixed(weights, p), control)
            own = {name: c + now.control[name] for name, c in own.items()}
        return torch.stack(rewards)

    def _seen_by_one(self, trained: Trained, before: Tensor) -> Tensor:
        """Accuracies ``(N,)`` on D_CS in one play."""
        return self._seen(tree.map_tensors(lambda leaf: leaf[None], trained), before[None])[0]
