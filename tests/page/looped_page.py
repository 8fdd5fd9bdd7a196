"""PAGE written plainly: stage by stage, client by client, agent by agent, in float64."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from tests.core.agents.looped_ddpg import LoopedAgent
from tests.core.methods.labelled_clients import (
    KEY,
    SECRET,
    built,
    epochs_of,
    key_of,
    loaded,
    samples_of,
    sgd,
    weights_of,
)
from tests.page.small_games import HELD
from torch import Tensor

from coterie.page.answer import best_response

SERVER = torch.zeros(1, dtype=torch.int64)


@dataclass
class Stage:
    """What happened in one stage."""

    weights: dict[str, Tensor]
    p: Tensor
    u_server: float
    u_clients: list[float] = field(default_factory=list)
    lr: list[float] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)


def row(key):
    return dataclasses.replace(key, state=key.state[0])


def quality(module, samples) -> tuple[float, float]:
    """Loss and accuracy."""
    with torch.no_grad():
        return float(module.loss(samples)), float(module.correct(samples).double().mean())


class LoopedPage:
    """A whole federation.

    Args:
        chosen: settings, resolved; every reading has its own choices.
        server: only its first agent's parameters are looked at.
        client: likewise.
        data: every client with training and validation samples.
        build: makes the network.
    """

    def __init__(self, chosen: Any, server: Any, client: Any, data: Any, build: Any) -> None:
        self.s, self.data, self.build = chosen, data, build
        self.n = len(data)
        self.weights = weights_of(built(build))
        self.agents = []
        for c, one in enumerate(data.ids.tolist()):
            key = SECRET.fold(torch.tensor([one])).fold("enrol")
            begun = client.enrol(data.take(torch.tensor([c])), key).agents
            self.agents.append(LoopedAgent(client.ddpg, begun, 0))
        agent = server.begin(KEY).agent
        self.follower = agent.agents and LoopedAgent(server.agent.ddpg, agent.agents, 0)
        self.last: list[Any] = [None] * self.n
        self.followers_last: Any = None
        self.own_accuracy = [0.0] * self.n
        self.seen = torch.zeros(self.n, dtype=torch.float64)
        self.u_server = math.nan

    def utility(self, loss: float) -> float:
        return 1 / (loss + {"bounded": 0.1, "inverse": 1e-5}[self.s.game.utility])

    def mixed(self, own: float, server: float, mine: int) -> float:
        """The reward of a player of which ``own`` is the utility it would have alone."""
        ratio = self.s.game.ratio()
        if ratio is None:
            return own
        if self.s.reading == "released":
            return ratio[mine] * own
        share = ratio[0] / sum(ratio)
        return share * server + (1 - share) * (own if mine else self.mean_u)

    def play(self, t: int) -> Stage:
        moved = [self.lead(c, t) for c in range(self.n)]
        stage = Stage({}, torch.zeros(0), 0.0)
        before = self.seen
        models = [model for model, *_ in moved]
        for _, u, lr, epochs in moved:
            stage.u_clients.append(u)
            stage.lr.append(lr)
            stage.epochs.append(epochs)
        self.seen = torch.tensor([quality(m, HELD)[1] for m in models], dtype=torch.float64)
        self.mean_u = sum(stage.u_clients) / self.n
        seen = self.seen if self.s.game.order == "after" else before
        stage.p = self.answer([weights_of(m) for m in models], seen, t)
        new = {
            name: sum(float(p) * weights_of(m)[name] for p, m in zip(stage.p, models, strict=True))
            for name in self.weights
        }
        if self.s.game.server_utility == "mixture":
            losses = [self.local_loss[c] for c in range(self.n)]
            loss = sum(float(p) * f for p, f in zip(stage.p, losses, strict=True))
        else:
            loss = quality(loaded(built(self.build), new), HELD)[0]
        stage.u_server = self.u_server = self.utility(loss)
        if self.followers_last is not None:
            reward = self.mixed(stage.u_server, stage.u_server, 0)
            self.followers_last = (*self.followers_last[:2], torch.tensor(reward).double())
        stage.weights = self.weights = new
        return stage

    def lead(self, c: int, t: int) -> tuple[Any, float, float, int]:
        """② to ④: model, utility, learning rate, epochs."""
        one = self.data.ids.tolist()[c]
        key, agent = key_of(one, "update", t), self.agents[c]
        held = samples_of(self.data.valid, c)
        model = loaded(built(self.build), self.weights)
        loss, accuracy = quality(model, held)
        state = {
            "recommended": [accuracy, math.exp(-loss), self.own_accuracy[c]],
            "literal": [self.own_accuracy[c]],
            "released": [accuracy],
        }[self.s.reading]
        state = torch.tensor(state, dtype=torch.float64)
        if self.last[c] is not None:
            before, action, u = self.last[c]
            reward = self.mixed(u, self.u_server, 1)
            if self.s.reading == "recommended":
                received = self.utility(-math.log(float(before[1])))
                reward -= self.mixed(received, 0.0, 1)
            agent.remember(before, action, torch.tensor(reward).double(), state)
        agent.learn(row(key.fold("learn")))
        warm = agent.steps < self.s.client_agent.warm_up
        raw = agent.act(state, row(key.fold("act")))
        action, lr, epochs = self.read(raw, warm, key)
        samples, train = samples_of(self.data.train, c), self.s.train
        sgd(model, epochs_of(samples, one, epochs, train.batch_size, key), lr)
        loss, self.own_accuracy[c] = quality(model, held)
        self.local_loss = {**getattr(self, "local_loss", {}), c: loss}
        self.last[c] = (state, action, self.utility(loss))
        return model, self.utility(loss), lr, epochs

    def read(self, raw: Tensor, warm: bool, key: Any) -> tuple[Tensor, float, int]:
        """What is stored of an action, and what it means."""
        train, least = self.s.train, self.s.game.lr_min
        if self.s.game.actions == "whole":
            lr = math.exp(math.log(least) + (float(raw[0]) + 1) / 2 * math.log(train.lr / least))
            return raw, lr, min(1 + int((float(raw[1]) + 1) / 2 * train.epochs), train.epochs)
        if warm:
            draw = key.fold("warm up").uniform(2, dtype=torch.float64)[0].tolist()
            lr = least + draw[0] * (train.lr - least)
            epochs = float(1 + math.floor(draw[1] * train.epochs))
        else:
            clipped = [min(max((one + 1) / 2, least), train.lr) for one in raw.tolist()]
            lr, epochs = clipped[0], clipped[1] * (train.epochs / train.lr)
        played = torch.tensor([lr, epochs], dtype=torch.float64)
        return played, lr, min(max(math.floor(epochs), 1), train.epochs)

    def answer(self, models: list[dict[str, Tensor]], seen: Tensor, t: int) -> Tensor:
        """⑤: p(t)."""
        stacked = {n: torch.stack([m[n] for m in models]) for n in self.weights}
        if self.follower is None:
            return best_response(built(self.build), stacked, HELD, self.s.game)
        key = KEY.fold("round", t).fold("answer").fold(SERVER)
        if self.followers_last is not None:
            self.follower.remember(*self.followers_last, seen)
        self.follower.learn(row(key.fold("learn")))
        warm = self.follower.steps < self.s.server_agent.warm_up
        raw = self.follower.act(seen, row(key.fold("act")))
        if self.s.game.actions == "whole":
            scale = math.log((self.n - 1) * 0.99 / 0.01) / 2
            p = torch.softmax(scale * raw, 0)
            self.followers_last = (seen, raw, torch.tensor(0.0))
            return p
        p = key.uniform(self.n, dtype=torch.float64)[0] if warm else (raw + 1) / 2
        p = p / p.sum()
        self.followers_last = (seen, p, torch.tensor(0.0))
        return p
