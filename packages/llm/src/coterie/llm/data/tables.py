"""Examples and item texts as Hugging Face data sets, which share memory with the tensors.

What is large can be kept on disk by ``save_to_disk`` and opened memory-mapped by
``datasets.load_from_disk``.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError
from coterie.core.tensors.ragged import Ragged
from coterie.llm.data.examples import Examples

if TYPE_CHECKING:
    from datasets import Dataset


def titles_of(interactions: Interactions) -> list[str]:
    """Give the titles of the items.

    Raises:
        UserError: if the source has none.
    """
    if interactions.titles is None:
        raise UserError(
            f"{interactions.source} has no titles: put the data set's file of titles there, name "
            "the column of a file of yours by --data.columns title=COLUMN, or use the backbone "
            "tiny-item"
        )
    return interactions.titles


def item_table(interactions: Interactions) -> Dataset:
    """Make the table of the items, one row an item number.

    Returns:
        Columns ``item`` (the original id), ``title``, ``brand`` and ``category`` ("" where not
        known; several categories or genres are joined by ", "), and ``text``, all of these in one
        line. Titles may repeat.

    Raises:
        UserError: if the source has no titles.
    """
    names, titles = interactions.item_names, titles_of(interactions)
    brands = interactions.brands or [""] * len(names)
    categories = [", ".join(words) for words in interactions.genres or [[]] * len(names)]
    text = [_line(parts) for parts in zip(titles, brands, categories, strict=True)]
    return _dataset(
        {"item": names, "title": titles, "brand": brands, "category": categories, "text": text}
    )


def example_table(parts: Sequence[Examples], client: Tensor) -> Dataset:
    """Make one table of the examples of K clients, by their tensors and without Python lists.

    Args:
        parts: examples of each client.
        client: ``(K,)`` int64, the client of each part.

    Returns:
        Columns ``client``, ``history`` (a list) and ``target``, all int64.
    """
    lengths = torch.cat([part.history.lengths for part in parts])
    values = torch.cat([part.history.values for part in parts])
    sizes = torch.tensor([len(part) for part in parts])
    return _dataset(
        {
            "client": pa.array(client.repeat_interleave(sizes).numpy()),
            "history": list_array(Ragged.from_lengths(values, lengths)),
            "target": pa.array(torch.cat([part.target for part in parts]).numpy()),
        }
    )


def list_array(rows: Ragged) -> pa.Array:
    """Give rows as an Arrow column of lists, which shares their memory.

    Example:
        >>> list_array(Ragged.from_lists([[1, 2], []])).to_pylist()
        [[1, 2], []]
    """
    offsets, values = (pa.array(part.numpy()) for part in (rows.offsets, rows.values))
    return pa.LargeListArray.from_arrays(offsets, values)


def examples_of(table: Dataset) -> Examples:
    """Read examples back from a table with columns ``history`` and ``target``.

    A table that is one piece and not a selection of rows is not copied; the tensors are not to be
    written to.
    """
    found = table.with_format("arrow")[:] if table._indices is not None else table.data.table
    return Examples(ragged_of(found["history"]), _tensor(_one_piece(found["target"])))


def ragged_of(column: pa.ChunkedArray) -> Ragged:
    """Read a column of lists of int64, by its offsets and values.

    Example:
        >>> ragged_of(pa.chunked_array([[[1, 2], [], [3]]])).tolists()
        [[1, 2], [], [3]]
    """
    lists = _one_piece(column)
    offsets = _tensor(lists.offsets.cast(pa.int64()))
    start, end = int(offsets[0]), int(offsets[-1])
    return Ragged(_tensor(lists.values)[start:end], offsets - start if start else offsets)


def _one_piece(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _tensor(array: pa.Array) -> Tensor:
    with warnings.catch_warnings():
        # Arrow's memory may be a file: torch warns that it cannot be written to.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(np.asarray(array.to_numpy(zero_copy_only=True)))


def _dataset(columns: dict[str, Sequence[str] | pa.Array]) -> Dataset:
    from datasets import Dataset

    return Dataset(pa.table(columns))


def _line(parts: Sequence[str]) -> str:
    return ", ".join(" ".join(part.split()) for part in parts if part.strip())
