"""Classes of Hugging Face's ``datasets``: whole numbers in a file whose schema has their names."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from coterie.core.data.sources.plain_columns import LISTS, TEXT, relisted
from coterie.core.errors import UserError

_KEY = b"huggingface"
_LISTS = ("List", "LargeList", "Sequence")
_LABELS = {"0", "1"}


def class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Names of the classes by column, of columns of classes and of lists of classes.

    Example:
        >>> meta = '{"info": {"features": {"g": {"names": ["a", "b"], "_type": "ClassLabel"}}}}'
        >>> class_names(pa.schema([("g", pa.int64())], {"huggingface": meta}))
        {'g': ['a', 'b']}
    """
    text = (schema.metadata or {}).get(_KEY)
    if text is None:
        return {}
    try:
        features = json.loads(text)["info"]["features"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # whoever wrote this, no classes are known
    found = {name: _names(_within(feature)) for name, feature in features}
    return {name: names for name, names in found.items() if names}


def with_names(
    column: pa.ChunkedArray, names: list[str], what: str, numbered: bool
) -> pa.ChunkedArray:
    """Put the names of classes in the place of their numbers, and null for -1, which is no class.

    Args:
        column: of whole numbers, or lists of them.
        names: of the classes.
        what: the column, for messages.
        numbered: whether the numbers are wanted, as of labels; where the names are 0 and 1
            themselves, they count.

    Raises:
        UserError: a number has no name.
    """
    if numbered and not set(names) <= _LABELS:
        return column
    if pa.types.is_integer(column.type):
        return _named(column, names, what)
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return column
    words = [_named(pa.chunked_array([pc.list_flatten(c)]), names, what) for c in column.chunks]
    lists = [relisted(chunk, each) for chunk, each in zip(column.chunks, words, strict=True)]
    return pa.chunked_array(lists, LISTS)


def _named(column: pa.ChunkedArray, names: list[str], what: str) -> pa.ChunkedArray:
    known = column.drop_null()
    if len(known):
        extremes = pc.min_max(known).as_py()
        if extremes["min"] < -1 or extremes["max"] >= len(names):
            odd = extremes["min"] if extremes["min"] < -1 else extremes["max"]
            raise UserError(f"{what} has class {odd}, of {len(names)} that have names: check it")
    words = pa.array(names, TEXT)
    place = pc.if_else(pc.equal(column, -1), pa.scalar(None, column.type), column)
    taken = [words.take(chunk) for chunk in place.chunks]
    return pa.chunked_array(taken, TEXT)


def _within(feature: Any) -> Any:
    """What a list is of; anything else as it is."""
    if isinstance(feature, list) and len(feature) == 1:
        return feature[0]
    if isinstance(feature, dict) and feature.get("_type") in _LISTS:
        return feature.get("feature")
    return feature


def _names(feature: Any) -> list[str]:
    is_class = isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
    names = feature.get("names") if is_class else None
    return [str(name) for name in names] if isinstance(names, list) else []
