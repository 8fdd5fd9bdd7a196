"""Parts of a model by the names of its parameters: what is shared, what stays, a head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from torch import nn

from coterie.core.errors import UserError
from coterie.core.models.classifier import Classifier

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


# Classifiers in two parts: the body that makes features, and the head.

HEAD = "head."
"""Before the names of a head's parameters."""


def with_head(module: nn.Module) -> Classifier:
    """Check that a module has a body and a linear head, which Fed-ROD trains by losses of its own.

    Args:
        module: any.

    Raises:
        UserError: it has none, or the head is frozen.
    """
    if not isinstance(module, Classifier):
        raise UserError(
            "Fed-ROD trains two heads on one body by losses of its own, of labels, and not by that "
            f"of {type(module).__name__}: give a coterie.core.models.classifier.Classifier(body, "
            "head) with batches of x and y, or choose fedrecon, which takes any module by head="
        )
    if not module.head.weight.requires_grad:
        raise UserError("Fed-ROD trains the head, which is frozen: set requires_grad to true")
    return module
