"""Items that belong to organisations: an item is a domain and an id, never an id alone."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.data.sources.tables import Table

_MARK = "/"


def in_domains(domain: pa.Array | str, item: pa.Array) -> pa.Array:
    """Names of items, ``domain/id``: equal ids of two domains are two items.

    Args:
        domain: ``(n,)`` text from `domain_column`, or one domain for all.
        item: ``(n,)`` text, as `Table.filled` gives it.
    """
    text = pa.large_string()
    domain = pa.scalar(domain, text) if isinstance(domain, str) else domain
    return pc.binary_join_element_wise(domain, item, pa.scalar(_MARK, text))


def domain_column(table: Table, column: str) -> pa.Array:
    """Read the domain of every row, ``(n,)`` text.

    Raises:
        UserError: naming the first line where it is missing, or holds a ``/``.
    """
    domain = table.filled(column)
    marked = pc.match_substring(domain, _MARK).to_numpy(zero_copy_only=False)
    if marked.any():
        raise table.fault(int(marked.argmax()), f"column '{column}' holds a '{_MARK}'")
    return domain


def with_domains(found: Interactions) -> Interactions:
    """Say the domain of every item whose name is from `in_domains`."""
    return replace(found, domains=[name.split(_MARK, 1)[0] for name in found.item_names])
