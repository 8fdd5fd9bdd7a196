"""The game that a federation of PAGE plays, frozen at its present stage.

Policies no longer learn and do not explore. A client's draws depend on the key, the stage and the
client alone, so every deviation meets the same ones, and in the first stage only the client that
deviates has to be trained anew. Clients whose training diverges are treated as in a run: utility
and accuracy are 0, and neither they nor clients without samples have a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from coterie.core.data.samples.samples import RepeatedBatches
from coterie.core.errors import UserError
from coterie.core.local_training.row_optimizer import Params
from coterie.core.local_training.stacking import concatenate
from coterie.core.methods.kit.training import same_for_all
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.page.algorithm import PageServer
from coterie.page.certificate.game import Answer, Deviation
from coterie.page.certificate.stages import Condition, FollowersPart, Trained, outcome
from coterie.page.client import PageClient
from coterie.page.game import leaders_reward
from coterie.page.messages import ClientState

_KEPT = 8  # first stages, one a key: more than the fresh seeds of a usual test


class FederationGame(FollowersPart):
    """A run of PAGE, where it stands, as `coterie.page.certificate.game.Game`.

    Args:
        module: the run; before its first round, with agents that know nothing.

    Raises:
        UserError: the run is not one of PAGE with everybody in every round, or nothing is left to
            choose in it.
    """

    def __init__(self, module: FederatedRun) -> None:
        client, server = module.federation.client, module.federation.server
        if not isinstance(client, PageClient) or not isinstance(server, PageServer):
            raise UserError("only a game has an equilibrium: certify a run of --method page")
        self.client, self.server = client, server
        self.mine: ClientState = self._stand(module)
        if self.mine.agents is None:
            raise UserError(
                "the clients of this run have nothing to choose, so there is no game to certify: "
                "train with game.tune_lr or game.tune_epochs and more than one value to choose"
            )
        self._first = lru_cache(maxsize=_KEPT)(self._learned_stage)

    def learned_actions(self) -> Tensor:
        """Raw actions ``(N, nA)`` of the leaders' policies."""
        return self._policies(self._present())[0]

    def candidates(self, size: int) -> Tensor:
        """Actions that are tried for each leader, ``(G, nA)``: raw ones on a grid."""
        return grid(size, self.learned_actions().shape[1])

    def described(self, action: Tensor) -> dict[str, float]:
        """Learning rate η and number of epochs α that a raw action ``(nA,)`` means."""
        lr, epochs = self._strategies(action[None], Key.from_seed(0).fold(torch.zeros(1).long()))
        return {"lr": float(lr), "epochs": int(epochs)}

    def stage_payoffs(self, actions: Tensor, key: Key) -> Tensor:
        """Rewards ``(N,)`` of this stage, leader i's if it alone plays ``actions[i]``."""
        game, z = self.server.game, self._present()
        tried = self._train(z, actions[None], key.fold("stage", 0))
        if game.ratio() is None or self.server.released:  # nothing is shared
            u_clients = self.client.utility(tried.loss[0])
            return leaders_reward(u_clients, torch.zeros(()), game, self.server.released)
        learned, found = self._first(key), []  # the follower answers to each deviation by itself
        for leader in torch.arange(self.n_leaders)[:, None]:
            rows = tree.map_tensors(lambda leaf, who=leader: leaf[0, who], tried)
            alone = learned.replaced(torch.tensor([0]), leader, rows)
            found.append(self._end_stage(z, alone, [None])[1][0, leader])
        return torch.cat(found)

    def payoffs(
        self, deviations: Sequence[Deviation], horizon: int, gamma: float, key: Key
    ) -> Tensor:
        """Play on, ``(D, N + 1)``: discounted rewards of the leaders and the follower."""
        n_plays = len(deviations)
        z = tree.map_tensors(lambda one: one.expand(n_plays, *one.shape[1:]), self._present())
        total = torch.zeros(n_plays, self.n_leaders + 1, dtype=torch.float64)
        for stage in range(horizon):
            if stage == 0:
                trained = self._deviating(deviations, key)
                answers = [one.answer for one in deviations]
            else:
                trained = self._train(z, self._policies(z), key.fold("stage", stage))
                answers = [None] * n_plays
            z, rewards = self._end_stage(z, trained, answers)
            total += gamma**stage * rewards
        return total

    def answer(self, deviation: Deviation, key: Key) -> Answer:
        """The follower's problem after the leaders' part of a deviation."""
        trained = self._deviating([deviation], key)
        seen = self._seen(trained, self.state.seen[None])[0]
        return self.problem(trained.play(0), seen)

    def _present(self) -> Condition:
        now = Condition(self.state.weights, self.mine.accuracy, self.state.seen)
        return tree.map_tensors(lambda leaf: leaf[None], now)

    def _policies(self, z: Condition) -> Tensor:
        """Raw actions ``(D, N, nA)`` of the learned policies."""
        assert self.mine.agents is not None
        found = []
        for d in range(len(z.accuracy)):
            received = self.client.measure(
                {n: w[d : d + 1] for n, w in z.weights.items()}, self.data
            )
            state = self.client.state(received, replace(self.mine, accuracy=z.accuracy[d]))
            found.append(self.client.ddpg.policy(self.mine.agents, state.nan_to_num(0.0)))
        return torch.stack(found)

    def _train(self, z: Condition, raw: Tensor, key: Key) -> Trained:
        """Train all clients of D plays, stacked; ``raw`` is ``(D, N, nA)``."""
        n = self.n_leaders
        start = tree.map_tensors(lambda w: w.repeat_interleave(n, 0), z.weights)
        trained = self._fit(start, torch.arange(n).repeat(len(raw)), raw.flatten(0, 1), key)
        return tree.map_tensors(lambda leaf: leaf.unflatten(0, (len(raw), n)), trained)

    def _fit(self, start: Params, who: Tensor, raw: Tensor, key: Key) -> Trained:
        """Train clients ``who``, ``(K,)``, who may come more than once; leaves are ``(K, ...)``."""
        own = key.fold(self.data.ids)
        lr, epochs = self._strategies(raw, own.take(who))
        batches = self.client.local.batches(self.data.train, own, int(epochs.max()))

        def stacked(places: Tensor) -> Trained:
            begin, some = tree.take(start, places), who[places]
            mine = RepeatedBatches(batches, some, epochs[places])
            fitted = self.client.local.train(begin, mine, lr=lr[places])
            quality = self.client.measure(fitted.params, self.data.take(some))
            return outcome(begin, fitted, quality, self.data.lengths[some] > 0)

        return concatenate([stacked(places) for places in self._pieces(who)])

    def _strategies(self, raw: Tensor, key: Key) -> tuple[Tensor, Tensor]:
        """Learning rates and numbers of epochs, both ``(K,)``, of agents that do not explore."""
        play, warm = self.client.strategies, torch.zeros(len(raw), dtype=torch.bool)
        return play.read(play.choose(raw.to(self.mine.accuracy.dtype), warm, key))

    def _learned_stage(self, key: Key) -> Trained:
        z = self._present()
        return self._train(z, self._policies(z), key.fold("stage", 0))

    def _deviating(self, deviations: Sequence[Deviation], key: Key) -> Trained:
        """The first stage: learned play, but for the leader that deviates."""
        learned = self._first(key)
        shared: Trained = tree.map_tensors(
            lambda leaf: leaf.expand(len(deviations), *leaf.shape[1:]).clone(), learned
        )
        moved = [d for d, one in enumerate(deviations) if one.leader is not None]
        if not moved:
            return shared
        who = torch.tensor([deviations[d].leader for d in moved])
        raw = torch.stack([torch.as_tensor(deviations[d].action) for d in moved])
        start = same_for_all(self.state.weights, len(moved))
        others = self._fit(start, who, raw, key.fold("stage", 0))
        return shared.replaced(torch.tensor(moved), who, others)

    def _end_stage(
        self, z: Condition, trained: Trained, answers: Sequence[Tensor | None]
    ) -> tuple[Condition, Tensor]:
        """Let the follower answer, and reward everybody, ``(D, N + 1)``."""
        seen = self._seen(trained, z.seen)
        weights, rewards = [], []
        for d, given in enumerate(answers):
            here, start = trained.play(d), z.play(d)
            p = self._reply(here, seen[d], z.seen[d]) if given is None else given
            u_server = self._u_server(self._server_loss(start, here, p))
            u_clients = self.client.utility(here.loss)
            leaders = leaders_reward(u_clients, u_server, self.server.game, self.server.released)
            follower = self._followers(u_server, here)
            rewards.append(torch.cat([leaders.double(), follower.reshape(1).double()]))
            weights.append(here.mixed(start, p))
        following = {name: torch.stack([one[name] for one in weights]) for name in z.weights}
        accuracy = trained.accuracy.to(z.accuracy.dtype)
        return Condition(following, accuracy, seen), torch.stack(rewards)


def grid(size: int, n_action: int) -> Tensor:
    """Raw actions ``(size ** n_action, n_action)`` that cover [-1, 1] evenly.

    Example:
        >>> grid(2, 2).tolist()
        [[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]]
    """
    line = torch.linspace(-1, 1, size)
    return torch.cartesian_prod(*[line] * n_action).reshape(-1, n_action)
