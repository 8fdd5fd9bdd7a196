"""What the annotations of a class say: what may travel, and how a state is read back."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from functools import cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from torch import Tensor

from coterie.core.tensors.appended import Appended
from coterie.core.tensors.stacked import Stacked

PLAIN = (bool, int, float, str)
Nest = Annotated[Any, "tensors, plain values, and dicts of them"]
"""Type of a field that holds whatever dicts of tensors its owner likes; no dataclasses."""

_MAY = (
    "may travel: Tensor, Ragged, Rows, bool, int, float, str, Literal, dataclasses of these, and "
    "dict[str, ...], list[...], tuple[...] and optional ones of all of them"
)


def check_class(cls: type, *, stays: bool = False) -> None:
    """Check that everything a message class declares can stand in a message.

    Args:
        cls: the class.
        stays: whether it never travels; it may hold `Appended` parts then.

    Raises:
        TypeError: names the class, the field and what to write in its place.
        NameError: an annotation names what is not defined (yet).

    Example:
        >>> class Peers:
        ...     ids: set[int]
        >>> check_class(Peers)
        Traceback (most recent call last):
        ...
        TypeError: Peers.ids: set[int] cannot travel. What may travel: Tensor, Ragged, Rows, ...
    """
    for name, hint in hints_of(cls).items():
        if why := _refused(hint, stays):
            raise TypeError(f"{cls.__name__}.{name}: {why}. What {_MAY}")


def holds(hint: Any, kind: type) -> bool:
    """Whether a value of an annotated type may hold one of a kind.

    Raises:
        NameError: an annotation names what is not defined (yet).
    """
    found = get_origin(hint) or hint
    if isinstance(found, type) and (issubclass(found, kind) or dataclasses.is_dataclass(found)):
        return issubclass(found, kind) or any(holds(one, kind) for one in hints_of(found).values())
    return any(holds(part, kind) for part in get_args(hint))


def choices(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type; None as its type."""
    if hint is None:
        return (type(None),)
    if get_origin(hint) in (Union, types.UnionType):
        return get_args(hint)
    return (hint,)


def hints_of(cls: Any) -> dict[str, Any]:
    """Types of the fields of a dataclass, by name.

    Raises:
        NameError: an annotation names what is not defined (yet).
    """
    found = get_type_hints(cls, include_extras=True)
    return {n: hint for n, hint in found.items() if get_origin(hint) is not ClassVar}


fields_of: Callable[[Any], dict[str, Any]] = cache(hints_of)
"""The same, remembered: for classes that are complete."""


def _refused(hint: Any, stays: bool) -> str | None:
    """Why a value of this type cannot travel (or be kept), or None."""
    kinds = [kind for kind in choices(hint) if kind is not type(None)]
    if len(kinds) > 1:
        return f"{hint} is several types, of which a reader could not tell which came"
    return _refused_kind(kinds[0], stays) if kinds else None


def _refused_kind(kind: Any, stays: bool) -> str | None:
    if kind in (Tensor, Nest, *PLAIN) or get_origin(kind) is Literal:
        return None
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin is Appended:
        if not stays:
            return f"{_name(kind)} stays where it is: send the entries that are asked for"
        return _refused(parts[0], False) if parts else f"{_name(kind)} does not say what it holds"
    if origin in (dict, list, tuple):
        if not parts or (origin is dict and parts[0] is not str):
            return f"{_name(kind)} does not say what it holds under which names"
        inner = parts[1:] if origin is dict else [part for part in parts if part is not Ellipsis]
        return next((why for one in inner if (why := _refused(one, stays))), None)
    if isinstance(kind, type) and issubclass(kind, Stacked):
        return None
    if dataclasses.is_dataclass(kind):
        check_class(kind, stays=stays)  # type: ignore[arg-type]
        return None
    return f"{_name(kind)} cannot travel"


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)


# States from checkpoints: what may have grown since a run began is read by its annotations.

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
