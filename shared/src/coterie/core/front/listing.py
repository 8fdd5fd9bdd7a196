"""What there is, by name, as something to look at and to look up. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Generic, TypeVar

from coterie.core.errors import UserError, nearest
from coterie.core.registry import data_sets as registered
from coterie.core.registry import papers as installed
from coterie.core.registry.papers import DataSet, Paper

T = TypeVar("T")


class Listing(Mapping[str, T], Generic[T]):
    """A mapping by name that prints as a table of names, with a line about each.

    Args:
        what: one of its entries is, for messages.
        entries: by name.
        about: says in one line what an entry is.

    Example:
        >>> Listing("number", {"one": 1, "two": 2}, lambda number: f"the number {number}")
        one  the number 1
        two  the number 2
    """

    def __init__(self, what: str, entries: Mapping[str, T], about: Callable[[T], str]) -> None:
        self._what, self._entries, self._about = what, entries, about

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            hint = nearest(str(name), self._entries) if self._entries else "there are none"
            raise UnknownName(f"{self._what} '{name}' is unknown: {hint}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        width = max(map(len, self._entries), default=0)
        lines = (f"{name:<{width}}  {self._about(each)}" for name, each in self._entries.items())
        return "\n".join(lines) or f"no {self._what}"

    def _repr_html_(self) -> str:
        rows = (
            f"<tr><th style='text-align:left'>{escape(name)}</th>"
            f"<td style='text-align:left'>{escape(self._about(each))}</td></tr>"
            for name, each in self._entries.items()
        )
        return f"<table>{''.join(rows)}</table>"


class UnknownName(UserError, KeyError):
    """A mistake in one line, that mappings know as a missing key, for ``get`` and ``in``."""

    __str__ = UserError.__str__


def papers() -> Listing[Paper]:
    """List the papers that are installed: what `coterie.train` trains.

    Example:
        >>> import coterie
        >>> coterie.papers()["f3crec"].package
        'continual'
        >>> "f3crec" in coterie.papers()
        True
    """
    return Listing("paper", installed.papers(), lambda paper: f"{paper.title} ({paper.reference})")


def data_sets() -> Listing[DataSet]:
    """List the data sets that are known by name; some are built in, others are downloaded.

    Example:
        >>> import coterie
        >>> coterie.data_sets()["ml-100k"].core
        10
    """
    return Listing("data set", registered.data_sets(), lambda entry: entry.about)
