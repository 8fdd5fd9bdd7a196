"""Folds: how uploads become one value while they arrive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from coterie.core.protocol.expected import Bounds
from coterie.core.tensors import tree
from coterie.core.tensors.rows import DenseRows, Rows

_LARGE = 1 << 14
"""Numbers of a client from which on a sum is a matrix product, which rounds otherwise."""
U = TypeVar("U")
U_contra = TypeVar("U_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)


class Folds(Protocol[U_contra, T_co]):
    """The types of a fold: of which uploads it makes what."""

    def of(self, up: U_contra) -> T_co:
        """Fold the stacked uploads of some clients."""
        ...


class Fold(ABC):
    """A reduction over stacked uploads: of each part, and of what two parts gave.

    A fold with a name may be made where the clients are, before anything crosses: both ends know
    it by that name, and its fields are plain values. One without is made by the server.
    """

    name: ClassVar[str] = ""
    _named: ClassVar[dict[str, type[Fold]]] = {}

    def __init_subclass__(cls) -> None:
        """Note the fold under its name."""
        super().__init_subclass__()
        if cls.name:
            Fold._named[cls.name] = cls

    @abstractmethod
    def of(self, up: Any) -> Any:
        """Fold the stacked uploads of some clients."""

    def merge(self, total: Any, part: Any) -> Any:
        """Join what two groups of clients gave. Default: the sum of each tensor."""
        return tree.map_tensors(torch.add, total, part)

    def result(self, up: Any) -> Any:
        """Class of what the fold gives, of uploads of the class ``up``. Default: the same."""
        return up

    def sums(self, total: Any, n_clients: int, bounds: Bounds) -> tuple[Any, float]:
        """The message of sums in what the fold gave, and the weight that they can have at most.

        A weight that the clients claim is no more than bounds allow; else there is no message.
        Default: the total itself, each client weighed by 1.
        """
        return total, n_clients

    def to_plain(self) -> dict[str, Any] | None:
        """Name and fields, as they travel; None for a fold that the server must make."""
        return {"name": self.name, **asdict(self)} if self.name else None  # type: ignore[call-overload]

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> Fold:
        """Read what `to_plain` gave.

        Raises:
            KeyError: no fold has that name here.
            TypeError: it has other fields.
        """
        fields = dict(plain)
        return Fold._named[fields.pop("name")](**fields)


@dataclass(frozen=True)
class Sum(Fold):
    """Sum every field over the clients.

    The sum is a message of the same type without the client axis; changes of rows add up to
    changes of one client.

    Example:
        >>> fold = Sum()
        >>> total = fold.of({"a": torch.ones(2, 3)})
        >>> fold.merge(total, fold.of({"a": torch.ones(4, 3)}))["a"].tolist()
        [6.0, 6.0, 6.0]
    """

    name: ClassVar[str] = "sum"

    def of(self, up: U) -> U:
        """Sum the uploads of some clients; errors as of `weighted_sum`."""
        return weighted_sum(up)


def weighted_sum(up: U, weight: Tensor | None = None) -> U:
    """Sum every field of stacked uploads over C clients, each times its weight, ``(C,)``, or by 1.

    Raises:
        TypeError: a field holds rows of unequal length, which have no sum.
    """
    return tree.map_values(lambda leaf: _sum(leaf, weight), up)


def _sum(value: Any, weight: Tensor | None) -> Any:
    if isinstance(value, Rows):
        rows = value if weight is None else value.scaled(weight)
        return DenseRows(rows.sum()[None])
    if not isinstance(value, Tensor):
        raise TypeError(f"a {type(value).__name__} cannot be summed over clients: keep the uploads")
    if weight is None:
        return value.sum(0)
    if value[:1].numel() >= _LARGE and torch.result_type(value, weight) == value.dtype:
        flat = value.reshape(len(value), -1)  # the products, as large as the uploads, stay unmade
        return torch.mv(flat.T, weight.to(value.dtype)).view(value.shape[1:])
    return (value * tree.columns(weight, value)).sum(0)
