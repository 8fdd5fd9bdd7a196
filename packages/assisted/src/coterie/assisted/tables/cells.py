"""Which ratings, and who holds them: the columns of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.assisted.published import has_cell, printed

_SHORT = {"explicit": "RMSE", "implicit": "MAP@10"}
_PARTITIONS: tuple[tuple[str, str], ...] = (
    ("user", "uniform"),
    ("user", "genre"),
    ("item", "uniform"),
)
_OWN: tuple[tuple[str, str], ...] = (("user", "source"),)


@dataclass(frozen=True)
class Cell:
    """One kind of feedback between one kind of organisations.

    Attributes:
        feedback: "explicit" or "implicit".
        align: what they have in common, "user" or "item".
        domains: the partition.
    """

    feedback: str
    align: str
    domains: str

    @property
    def values(self) -> dict[str, str]:
        """The settings that make it, by dotted key."""
        return {
            "data.feedback": self.feedback,
            "data.align": self.align,
            "data.domains": self.domains,
        }

    @property
    def names(self) -> dict[str, Any]:
        """The same for the rows of a table."""
        return {key.removeprefix("data."): value for key, value in self.values.items()}

    @property
    def is_shown(self) -> bool:
        """Whether the slides have numbers of such organisations."""
        return has_cell(self.align, self.domains)

    @property
    def metric(self) -> str:
        """What is compared, on the test."""
        return "test/rmse" if self.feedback == "explicit" else "test/map@10"

    @property
    def higher(self) -> bool:
        """Whether more of it is better."""
        return self.feedback == "implicit"

    @property
    def organisations(self) -> str:
        """Who holds what, for people."""
        return f"{self.align} {self.domains.capitalize()}"

    @property
    def short(self) -> str:
        """What is compared, for people."""
        return _SHORT[self.feedback]

    @property
    def label(self) -> str:
        """The heading of the column."""
        return f"{self.short}, {self.organisations}"

    @property
    def untrained(self) -> str:
        """The model without training that takes the least for granted; both need no peer."""
        return "bias" if self.feedback == "explicit" else "rate"

    def printed(self, data: str, method: str, model: str) -> float | None:
        """Give the number of the slides."""
        if not self.is_shown:
            return None
        return printed(data, self.feedback, self.align, method, model)


def cells(own: bool, given: Mapping[str, Any], *, shown: bool = False) -> list[Cell]:
    """List the cells of a table.

    Args:
        own: whether the data come with organisations of their own.
        given: settings by dotted key, which limit them.
        shown: only what the slides show, where nothing is said of partition and alignment.
    """
    partitions = _OWN if own else _PARTITIONS
    if "data.domains" in given:
        partitions = (*_PARTITIONS, *_OWN)
    shown = shown and not given.keys() & {"data.domains", "data.align"}
    found = [Cell(feedback, *partition) for feedback in _SHORT for partition in partitions]
    return [
        cell
        for cell in found
        if all(given.get(key, value) == value for key, value in cell.values.items())
        and (cell.is_shown or not shown)
    ]
