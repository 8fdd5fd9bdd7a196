"""What someone new has had: a file of theirs, read by the rules of the run that it is for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError, nearest
from coterie.core.settings.sections import DataSettings

if TYPE_CHECKING:
    from coterie.core.data.sources.tables import Table

_ROLES = ("item", "title", "rating", "user", "domain")
_LONGEST_HINT = 200


@dataclass(frozen=True)
class History:
    """What someone new has had.

    Attributes:
        liked: ``(n,)`` int64 items that count as interactions by the run's rules, each once, in the
            order of the file.
        had: ``(m,)`` int64 all known items of the file, ascending: nothing of it is recommended.
        notes: what the user should know of it, in a line each.
    """

    liked: Tensor
    had: Tensor
    notes: list[str]


def read_history(path: Path, data: Interactions, rules: DataSettings) -> History:
    """Read the items of a new user, named by ids or by titles.

    Columns are those that the run's own file has (``data.columns``), or are called by their roles:
    ``item`` or ``title``, and ``rating``, by which only what the run counts as an interaction is
    liked. A title that several items have stands for all of them.

    Args:
        path: of the file, oldest row first.
        data: of the run.
        rules: section ``data`` of the run's settings.

    Raises:
        UserError: the file has no column of items, is malformed or of several users, or has no item
            that is known and counts.
    """
    from coterie.core.data.sources.own_file import read_columns  # pyarrow is heavy

    remedy = "correct or delete the line"
    return history_of(read_columns(path, columns_of(data, rules), remedy), data, rules)


def columns_of(data: Interactions, rules: DataSettings) -> set[str]:
    """Columns that a history for a run may have; arguments as for `read_history`."""
    return {column for columns in _wanted(data, rules).values() for column in columns}


def history_of(table: Table, data: Interactions, rules: DataSettings) -> History:
    """Take the history of a new user from a table; arguments and errors as for `read_history`."""
    wanted, path = _wanted(data, rules), table.path
    found = {
        role: column
        for role, columns in wanted.items()
        if (column := next((each for each in columns if each in table.names), None))
    }
    _check_one_user(table, found.get("user"))
    words, known = _words(table, found, data)
    places = {
        word: known.get(word) or known.get(word.strip()) or [] for word in dict.fromkeys(words)
    }
    column = found.get("item") or found["title"]
    if not any(places.values()):
        hint = _hint(places, known)
        raise UserError(f"{path}: none of its {column}s is known to the run: {hint}")
    counts, remarks = _counting(table, found.get("rating"), data, rules)
    liked = list(dict.fromkeys(_places(places, np.array(words, object)[counts])))
    if not liked:
        raise UserError(
            f"{path}: no known item of it counts as liked: the run takes {_rule(rules)}, see its "
            f"column '{found['rating']}'"
        )
    had = sorted(set(_places(places, words)))
    notes = [*_choice(wanted, found, table), *_unknown(places), *_shared(places, column), *remarks]
    return History(torch.tensor(liked), torch.tensor(had), notes)


def _wanted(data: Interactions, rules: DataSettings) -> dict[str, list[str]]:
    """Columns that may play a role, by role."""
    named = rules.columns or {}
    roles = (role for role in _ROLES if role != "domain" or data.domains is not None)
    return {role: _columns(role, named) for role in roles}


def _columns(role: str, named: Mapping[str, str]) -> list[str]:
    """Columns that may play a role, the run's own first; none that plays another one there."""
    others = {column for other, column in named.items() if other != role}
    return list(dict.fromkeys([named.get(role, role), *{role} - others]))


def _check_one_user(table: Table, column: str | None) -> None:
    if column is None:
        return
    users = table.coded(column, blank=True).dictionary
    if len(users) > 1:
        raise UserError(
            f"{table.path} has rows of {len(users):,} users (column '{column}'): a history is of "
            "one, leave the others out"
        )


def _words(
    table: Table, found: Mapping[str, str], data: Interactions
) -> tuple[list[str], dict[str, list[int]]]:
    """Give what every row calls its item, and the numbers of the items that are called so."""
    names: list[str]
    if "item" in found:
        names, words = data.item_names, _ids(table, found)
    elif "title" in found and data.titles is not None:
        names, words = data.titles, table.strings(found["title"])
    elif "title" in found:
        raise UserError(
            f"{table.path} names items by '{found['title']}', and the run knows no titles: give a "
            "column item (ids)"
        )
    else:
        columns = ", ".join(table.names[:20])
        raise UserError(
            f"{table.path} has the columns {columns}: it needs one named item (ids) or title, "
            "or as in the run's own file"
        )
    known: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        known.setdefault(name, []).append(place)
        if name != name.strip():
            known.setdefault(name.strip(), []).append(place)
    known.pop("", None)  # an item without a title is not every such item
    return words, known


def _ids(table: Table, found: Mapping[str, str]) -> list[str]:
    """Ids of the rows' items, as the run calls them."""
    if "domain" not in found:
        return table.strings(found["item"])
    from coterie.core.data.sources.own_file import domain_column, in_domains

    domain = domain_column(table, found["domain"])
    ids: list[str] = in_domains(domain, table.coded(found["item"])).to_pylist()
    return ids


def _counting(
    table: Table, column: str | None, data: Interactions, rules: DataSettings
) -> tuple[np.ndarray, list[str]]:
    """Say of every row whether it is an interaction by the run's rules, ``(n,)`` bool; notes."""
    if column is None:
        if rules.min_rating is None:
            return np.ones(len(table), bool), []
        return np.ones(len(table), bool), [
            f"the run takes {_rule(rules)}; {table.path} has no ratings, so all of it counts"
        ]
    rating = table.numbers(column).astype(np.float32)  # as those of the run
    counts: np.ndarray = rating > 0
    if rules.min_rating is not None:
        counts &= rating >= np.float32(rules.min_rating)
    low = int((~counts).sum())
    if not low:
        return counts, []
    return counts, [
        f"{low} of {len(table)} rows count as had, not as liked: the run takes {_rule(rules)}"
    ]


def _rule(rules: DataSettings) -> str:
    least = rules.min_rating
    return "ratings above 0" if least is None else f"ratings of {least:g} or more"


def _places(places: Mapping[str, list[int]], words: Collection[str]) -> Iterator[int]:
    return (place for word in words for place in places[word])


def _hint(words: Collection[str], known: Collection[str]) -> str:
    first = next((word for word in words if word.strip()), None)
    if first is None:
        return "the column is empty"
    hint = nearest(first, known)
    return hint if len(hint) <= _LONGEST_HINT else "see the item ids of the data set"


def _choice(
    wanted: Mapping[str, list[str]], found: Mapping[str, str], table: Table
) -> Iterator[str]:
    """Say which column was taken where several could be."""
    for role, column in found.items():
        others = [each for each in wanted[role] if each in table.names and each != column]
        if role == "item" and "title" in found:
            others.append(found["title"])
        if others:
            yield f"the {role}s are those of column '{column}', not of {', '.join(others)}"


def _unknown(places: Mapping[str, list[int]]) -> Iterator[str]:
    words = [word for word in places if word.strip()]
    unknown = [word for word in words if not places[word]]
    if unknown:
        some = ", ".join(name[:40] for name in unknown[:3])
        these = some if len(unknown) <= 3 else f"{some}, ..."
        yield f"{len(unknown)} of {len(words)} items unknown: {these}"


def _shared(places: Mapping[str, list[int]], column: str) -> Iterator[str]:
    for word, items in places.items():
        if len(items) > 1:
            yield f"{len(items)} items have the {column} '{word.strip()[:40]}': all of them count"
