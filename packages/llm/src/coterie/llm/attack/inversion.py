"""How well the input is rebuilt from what each layer gives (PPLR, section 4.3.1, Figure 3a).

A server that holds layers k + 1 to N - 1 sees the hidden states h_k. The attacker has such states
of other users with their tokens, trains a network from the one to the other, and uses it on users
it has never seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, mse_loss, normalize

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.llm.attack.hidden_states import HiddenStates

_AT_ONCE = 1024  # rows compared with the whole table


@dataclass(frozen=True)
class Attacker:
    """How the attacker learns.

    Attributes:
        steps: of Adam.
        batch: tokens in a step.
        lr: learning rate.
        loss: "cosine" for 1 - cosine, or "mse".
        users: share of the users it learns from; the others are attacked.
    """

    steps: int = 500
    batch: int = 256
    lr: float = 1e-3
    loss: Literal["cosine", "mse"] = "cosine"
    users: float = 0.8


@dataclass(frozen=True)
class Guess:
    """How good guesses are.

    Attributes:
        cosine: with the true embedding, mean over tokens.
        recovery: share of tokens whose embedding is the nearest of the table, by cosine.
    """

    cosine: float
    recovery: float


@dataclass(frozen=True)
class AttackReport:
    """One attack.

    Attributes:
        learnt: from each layer, by the trained network.
        nearest: the same without training: h_l itself is the guess.
        trivial: without h_l: the mean embedding, and the most frequent token.
        users: learnt from, and attacked.
        tokens: learnt from, and attacked.
    """

    learnt: list[Guess]
    nearest: list[Guess]
    trivial: Guess
    users: tuple[int, int]
    tokens: tuple[int, int]


def attack(
    states: HiddenStates, user: Tensor, table: Tensor, attacker: Attacker, key: Key
) -> AttackReport:
    """Attack every layer.

    Args:
        states: of M tokens.
        user: ``(M,)`` int64, whose they are.
        table: ``(V, h)`` input embeddings of all tokens, which are public.
        attacker: how it learns.
        key: of the users' split, the network's start and the batches.

    Raises:
        UserError: there are fewer than two users.
    """
    known = users_known(user, attacker.users, key.fold("users"))
    table = table.float()
    target, learn, unseen = table[states.token], known.nonzero()[:, 0], (~known).nonzero()[:, 0]
    truth = states.token[unseen]
    learnt, nearest = [], []
    for number, hidden in enumerate(states.layers):
        of_layer = key.fold("layer", number)
        network = train(hidden[learn], target[learn], attacker, of_layer)
        with torch.no_grad():
            learnt.append(judge(network(hidden[unseen]), truth, table))
        nearest.append(judge(hidden[unseen], truth, table))
    usual = judge(target[learn].mean(0).expand(len(truth), -1), truth, table)
    frequent = states.token[learn].mode().values
    trivial = replace(usual, recovery=float((truth == frequent).double().mean()))
    users = user[learn].unique().numel(), user[unseen].unique().numel()
    return AttackReport(learnt, nearest, trivial, users, (learn.numel(), unseen.numel()))


def users_known(user: Tensor, share: float, key: Key) -> Tensor:
    """Draw the users that the attacker knows; ``(M,)`` bool for tokens of ``user`` ``(M,)``.

    Raises:
        UserError: there are fewer than two users.

    Example:
        >>> users_known(torch.tensor([3, 3, 5]), 0.8, Key.from_seed(0)).sum().item() in (1, 2)
        True
    """
    users = user.unique()
    if users.numel() < 2:
        raise UserError(
            f"{users.numel()} users to attack: at least 2 are needed, to learn from and to attack"
        )
    count = min(max(round(share * users.numel()), 1), users.numel() - 1)
    chosen = users[torch.argsort(key.bits(users), stable=True)[:count]]
    return torch.isin(user, chosen)


def train(hidden: Tensor, target: Tensor, attacker: Attacker, key: Key) -> nn.Module:
    """Train two layers (h, 4h, h) from hidden states ``(m, h)`` to embeddings ``(m, h)``."""
    width = hidden.shape[1]
    with key.fold("start").torch_rng():
        layers = [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, target.shape[1])]
        network = nn.Sequential(_Standardised(hidden), *layers)
    optimizer = torch.optim.Adam(network.parameters(), attacker.lr)
    for step in range(attacker.steps):
        drawn = key.fold("batch", step).integers(len(hidden), torch.arange(attacker.batch))
        guess, true = network(hidden[drawn]), target[drawn]
        if attacker.loss == "mse":
            loss = mse_loss(guess, true)
        else:
            loss = 1 - cosine_similarity(guess, true).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network


def judge(guess: Tensor, token: Tensor, table: Tensor) -> Guess:
    """Compare guesses ``(m, h)`` with the true tokens ``(m,)`` of a table ``(V, h)``."""
    rows, cosine, hits = normalize(table, dim=1), 0.0, 0
    for index in torch.arange(len(token)).split(_AT_ONCE):
        likeness = normalize(guess[index], dim=1) @ rows.T
        true = token[index]
        cosine += float(likeness.gather(1, true[:, None]).double().sum())
        hits += int((likeness.argmax(1) == true).sum())
    return Guess(cosine / len(token), hits / len(token))


class _Standardised(nn.Module):
    """Bring every dimension to mean 0 and deviation 1: hidden states of some layers are large."""

    mean: Tensor
    scale: Tensor

    def __init__(self, sample: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", sample.mean(0))
        self.register_buffer("scale", sample.std(0, unbiased=False).clamp_min(1e-6))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.scale
