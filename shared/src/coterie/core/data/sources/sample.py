"""The built-in data set ``sample``: generated, deterministic, with drift and newcomers.

Every film has a main genre and often a second one; every user has a taste over the genres that
moves from a first to a second taste during two years. In each of `PHASES` phases, a user takes the
films of highest utility (taste, popularity and Gumbel noise, which makes it a draw from a softmax
without replacement). About half of the users and a third of the films arrive later than the start.
"""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import torch
from torch import Tensor

from coterie.core.data.interactions.features import AGES, GENDERS, OCCUPATIONS_1M, profiles
from coterie.core.data.interactions.interactions import Features, Interactions
from coterie.core.registry.data_sets import packaged
from coterie.core.tensors.device import default_device
from coterie.core.tensors.keys import Key

_WORDS: dict[str, tuple[str, str]] = packaged("coterie.core.data.sources", "film_words.yaml")
GENRES = tuple(_WORDS)
TITLES_PER_GENRE = 100
# Plain forms occur twice, or a list of titles would sound monotonous.
_PATTERNS = (
    "The {} {}",
    "{} {}",
    "A Night for the {} {}",
    "The Last {} {}",
    "Return of the {} {}",
    "The {} {}",
    "{} {}",
    "{} {}",
)


def film_title(genre: int, number: int, pattern: int, year: int) -> str:
    """Compose a title of the pair of words ``number``, below `TITLES_PER_GENRE`, of a genre.

    Example:
        >>> film_title(5, 0, 0, 2014)
        'The Hollow Cellar (2014)'
    """
    adjectives, nouns = (words.split() for words in _WORDS[GENRES[genre]])
    form = _PATTERNS[pattern % len(_PATTERNS)]
    return f"{form.format(adjectives[number // 10], nouns[number % 10])} ({year})"


USERS, ITEMS, INTERACTIONS, PHASES = 300, 400, 12_000, 12
_START, _SPAN_S = 1_483_228_800, 2 * 365 * 86_400  # from 2017-01-01 UTC
_TASTE, _POPULARITY = 2.8, 0.9


def generate(seed: int = 0) -> Interactions:
    """Generate the sample: 300 users, 400 films, about 12,000 interactions with ratings.

    Drawn once in a process: that takes longer than many a run on it. Each caller gets a copy.

    Example:
        >>> data = generate()
        >>> data.n_users, data.n_items
        (300, 399)
    """
    return deepcopy(_drawn(seed, default_device()))


@cache
def _drawn(seed: int, device: torch.device) -> Interactions:
    key = Key.from_seed(seed).fold("sample")
    genres, mixture = _film_genres(key)
    item_phase = _arrival(key.fold("items"), ITEMS, late=0.35)
    counts = _counts(key)
    affinity = _affinity(key, mixture)
    user, item, phase = _choose(key, affinity, item_phase, counts)
    return _assemble(key, user, item, phase, affinity, genres, item_phase)


def _film_genres(key: Key) -> tuple[Tensor, Tensor]:
    """Main genre and second one ``(ITEMS, 2)`` (equal: no second), and the mixture of genres."""
    main = torch.arange(ITEMS) % len(GENRES)
    bits = key.fold("genres")
    second = bits.integers(len(GENRES), torch.arange(ITEMS))
    second = torch.where(bits.fold("second").uniform(ITEMS) < 0.5, second, main)
    mixture = torch.zeros(ITEMS, len(GENRES), dtype=torch.float64)
    mixture[torch.arange(ITEMS), main] += 0.7
    mixture[torch.arange(ITEMS), second] += 0.3
    return torch.stack([main, second], 1), mixture


def _arrival(key: Key, count: int, late: float) -> Tensor:
    """Phase of arrival, ``(count,)``: 0, or later for the share ``late``."""
    draw = key.fold("arrival").uniform(count, dtype=torch.float64)
    return torch.where(draw < 1 - late, 0.0, (draw - 1 + late) / late * (PHASES - 1)).ceil().long()


def _counts(key: Key) -> Tensor:
    """How many films each user takes in each phase, ``(USERS, PHASES)`` int64."""
    arrival = _arrival(key.fold("users"), USERS, late=0.5)
    leaves = key.fold("leaves").uniform(USERS, 2, dtype=torch.float64)
    stay = torch.where(leaves[:, 0] < 0.35, 1 + (leaves[:, 1] * 5).floor(), PHASES)
    phase = torch.arange(PHASES)
    active = (phase >= arrival[:, None]) & (phase < (arrival + stay)[:, None])
    rate = (0.5 * key.fold("rate").normal(USERS, dtype=torch.float64)).exp()
    # Newcomers try much at once, so that they have a history to learn from.
    expected = active * rate[:, None] * torch.where(phase == arrival[:, None], 3.0, 1.0)
    expected *= INTERACTIONS / expected.sum()
    return (expected + key.fold("rounding").uniform(USERS, PHASES, dtype=torch.float64)).long()


def _affinity(key: Key, mixture: Tensor) -> Tensor:
    """Utility of every film for every user at both ends of time, ``(2, USERS, ITEMS)``."""
    taste = key.fold("taste").normal(2, USERS, len(GENRES), dtype=torch.float64)
    # The second taste keeps much of the first: tastes drift, they are not replaced.
    taste[1] = 0.7 * taste[0] + 0.7 * taste[1]
    noise = key.fold("film").normal(ITEMS, len(GENRES), dtype=torch.float64)
    return _TASTE * taste @ (mixture + 0.08 * noise).T


def _choose(
    key: Key, affinity: Tensor, item_phase: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Users, items and phases of all interactions, each ``(n,)``; no pair occurs twice."""
    fame = _POPULARITY * key.fold("fame").normal(ITEMS, dtype=torch.float64)
    seen = torch.zeros(USERS, ITEMS, dtype=torch.bool)
    parts = []
    for phase in range(PHASES):
        share = phase / (PHASES - 1)
        draw = key.fold("choice", phase).uniform(USERS, ITEMS, dtype=torch.float64)
        gumbel = -torch.log(-torch.log(draw.clamp(1e-12, 1 - 1e-12)))
        utility = (1 - share) * affinity[0] + share * affinity[1] + fame + gumbel
        utility[seen | (item_phase > phase)] = -torch.inf
        ranked = utility.argsort(dim=1, descending=True)
        user, place = (torch.arange(ITEMS) < counts[:, phase, None]).nonzero(as_tuple=True)
        item = ranked[user, place]
        seen[user, item] = True
        parts.append(torch.stack([user, item, torch.full_like(user, phase)]))
    user, item, phase_of = torch.cat(parts, dim=1)
    return user, item, phase_of


def _assemble(
    key: Key,
    user: Tensor,
    item: Tensor,
    phase: Tensor,
    affinity: Tensor,
    genres: Tensor,
    item_phase: Tensor,
) -> Interactions:
    n = user.numel()
    within = key.fold("time").uniform(n, dtype=torch.float64)
    time = _START + ((phase + within) * (_SPAN_S / PHASES)).long()
    liking = affinity.mean(0)[user, item] / _TASTE
    noise = key.fold("rating").normal(n, dtype=torch.float64)
    rating = (3.4 + 0.8 * liking + 0.6 * noise).round().clamp(1, 5).float()
    order = torch.argsort(time, stable=True)
    return Interactions(
        user=user[order],
        item=item[order],
        time=time[order],
        rating=rating[order],
        user_names=[str(number + 1) for number in range(USERS)],
        item_names=[str(number + 1) for number in range(ITEMS)],
        titles=_titles(key, genres, item_phase),
        genres=[[GENRES[g] for g in dict.fromkeys(pair)] for pair in genres.tolist()],
        source="sample (generated)",
        user_features=_profiles(key, affinity, genres),
    ).renumbered()


def _profiles(key: Key, affinity: Tensor, genres: Tensor) -> Features:
    """Profiles of users, `USERS` rows; most have the occupation that goes with their best genre."""
    key, users = key.fold("profiles"), torch.arange(USERS)
    liked = torch.zeros(USERS, len(GENRES), dtype=torch.float64)
    liked.index_add_(1, genres[:, 0], affinity.mean(0))
    age, gender = key.fold("age"), key.fold("gender")
    drawn = [age.integers(len(AGES), users), gender.integers(len(GENDERS), users)]
    typical = key.fold("typical").uniform(USERS) < 0.6
    other = key.fold("occupation").integers(len(OCCUPATIONS_1M), users)
    return profiles([*drawn, torch.where(typical, liked.argmax(1), other)], OCCUPATIONS_1M)


def _titles(key: Key, genres: Tensor, item_phase: Tensor) -> list[str]:
    """Distinct titles: a permutation of the pairs of words of each genre."""
    words = key.fold("words").uniform(len(GENRES), TITLES_PER_GENRE, dtype=torch.float64)
    pairs = words.argsort(dim=1)
    pattern = key.fold("pattern").integers(8, torch.arange(ITEMS))
    age = key.fold("year").integers(30, torch.arange(ITEMS))
    year = torch.where(item_phase > 0, 2017 + item_phase * 2 // PHASES, 2016 - age)
    return [
        film_title(genre, int(pairs[genre, number // len(GENRES)]), int(form), int(made))
        for number, (genre, form, made) in enumerate(
            zip(genres[:, 0].tolist(), pattern, year, strict=True)
        )
    ]
