"""How much of the ratings a reader recovers, and how much by guessing without any residual."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.assisted.attack.overheard import Overheard
from coterie.assisted.attack.reconstruction import (
    nearest,
    read_labels,
    read_ratings,
    with_means,
)


def shares_of_ratings(heard: Sequence[Overheard], draws: int, scale: Tensor) -> dict[str, float]:
    """Shares of the received cells whose rating is recovered exactly.

    Args:
        heard: of each organisation.
        draws: of how many draws the mean is taken.
        scale: ``(G,)`` the ratings that can be given.

    Returns:
        ``certain``: nothing else was possible; ``guessed``: with a guess of the columns' means;
        ``known``: with their means known. Without residuals: ``frequent``, always the most
        frequent rating; ``rounded``, the known mean of the column, rounded.
    """
    found: dict[str, list[Tensor]] = {name: [] for name in ("certain", "guessed", "known")}
    for one in heard:
        received = one.mean(draws)
        read = read_ratings(received, scale)
        right = read.ratings == one.ratings
        found["certain"].append(right & read.certain)
        found["guessed"].append(right)
        with_mean = with_means(received.residuals, one.base, scale, read.slope)
        found["known"].append(with_mean == one.ratings)
    ratings = torch.cat([one.ratings for one in heard])
    rounded = nearest(torch.cat([one.base for one in heard]), scale)
    return {
        **{name: _share(torch.cat(parts)) for name, parts in found.items()},
        "frequent": _most_frequent(ratings),
        "rounded": _share(rounded == ratings),
    }


def shares_of_labels(heard: Sequence[Overheard], draws: int) -> dict[str, float]:
    """Shares of the received cells whose label is recovered.

    Returns:
        ``labels``: by the sign of the mean over so many draws; ``frequent``: without residuals,
        always the most frequent label.
    """
    right = [read_labels(one.mean(draws).residuals) == one.ratings for one in heard]
    labels = torch.cat([one.ratings for one in heard])
    return {"labels": _share(torch.cat(right)), "frequent": _most_frequent(labels)}


def share_of_pattern(heard: Sequence[Overheard]) -> float:
    """Share of all cells of which the reader is told that they are rated."""
    return sum(one.ratings.numel() for one in heard) / max(sum(one.held for one in heard), 1)


def _most_frequent(values: Tensor) -> float:
    counts = values.unique(return_counts=True)[1]
    return float(counts.max()) / values.numel() if values.numel() else 0.0


def _share(right: Tensor) -> float:
    return float(right.double().mean()) if right.numel() else 0.0
