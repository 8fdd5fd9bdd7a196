"""What may stand in a message: read from its annotations when the class is made."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

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
