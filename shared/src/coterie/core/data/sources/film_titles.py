"""Invented film titles of the generated sample."""

from __future__ import annotations

from coterie.core.registry.published import packaged

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
