"""How well the input is rebuilt from what each layer gives (PPLR, section 4.3.1, Figure 3a)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, mse_loss, normalize

from coterie.core.errors import UserError
from coterie.core.style import Roles
from coterie.core.tables.paired import Spread, spread
from coterie.core.tables.pictures import plot_panels
from coterie.core.tables.plots import Lines
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.llm.backbones.base import Backbone
from coterie.llm.backbones.item_embedding import EmbedsItems
from coterie.llm.data.client_data import FederatedData
from coterie.llm.data.examples import Examples, training_examples
from coterie.llm.split.cut import padding_of

# What passes from layer to layer of a backbone, and the tokens that it was made of.
#
# `coterie llm attack` looks at that of the users of a run's clients.

_BATCH = 64  # examples that are run at once


@dataclass(frozen=True)
class HiddenStates:
    """Of M tokens, padding left out.

    Attributes:
        layers: N tensors ``(M, h)`` float32, the output of each layer.
        token: ``(M,)`` int64, numbers in the vocabulary.
        sequence: ``(M,)`` int64, the example that a token is of.
    """

    layers: list[Tensor]
    token: Tensor
    sequence: Tensor


@torch.no_grad()
def hidden_states(backbone: Backbone, examples: Examples) -> HiddenStates:
    """Run a batch as in training, without dropout, and keep what the layers give.

    Raises:
        UserError: the attention mask of the backbone is none that can be read.
    """
    if isinstance(backbone, EmbedsItems) and backbone.reader is None:
        raise UserError(
            "an encoder sends titles, which are public, and no histories, so that there are no "
            "tokens to rebuild: `coterie llm attack` finds which titles a batch asks for"
        )
    words, layers = backbone.model.get_input_embeddings(), list(backbone.layers)
    seen: dict[nn.Module, tuple[Any, Any, Any]] = {}

    def note(module: nn.Module, given: Any, named: Any, out: Any) -> None:
        seen[module] = given, named, out[0] if isinstance(out, tuple) else out

    backbone.eval()
    backbone.prepare()
    hooks = [part.register_forward_hook(note, with_kwargs=True) for part in (words, *layers)]
    try:
        backbone.loss(examples)
    finally:
        for hook in hooks:
            hook.remove()
    if len(seen) <= len(layers):
        raise UserError(
            f"backbone {type(backbone).__name__} did not run its word embeddings and all its "
            "layers, so their states cannot be had"
        )
    token, mask = seen[words][0][0], seen[layers[0]][1].get("attention_mask")
    row, place = _real(mask, token).nonzero().T
    found = [seen[layer][2][row, place].float().cpu() for layer in layers]
    return HiddenStates(found, token[row, place].cpu(), row.cpu())


def secret(states: HiddenStates) -> HiddenStates:
    """Leave out tokens that are in every sequence: the start token and the prompt tell nothing.

    Raises:
        UserError: nothing else is there.
    """
    pairs = torch.stack([states.token, states.sequence]).unique(dim=1)[0]
    token, count = pairs.unique(return_counts=True)
    everywhere = token[count == states.sequence.unique().numel()]
    kept = ~torch.isin(states.token, everywhere)
    if not bool(kept.any()):
        raise UserError("every sequence has the same tokens, so there is nothing to find out")
    return tree.take(states, kept.nonzero().flatten())


def victims(
    data: FederatedData,
    backbone: Callable[[int], Backbone],
    clients: Sequence[int],
    max_history: int,
    most: int,
    key: Key,
) -> tuple[HiddenStates, Tensor]:
    """Run the histories of clients' users, each client's through its own adapter.

    Args:
        data: the users' sequences.
        backbone: gives the shared one with the adapter of a client in it.
        clients: whose users.
        max_history: most items of a sequence; sequences of a user do not overlap.
        most: sequences in total; users are drawn until there are so many.
        key: of that draw.

    Returns:
        States of M tokens to be found out, those that every sequence has left out, and whose they
        are, ``(M,)`` int64.

    Raises:
        UserError: no user has a sequence.
    """
    examples, owner = _sequences(data, clients, max_history, most, key)
    parts = []
    for client in clients:
        of_client = (data.client_of[owner] == client).nonzero()[:, 0]
        for index in of_client.split(_BATCH):
            part = hidden_states(backbone(client), examples.take(index))
            parts.append(replace(part, sequence=index[part.sequence]))
    states = secret(reduce(tree.concatenate, parts))
    return states, owner[states.sequence]


def known_embeddings(backbone: Backbone) -> Tensor:
    """Copy the input embeddings, ``(V, h)`` float32, of the backbone before the first round.

    Where clients train their embeddings too, these are what all still have in common.
    """
    return backbone.model.get_input_embeddings().weight.detach().float().cpu().clone()


def _sequences(
    data: FederatedData, clients: Sequence[int], max_history: int, most: int, key: Key
) -> tuple[Examples, Tensor]:
    """Sequences of the clients' users, of randomly drawn ones if there are too many."""
    examples, owner = training_examples(data.split.train, max_history, max_history)
    wanted = torch.isin(data.client_of[owner], torch.tensor(clients)).nonzero()[:, 0]
    if not wanted.numel():
        names = ", ".join(map(str, clients))
        raise UserError(f"no user of client {names} has a sequence to attack")
    draw = key.fold("victims").bits(owner[wanted])
    chosen = wanted[torch.argsort(draw, stable=True)[:most]]
    return examples.take(chosen), owner[chosen]


def _real(mask: Tensor | None, token: Tensor) -> Tensor:
    """Which tokens are not padding, ``(B, T)`` bool."""
    if mask is None:
        return torch.ones_like(token, dtype=torch.bool)
    if mask.dim() == 2 and mask.is_floating_point():  # Longformer: below 0 is masked
        return mask >= 0
    real = padding_of(mask, 0, token.shape[1])
    assert real is not None
    return real.to(token.device).expand(token.shape)


# How well the input is rebuilt from what each layer gives (PPLR, section 4.3.1, Figure 3a).
#
# A server that holds layers k + 1 to N - 1 sees the hidden states h_k. The attacker has such states
# of other users with their tokens, trains a network from the one to the other, and uses it on users
# it has never seen.

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


_LINES = {
    "trained attack (h, 4h, h)": "",
    "nearest embedding": "nearest_",
    "without hidden states": "trivial_",
}
_LABELS = {"cosine": "cosine with the input embedding", "recovery": "share of tokens found"}


def rows(reports: Sequence[AttackReport]) -> list[dict[str, Any]]:
    """Tabulate attacks of several seeds: one row a layer, means and standard deviations."""
    found = []
    for layer in range(len(reports[0].learnt)):
        values = {
            "": [report.learnt[layer] for report in reports],
            "nearest_": [report.nearest[layer] for report in reports],
            "trivial_": [report.trivial for report in reports],
        }
        row: dict[str, Any] = {"layer": layer + 1}
        for prefix, guesses in values.items():
            for name in ("cosine", "recovery"):
                spreads = spread([getattr(guess, name) for guess in guesses])
                row |= {f"{prefix}{name}": spreads.mean, f"{prefix}{name}_sd": spreads.sd}
        found.append(row)
    return found


def draw(rows: Sequence[dict[str, Any]], seeds: int, path: Path) -> Path | None:
    """Draw the `rows` of so many seeds, cosine and token recovery over layers.

    Raises:
        UserError: the file cannot be written.
    """
    panels = [panel(rows, seeds, label, measure, _LINES) for measure, label in _LABELS.items()]
    title = "How much of unseen users' input is rebuilt from the hidden states that leave a client"
    return plot_panels(panels, title, path)


def panel(
    rows: Sequence[dict[str, Any]], seeds: int, y_label: str, measure: str, lines: dict[str, str]
) -> Lines:
    """Make one plot of a measure over layers; ``lines`` names the prefix of each line's columns."""
    shown = {
        name: [Spread(row[prefix + measure], row[f"{prefix}{measure}_sd"], seeds) for row in rows]
        for name, prefix in lines.items()
    }
    layers = [row["layer"] for row in rows]
    roles, bounds = (
        Roles(baselines=[name for name, prefix in lines.items() if prefix == "trivial_"]),
        (None, 1.0),
    )
    return Lines("layer", layers, shown, y_label=y_label, roles=roles, bounds=bounds)
