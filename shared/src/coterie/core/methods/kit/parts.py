"""Parts of a model by the names of its parameters: what is shared, and what stays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from coterie.core.errors import UserError

V = TypeVar("V")


def matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Choose names by patterns, as ``experts.*``; without a pattern all of them.

    Args:
        names: of a model's parameters, in order.
        patterns: each with ``*`` for any characters.

    Raises:
        UserError: a pattern fits no name.

    Example:
        >>> matching(["body.weight", "head.weight", "head.bias"], ["head.*"])
        ['head.weight', 'head.bias']
    """
    known = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise UserError(
                f"no parameter of the model is named as '{pattern}': it has {_some(known)}"
            )
    if not patterns:
        return known
    return [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]


def part(params: Mapping[str, V], names: Iterable[str]) -> dict[str, V]:
    """The parameters of some names."""
    return {name: params[name] for name in names}


def without(params: Mapping[str, V], names: Iterable[str]) -> dict[str, V]:
    """The others.

    Example:
        >>> without({"a": 1, "b": 2}, ["a"])
        {'b': 2}
    """
    left_out = set(names)
    return {name: value for name, value in params.items() if name not in left_out}


def last_layers(names: Sequence[str], count: int) -> list[str]:
    """Names of the parameters in the last layers; a layer is a module with all its parameters.

    Args:
        names: of all parameters, in order.
        count: of layers.

    Example:
        >>> last_layers(["body.0.weight", "body.0.bias", "head.weight", "head.bias"], 1)
        ['head.weight', 'head.bias']
    """
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    return [name for name in names if name.rpartition(".")[0] in layers[-count:]]


def _some(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
