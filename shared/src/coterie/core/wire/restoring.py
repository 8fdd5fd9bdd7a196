"""States from checkpoints: what may have grown since a run began is read by its annotations."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, get_args, get_origin

from coterie.core.tensors.appended import Appended
from coterie.core.tensors.stacked import Stacked
from coterie.core.wire.travel import choices, fields_of

T = TypeVar("T")


def restore(like: T, plain: Any, kind: Any = None) -> T:
    """Rebuild a state from what `coterie.core.tensors.tree.to_plain` gave.

    It has the structure of ``like``, the state at the beginning, and what has grown since: fields
    that were None, lists and append-only parts of any length, and names in dicts that had none at
    the beginning.

    Args:
        like: state of a newcomer, or of a server before its first round.
        plain: from the checkpoint.
        kind: annotation of the place where ``like`` stands; the class of ``like`` by default.

    Raises:
        KeyError: a field is missing, or there is one too many.
    """
    if like is None or isinstance(like, Appended):
        return _built(kind, plain)
    if plain is None or not _is_node(like):
        return plain
    inner = _inner(kind)
    if isinstance(like, dict):
        if like:
            _check_names(plain, like)
        found: Any = {n: restore(like.get(n), child, inner) for n, child in plain.items()}
        return found
    if isinstance(like, (list, tuple)):
        known = [*like, *[None] * max(len(plain) - len(like), 0)]
        parts = [restore(one, child, inner) for one, child in zip(known, plain, strict=False)]
        found = parts if isinstance(like, list) else tuple(parts)
        return found
    hints = fields_of(type(like))
    names = [field.name for field in dataclasses.fields(like)]  # type: ignore[arg-type]
    _check_names(plain, names)
    return type(like)(**{n: restore(getattr(like, n), plain[n], hints[n]) for n in names})


def _built(kind: Any, plain: Any) -> Any:
    """What the annotation says, from plain values."""
    kinds = [one for one in choices(kind) if one is not type(None)]
    if plain is None or len(kinds) != 1:
        return plain
    kind, inner = kinds[0], _inner(kinds[0])
    if isinstance(plain, Appended):
        entries = plain.entries()
        return Appended.kept((_built(inner, entry.value), entry.file) for entry in entries)
    if get_origin(kind) is Appended:
        return Appended(_built(inner, child) for child in plain)
    if dataclasses.is_dataclass(kind) and not isinstance(plain, kind):  # type: ignore[arg-type]
        hints = fields_of(kind)
        names = [field.name for field in dataclasses.fields(kind)]
        _check_names(plain, names)
        return kind(**{n: _built(hints[n], plain[n]) for n in names})  # type: ignore[operator]
    if isinstance(plain, dict):
        return {name: _built(inner, child) for name, child in plain.items()}
    if isinstance(plain, list):
        parts = [_built(inner, child) for child in plain]
        return tuple(parts) if get_origin(kind) is tuple else parts
    return plain


def _inner(kind: Any) -> Any:
    """Annotation of what a dict or a list holds; None where it does not say."""
    for one in choices(kind):
        if get_origin(one) in (dict, list, tuple, Appended):
            return get_args(one)[1 if get_origin(one) is dict else 0]
    return None


def _is_node(value: Any) -> bool:
    return isinstance(value, (dict, list, tuple, Stacked)) or dataclasses.is_dataclass(value)


def _check_names(plain: Any, names: Any) -> None:
    if unknown := set(plain) ^ set(names):
        raise KeyError(f"'{sorted(unknown)[0]}' is in one of the two only")
