"""What a module takes as a batch, as fields of samples and back: dicts, tuples, nested ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from coterie.core.data.samples import partitions
from coterie.core.errors import UserError, nearest
from coterie.core.front.given import of_numpy
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged


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


# How one data set is dealt out to clients, as objects: `federate(..., partition=dirichlet(...))`.
#
# The schemes are those of `coterie.core.data.samples.partitions`.

_LABELS = ("y", "label", "labels", "target", "targets")


@dataclass(frozen=True, kw_only=True)
class Partition(ABC):
    """How one data set is dealt out; made by the functions of this module."""

    @abstractmethod
    def deal(self, samples: Mapping[str, Tensor], form: BatchForm, key: Key) -> Ragged:
        """Give each client sample numbers, a row each.

        Args:
            samples: fields by name, each ``(n, ...)``.
            form: of a batch of them.
            key: of the draws.

        Raises:
            UserError: it cannot be dealt out so.
        """


@dataclass(frozen=True, kw_only=True)
class _Uniform(Partition):
    n_clients: int

    def deal(self, samples: Mapping[str, Tensor], form: BatchForm, key: Key) -> Ragged:
        return partitions.uniform(len(next(iter(samples.values()))), self.n_clients, key)


@dataclass(frozen=True, kw_only=True)
class _Dirichlet(Partition):
    alpha: float
    n_clients: int
    labels: str | None
    min_size: int

    def deal(self, samples: Mapping[str, Tensor], form: BatchForm, key: Key) -> Ragged:
        labels = labels_of(samples, form, self.labels)
        return partitions.dirichlet(labels, self.n_clients, self.alpha, key, min_size=self.min_size)


@dataclass(frozen=True, kw_only=True)
class _QuantitySkew(Partition):
    alpha: float
    sigma: float
    n_clients: int
    labels: str | None
    min_size: int

    def deal(self, samples: Mapping[str, Tensor], form: BatchForm, key: Key) -> Ragged:
        labels = labels_of(samples, form, self.labels)
        skew = (self.n_clients, self.alpha, self.sigma)
        return partitions.quantity_skew(labels, *skew, key, min_size=self.min_size)


@dataclass(frozen=True, kw_only=True)
class _Shards(Partition):
    n_clients: int
    per_client: int
    labels: str | None

    def deal(self, samples: Mapping[str, Tensor], form: BatchForm, key: Key) -> Ragged:
        labels = labels_of(samples, form, self.labels)
        return partitions.shards(labels, self.n_clients, key, per_client=self.per_client)


def uniform(n_clients: int = 10) -> Partition:
    """Deal samples out at random, in equal parts.

    Args:
        n_clients: number of clients.

    Raises:
        UserError: the number is none.

    Example:
        >>> uniform(4).n_clients
        4
    """
    return _Uniform(n_clients=_some(n_clients))


def dirichlet(
    alpha: float, n_clients: int = 10, *, labels: str | None = None, min_size: int = 10
) -> Partition:
    """Label skew (Yurochkin et al., ICML 2019): each class is divided in ratios from Dir(alpha).

    Args:
        alpha: concentration; the smaller, the fewer classes a client has.
        n_clients: number of clients.
        labels: field of the classes, whole numbers; None = the last entry of a tuple, or the field
            "y", "label", "labels", "target" or "targets" of a dict.
        min_size: samples that each client must have.

    Raises:
        UserError: a number is none.
    """
    return _Dirichlet(
        alpha=_number("alpha", alpha),
        n_clients=_some(n_clients),
        labels=labels,
        min_size=_count("min_size", min_size),
    )


def quantity_skew(
    alpha: float,
    sigma: float,
    n_clients: int = 10,
    *,
    labels: str | None = None,
    min_size: int = 1,
) -> Partition:
    """Log-normal sizes, and label skew.

    Args:
        alpha: as of `dirichlet`.
        sigma: standard deviation of the logarithm of a size; 0 = equal parts.
        n_clients: number of clients.
        labels: as of `dirichlet`.
        min_size: samples that each client has at least.

    Raises:
        UserError: a number is none.
    """
    return _QuantitySkew(
        alpha=_number("alpha", alpha),
        sigma=_number("sigma", sigma),
        n_clients=_some(n_clients),
        labels=labels,
        min_size=_count("min_size", min_size),
    )


def shards(n_clients: int = 10, *, per_client: int = 2, labels: str | None = None) -> Partition:
    """Sort by class, cut into shards, deal each client as many (McMahan et al., 2017).

    Args:
        n_clients: number of clients.
        per_client: shards a client, about its number of classes.
        labels: as of `dirichlet`.

    Raises:
        UserError: a number is none.
    """
    shards_each = _count("per_client", per_client)
    return _Shards(n_clients=_some(n_clients), per_client=shards_each, labels=labels)


def labels_of(samples: Mapping[str, Tensor], form: BatchForm, name: str | None) -> Tensor:
    """The field of the classes, ``(n,)`` int64.

    Args:
        samples: fields by name.
        form: of a batch of them.
        name: of the field; None = see `dirichlet`.

    Raises:
        UserError: there is none of that name, or it holds no whole numbers.
    """
    if name is None:
        usual = [field for field in _LABELS if field in samples]
        name = usual[0] if form.is_dict and usual else form.names[-1]
        if form.is_dict and not usual:
            raise UserError(
                f"a partition by classes needs a field of them: name it by labels=, one of "
                f"{', '.join(form.names)}"
            )
    if name not in samples:
        raise UserError(f"labels='{name}' is no field: {nearest(name, samples)}")
    found = samples[name]
    if found.dim() != 1 or found.is_floating_point() or found.is_complex():
        raise UserError(
            f"labels='{name}' must be one whole number a sample: name another field by labels=, or "
            "use partition.uniform"
        )
    return found.long()


def _some(n_clients: int) -> int:
    found = _count("n_clients", n_clients)
    if found < 1:
        raise UserError(f"n_clients is {n_clients}: choose 1 or more")
    return found


def _count(name: str, value: int) -> int:
    found = of_numpy(value)
    if isinstance(found, bool) or not isinstance(found, int):
        raise UserError(f"{name} is {value!r}: choose a whole number")
    return found


def _number(name: str, value: float) -> float:
    found = of_numpy(value)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise UserError(f"{name} is {value!r}: choose a number")
    return found
