"""Items that belong to organisations: an item is a domain and an id, never an id alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.data.sources.tables import Table

_MARK = "/"


def in_domains(domain: pa.DictionaryArray | str, item: pa.DictionaryArray) -> pa.DictionaryArray:
    """Names of items, ``domain/id``: equal ids of two domains are two items.

    Args:
        domain: ``(n,)`` text from `domain_column`, or one domain for all.
        item: ``(n,)`` text, as `Table.coded` gives it.
    """
    text, words = pa.large_string(), item.dictionary
    mark = pa.scalar(_MARK, text)
    if isinstance(domain, str):
        names = pc.binary_join_element_wise(pa.scalar(domain, text), words, mark)
        return pa.DictionaryArray.from_arrays(item.indices, names)
    pair = domain.indices.to_numpy().astype(np.int64) * len(words) + item.indices.to_numpy()
    coded = pa.array(pair).dictionary_encode()
    of_domain, of_item = np.divmod(coded.dictionary.to_numpy(), len(words))
    parts = domain.dictionary.take(pa.array(of_domain)), words.take(pa.array(of_item))
    names = pc.binary_join_element_wise(*parts, mark)  # no two pairs have one: no domain has a /
    return pa.DictionaryArray.from_arrays(coded.indices, names)


def domain_column(table: Table, column: str) -> pa.DictionaryArray:
    """Read the domain of every row, ``(n,)`` text.

    Raises:
        UserError: naming the first line where it is missing, or holds a ``/``.
    """
    domain = table.coded(column)
    marked = pc.match_substring(domain.dictionary, _MARK).to_numpy(zero_copy_only=False)
    if marked.any():
        table.refuse(marked[domain.indices.to_numpy()], f"column '{column}' holds a '{_MARK}'")
    return domain


def with_domains(found: Interactions) -> Interactions:
    """Say the domain of every item whose name is from `in_domains`."""
    return replace(found, domains=[name.split(_MARK, 1)[0] for name in found.item_names])
