"""What a module takes as a batch, as fields of samples and back: dicts, tuples, nested ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from coterie.core.errors import UserError


@dataclass(frozen=True)
class Branch:
    """A part of a batch that holds others.

    Attributes:
        kind: of it: dict, list, tuple, or a named tuple's class.
        keys: of a dict, in order; empty for the others.
        parts: names of fields, or branches.
    """

    kind: type
    keys: tuple[Any, ...]
    parts: tuple[Any, ...]


@dataclass(frozen=True)
class BatchForm:
    """Puts fields together to what a module takes.

    Args:
        root: name of the one field, or a branch.

    Example:
        >>> import torch
        >>> fields, form = taken_apart([torch.ones(2), {"y": torch.zeros(2)}])
        >>> sorted(fields), form(fields)[1]["y"].tolist()
        (['0', '1.y'], [0.0, 0.0])
    """

    root: str | Branch

    def __call__(self, fields: Mapping[str, Tensor]) -> Any:
        """Make the batch."""
        return _built(self.root, fields)

    @property
    def names(self) -> list[str]:
        """Names of the fields, in order."""
        return list(_names(self.root))

    @property
    def is_dict(self) -> bool:
        """Whether a batch is a plain dict of its fields."""
        root = self.root
        return isinstance(root, Branch) and root.kind is dict and root.keys == root.parts

    def without(self, name: str) -> BatchForm:
        """Leave a field of a plain dict out."""
        return dict_form([field for field in self.names if field != name])


def dict_form(names: list[str]) -> BatchForm:
    """The form of a plain dict."""
    return BatchForm(Branch(dict, tuple(names), tuple(names)))


def taken_apart(batch: Any) -> tuple[dict[str, Tensor], BatchForm]:
    """Take a batch apart into fields: of a dict by its keys, of a tuple by places, from "0".

    Raises:
        UserError: it holds something that is no tensor.
    """
    fields: dict[str, Tensor] = {}
    root = _apart(batch, "", fields)
    return fields, BatchForm(root)


def _apart(part: Any, path: str, fields: dict[str, Tensor]) -> Any:
    if isinstance(part, Tensor):
        name = path or "0"
        if name in fields:
            raise UserError(f"two fields of a batch are called '{name}': rename one")
        fields[name] = part
        return name
    if isinstance(part, Mapping):
        keys = tuple(part)
        found = tuple(_apart(part[key], _joined(path, key), fields) for key in keys)
        return Branch(dict, keys, found)
    if isinstance(part, list | tuple) and part and not isinstance(part[0], str):
        found = tuple(_apart(one, _joined(path, n), fields) for n, one in enumerate(part))
        return Branch(type(part), (), found)
    what = type(part).__name__
    if isinstance(part, list | tuple) and part:
        what += f" of {type(part[0]).__name__}"
    raise UserError(
        f"'{path or 'batch'}' of a batch is a {what}, and batches are of tensors: encode it as "
        "numbers, or leave it out by collate_fn="
    )


def _joined(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _built(part: Any, fields: Mapping[str, Tensor]) -> Any:
    if isinstance(part, str):
        return fields[part]
    built = [_built(one, fields) for one in part.parts]
    if part.kind is dict:
        return dict(zip(part.keys, built, strict=True))
    if hasattr(part.kind, "_fields"):
        return part.kind(*built)
    return part.kind(built)


def _names(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
        return
    for one in part.parts:
        yield from _names(one)
