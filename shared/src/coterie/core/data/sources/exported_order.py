"""The mark of an export, by which its rows are read back in the order that they had.

A file of the user's own is sorted, since the order of its rows means nothing. An export of a known
data set has that set's order, and with it the numbers of users and items: read back in that order,
a run makes the same numbers. The mark is a digest; rows that were changed since are sorted.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from coterie.core.data.interactions.digest import data_digest
from coterie.core.data.interactions.interactions import Interactions

MARK = "_coterie.json"


def exportable(found: Interactions) -> Interactions:
    """Interactions without what files of one's own have no column for, and what filters noted.

    Titles are trimmed, as they are in every file of one's own.
    """
    titles = found.titles and [title.strip() for title in found.titles]
    return replace(found, titles=titles, brands=None, user_features=None, dropped=(), besides=None)


def mark_of(found: Interactions) -> str:
    """The text of the mark."""
    return json.dumps({"digest": data_digest(exportable(found))}) + "\n"


def is_as_exported(path: Path, found: Interactions) -> bool:
    """Whether what was found at a path is an export whose rows are as they were written."""
    try:
        mark = (path / MARK).read_text()
    except (OSError, UnicodeDecodeError):
        return False
    return mark == mark_of(found)
