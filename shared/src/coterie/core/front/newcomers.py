"""Recommend to people who are not in the data, by histories that a caller has."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from coterie.core.data.sources.tables import Table
from coterie.core.errors import UserError
from coterie.core.run.experiment import RecommendsToUsers
from coterie.core.run.histories import History, columns_of, history_of, read_history
from coterie.core.run.recommendation_files import Recommendations
from coterie.core.run.recommender import NEW, Recommender

if TYPE_CHECKING:
    import pandas as pd

Items = Iterable[str | int]
Histories: TypeAlias = "str | os.PathLike[str] | Items | Mapping[str, Items] | pd.DataFrame"
"""What people had: of one a list of items or a file, of several lists by name or a data frame."""


def recommended(
    recommender: Recommender, given: Any, top: int
) -> tuple[list[Recommendations], list[str]]:
    """Recommend to each of some new people.

    Args:
        recommender: of a run.
        given: what they had, see `Histories`.
        top: how many items each gets, at most.

    Returns:
        The recommendations of each, and what one should know of them, a line each.

    Raises:
        UserError: a history cannot be read or has nothing that is known.
    """
    found, notes = [], []
    for name, history in _histories(given, recommender.experiment):
        table = recommender.for_newcomer(name, history, top)
        found.append(table)
        said = history.notes if len(table) else [*history.notes, "nothing is left to recommend"]
        notes += said if name == NEW else [f"{name}: {note}" for note in said]
    return found, notes


def _histories(given: Any, experiment: RecommendsToUsers[Any]) -> Iterator[tuple[str, History]]:
    data, rules = experiment.interactions, experiment.settings.data
    if isinstance(given, str | os.PathLike):
        yield NEW, read_history(Path(given).expanduser(), data, rules)
        return
    for name, table in _tables(given, columns_of(data, rules), rules.columns or {}):
        yield name, history_of(table, data, rules)


def history_of_columns(
    columns: Mapping[str, Sequence[str] | Sequence[float]], experiment: RecommendsToUsers[Any]
) -> History:
    """Read what one person had from lists by column, all of one length.

    Raises:
        UserError: nothing of it is known or counts.
    """
    return history_of(
        _table(NEW, columns, columns), experiment.interactions, experiment.settings.data
    )


def _tables(given: Any, wanted: set[str], named: Mapping[str, str]) -> Iterator[tuple[str, Table]]:
    """The history of each person as a table."""
    if hasattr(given, "columns") and hasattr(given, "groupby"):  # a data frame of pandas
        if not given.columns.is_unique:
            twice = given.columns[given.columns.duplicated()][0]
            raise UserError(f"the history has two columns '{twice}': rename one, or leave it out")
        roles = {named.get("user", "user"), "user"} - {named.get("item"), named.get("title")}
        for name, rows in _people(given, [column for column in given.columns if column in roles]):
            names = [column for column in rows.columns if column not in roles]
            columns = {column: rows[column] for column in names if column in wanted}
            yield name, _table(name, columns, map(str, names))
    elif isinstance(given, Mapping):
        if not given:
            raise UserError("there are no histories: give at least one person's, as {'ann': [...]}")
        for name, items in given.items():
            yield str(name), _of_items(str(name), items)
    else:
        yield NEW, _of_items(NEW, given)


def _people(frame: Any, users: list[str]) -> Iterator[tuple[str, Any]]:
    """Rows of each person, in the order in which they come first."""
    if not users:
        yield NEW, frame
        return
    if frame[users[0]].isna().any():
        raise UserError(f"the history has rows without a '{users[0]}': fill them in, or drop them")
    for name, rows in frame.groupby(users[0], sort=False):
        yield str(name), rows


def _of_items(name: str, items: Any) -> Table:
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise UserError(f"the history of '{name}' must be a list of ids of items, not {items!r}")
    return _table(name, {"item": list(map(str, items))}, ["item"])


def _table(name: str, columns: Mapping[str, Any], names: Iterable[str]) -> Table:
    where = "the history" if name == NEW else f"the history of '{name}'"
    try:
        found = pa.table({column: pa.array(values) for column, values in columns.items()})
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UserError(f"{where} is no table: {' '.join(str(error).split())}") from None
    if columns and not len(found):
        raise UserError(f"{where} is empty: give at least one item")
    return Table(Path(where), tuple(names), found, lambda row: row + 1, "correct it", "row")
