"""Which items a batch asks for: what the split of an encoder gives away of its users.

An encoder sends states of titles, which are public. The server knows the network that all start
from, so it knows what every title looks like, and takes what it gets for the nearest of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from coterie.core.errors import UserError
from coterie.core.tables.paired import spread
from coterie.core.tables.pictures import plot_panels
from coterie.core.tensors.keys import Key
from coterie.llm.attack import panel
from coterie.llm.backbones.encoder import Encoder
from coterie.llm.client import shuffled
from coterie.llm.data.examples import Examples
from coterie.llm.settings import Settings

_LINES = {"nearest title": "", "most popular titles": "trivial_"}


@dataclass(frozen=True)
class Batch:
    """What a batch of training asks for.

    Attributes:
        client: who trains on it.
        examples: how many histories, each with its target.
        texts: ``(m,)`` int64, numbers of the distinct texts that it embeds.
    """

    client: int
    examples: int
    texts: Tensor


@dataclass(frozen=True)
class TitlesFound:
    """How many of the titles that a batch asks for are found: shares, means over batches.

    Attributes:
        found: from each layer.
        trivial: without a state, by guessing as many of the most popular titles.
        titles: that a batch asks for.
        examples: in a batch.
        batches: of all clients.
    """

    found: list[float]
    trivial: float
    titles: float
    examples: float
    batches: int


def text_states(encoder: Encoder) -> Tensor:
    """Mean state of every distinct text behind each layer, ``(N, n_texts, h)``, by its number."""
    states = encoder.states_by_layer(encoder.first)
    return states[:, encoder.text_of[encoder.first].argsort()]


def guesses(encoder: Encoder, public: Tensor) -> Tensor:
    """Take the state of every text behind each layer for the nearest public one, by cosine.

    Args:
        encoder: of a client.
        public: `text_states` of the network that all start from.

    Returns:
        ``(N, n_texts)`` int64, numbers of texts.
    """
    return torch.stack([*map(_nearest, text_states(encoder), public)])


def batches(
    train: Sequence[Examples],
    text_of: Tensor,
    clients: Sequence[int],
    settings: Settings,
    least: int,
    key: Key,
) -> list[Batch]:
    """Draw training examples of clients, and cut them into batches as training does.

    Args:
        train: of all clients.
        text_of: ``(n_items,)``, number of each item's text.
        clients: whose examples.
        settings: of the run: size of a batch, and length of a history.
        least: examples in all; each client has its share, in whole batches, if it has as many.
        key: of the draw.

    Raises:
        UserError: none of them has an example.
    """
    found, each = [], max(least // len(clients), 1)
    for client in clients:
        parts = shuffled(train[client], settings, key.fold("client", client), 0)
        found += [_asked(client, part, text_of) for part in _up_to(parts, each)]
    if not found:
        names = ", ".join(map(str, clients))
        raise UserError(f"client {names} has no training example, so there is nothing to attack")
    return found


def titles_found(
    asked: Sequence[Batch], guess: Mapping[int, Tensor], counts: Tensor
) -> TitlesFound:
    """Count how many of the titles of each batch are guessed right.

    Args:
        asked: batches.
        guess: of each client, from `guesses`.
        counts: ``(n_texts,)``, how often public users had each.

    Example:
        >>> batch = Batch(0, 1, torch.tensor([1, 2]))
        >>> found = titles_found([batch], {0: torch.tensor([[1, 0, 2]])}, torch.tensor([9, 2, 1]))
        >>> found.found, found.trivial
        ([0.5], 0.5)
    """
    ranking = counts.argsort(descending=True, stable=True)
    hits = [(guess[one.client][:, one.texts] == one.texts).double().mean(1) for one in asked]
    popular = [torch.isin(ranking[: len(one.texts)], one.texts).double().mean() for one in asked]
    return TitlesFound(
        torch.stack(hits).mean(0).tolist(),
        float(torch.stack(popular).mean()),
        sum(len(one.texts) for one in asked) / len(asked),
        sum(one.examples for one in asked) / len(asked),
        len(asked),
    )


def rows(reports: Sequence[TitlesFound]) -> list[dict[str, Any]]:
    """Tabulate attacks of several seeds: one row a layer, means and standard deviations."""
    found = []
    for layer in range(len(reports[0].found)):
        values = {
            "found": spread([report.found[layer] for report in reports]),
            "trivial_found": spread([report.trivial for report in reports]),
        }
        row: dict[str, Any] = {"layer": layer + 1}
        for name, one in values.items():
            row |= {name: one.mean, f"{name}_sd": one.sd}
        found.append(row)
    return found


def draw(rows: Sequence[dict[str, Any]], seeds: int, path: Path) -> Path | None:
    """Draw the `rows` of so many seeds, the share found over layers.

    Raises:
        UserError: the file cannot be written.
    """
    drawn = panel(rows, seeds, "share of a batch's titles found", "found", _LINES)
    title = "How many of a batch's items are told from the hidden states that leave a client"
    return plot_panels([drawn], title, path)


def _asked(client: int, batch: Examples, text_of: Tensor) -> Batch:
    items = torch.cat([batch.target, batch.history.values])
    return Batch(client, len(batch), text_of[items].unique())


def _up_to(parts: Sequence[Examples], least: int) -> list[Examples]:
    """Take the first batches that are not empty, until they have ``least`` examples."""
    kept: list[Examples] = []
    for part in filter(len, parts):
        if sum(map(len, kept)) >= least:
            break
        kept.append(part)
    return kept


def _nearest(states: Tensor, public: Tensor) -> Tensor:
    """Number of the nearest public state of each, ``(n,)`` of ``(n, h)``."""
    table = normalize(public.float(), dim=1)
    parts = [(normalize(part.float(), dim=1) @ table.T).argmax(1) for part in states.split(1024)]
    return torch.cat(parts)
