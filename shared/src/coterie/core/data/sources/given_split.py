"""Train, validation and test parts that a file itself gives, and positions in place of times."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from coterie.core.data.interactions.interactions import TEST, TRAIN, VALID
from coterie.core.data.sources.tables import Table

_PARTS = {"train": TRAIN, "valid": VALID, "test": TEST}


def parts_of(table: Table, column: str) -> np.ndarray:
    """Read the part of every row, ``(n,)`` int64.

    Raises:
        UserError: naming the first line that is not train, valid or test.
    """
    coded = table.coded(column, blank=True)
    numbers = np.array([_PARTS.get(word, -1) for word in coded.dictionary.to_pylist()])
    part: np.ndarray = numbers[coded.indices.to_numpy()].astype(np.int64)
    if (part < 0).any():
        row = int((part < 0).argmax())
        what = f"'{coded[row].as_py()[:40]}', not train, valid or test"
        raise table.fault(row, f"column '{column}' is {what}")
    return part


def check_positions(
    table: Table, user: pa.DictionaryArray, position: np.ndarray, part: np.ndarray | None
) -> None:
    """Check that the positions put each user's rows, and the parts, into one order.

    Args:
        table: for messages.
        user: ``(n,)`` ids, from `Table.coded`.
        position: ``(n,)`` int64.
        part: ``(n,)`` int64 from `parts_of`, or None.

    Raises:
        UserError: a user's position repeats, or a later one is of an earlier part.
    """
    number = user.indices.to_numpy()
    order = np.argsort(position, kind="stable")
    order = order[np.argsort(number[order], kind="stable")]
    same = number[order][1:] == number[order][:-1]
    faults = [(np.diff(position[order]) == 0, "the user has this position twice")]
    if part is not None:
        what = "the part is before that of the user's position before it"
        faults.append((np.diff(part[order]) < 0, what))
    for wrong, what in faults:
        if (wrong & same).any():
            raise table.fault(int(order[1:][int((wrong & same).argmax())]), what)
