"""What a server makes of an upload's fields: the form it expects, the value it folds them into.

A form is declared beside the field and read against what the server asked with, never against what
a client says of itself.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from coterie.core.tensors import tree
from coterie.core.tensors.rows import DenseRows, Rows
from coterie.core.tensors.stacked import Stacked


@dataclass(frozen=True)
class Bounds:
    """What no client can plausibly exceed.

    Attributes:
        norm: L2 norm of what is `Like` a field of the message that was sent.
        count: of samples and the like.
    """

    norm: float = 1e12
    count: int = 10_000_000


PLAUSIBLE = Bounds()
UNBOUNDED = Bounds(math.inf, 2**62)
"""Of what has been judged before."""


class Expected(ABC):
    """The form of one field of an upload."""

    @abstractmethod
    def form(self, value: Any, down: Any, one_each: bool, n_clients: int | None) -> str | None:
        """Say what is wrong with the form, of all clients; None if nothing.

        Args:
            value: of the field.
            down: the message that these clients received.
            one_each: whether it is stacked over them, as each received its own.
            n_clients: C; None for one client in the list form, without a client axis.
        """

    def within(self, value: Any, bounds: Bounds, n_clients: int) -> tuple[Tensor, str] | None:
        """Say which clients' parts are within bounds, ``(C,)`` bool, and how the others are not.

        None for what has no bound.
        """
        return None


@dataclass(frozen=True)
class Like(Expected):
    """Names, shapes and dtypes as those of a field of the message that was sent.

    Changes of a table's rows are like that table. Of the names there may be fewer, where methods
    keep a part of a model to themselves.

    Attributes:
        field: of the message that the step receives.
        dtype: where it is another one than the field's, its name.
    """

    field: str
    dtype: str | None = None

    def form(self, value: Any, down: Any, one_each: bool, n_clients: int | None) -> str | None:
        """Compare every leaf with the one of that name."""
        sent = dict(tree.values({"": getattr(down, self.field)}))
        behind = 1 if one_each else 0
        for path, leaf in tree.values({"": value}):
            if path not in sent:
                return f"has '{path[1:]}', which was not sent"
            like = sent[path]
            assert isinstance(like, Tensor)
            dtype = like.dtype if self.dtype is None else getattr(torch, self.dtype)
            wanted = dtype, tuple(like.shape[behind:])
            if (found := _form(leaf, n_clients)) != wanted:
                return f"is {_words(*found)}, not {_words(*wanted)}"
        return None

    def within(self, value: Any, bounds: Bounds, n_clients: int) -> tuple[Tensor, str] | None:
        """Bound the norm over all leaves; what is not finite is within no bound.

        Integers stand for numbers that are hidden, so they have no norm to judge.
        """
        judged = [
            leaf
            for _, leaf in tree.values(value)
            if isinstance(leaf, Rows) or (isinstance(leaf, Tensor) and leaf.is_floating_point())
        ]
        if not judged:
            return None
        within = _whole_norm(judged, n_clients) <= bounds.norm  # NaN compares as false
        if any(isinstance(leaf, Rows) for leaf in judged) and not bool(within.all()):
            within = _whole_norm(judged, n_clients, exact=True) <= bounds.norm
        return within, f"has a norm over the bound of {bounds.norm:g}"


@dataclass(frozen=True)
class Shaped(Like):
    """Real numbers under the names and in the shapes that a field of the message says.

    For uploads like nothing that was sent with the request; their norm is bounded as well.

    Attributes:
        field: of the message that the step receives, a dict of shapes, tuples of int.
    """

    def form(self, value: Any, down: Any, one_each: bool, n_clients: int | None) -> str | None:
        """Compare names and shapes."""
        wanted: dict[str, tuple[int, ...]] = getattr(down, self.field)
        found = dict(tree.values(value))
        if found.keys() != wanted.keys():
            name = next(iter(found.keys() ^ wanted.keys()))
            return f"{'lacks' if name in wanted else 'has'} '{name}'"
        for name, leaf in found.items():
            dtype, shape = _form(leaf, n_clients)
            if dtype is None or not dtype.is_floating_point or shape != tuple(wanted[name]):
                asked = f"real numbers {list(wanted[name])}"
                return f"'{name}' is {_words(dtype, shape)}, not {asked}"
        return None


@dataclass(frozen=True)
class Number(Expected):
    """Real numbers a client, such as a loss: one, or in each leaf as many axes as said.

    Attributes:
        axes: of one client's part.
        dtype: name of the one that numbers have where they are hidden; None for real ones.
    """

    axes: int = 0
    _: KW_ONLY
    dtype: str | None = None

    def form(self, value: Any, down: Any, one_each: bool, n_clients: int | None) -> str | None:
        """Compare kind and number of axes."""
        for _, leaf in tree.values(value):
            dtype, shape = _form(leaf, n_clients)
            if dtype is None or not self._is_kind(dtype) or len(shape) != self.axes:
                kind = self.dtype or "real numbers"
                return f"is {_words(dtype, shape)}, not {self.axes or 'no'} axes of {kind}"
        return None

    def _is_kind(self, dtype: torch.dtype) -> bool:
        if self.dtype is None:
            return dtype.is_floating_point
        return dtype == getattr(torch, self.dtype)


@dataclass(frozen=True)
class Share(Number):
    """A real number a client, from 0 to 1."""

    def within(self, value: Any, bounds: Bounds, n_clients: int) -> tuple[Tensor, str]:
        """Bound every leaf from both sides."""
        good = torch.ones(n_clients, dtype=torch.bool)
        for _, leaf in tree.tensors(value):
            good &= ((leaf >= 0) & (leaf <= 1)).reshape(n_clients)
        return good, "is not between 0 and 1"


@dataclass(frozen=True)
class Sized(Number):
    """Real numbers, along the last axis as many as a field of the message that was sent says.

    Where that field is a dict, the numbers come under its names, no more and no fewer.

    Attributes:
        axes: of one client's part.
        field: int, or dict of them, of the message that the step receives.
    """

    axes: int = 1
    field: str = ""

    def form(self, value: Any, down: Any, one_each: bool, n_clients: int | None) -> str | None:
        """Compare names and numbers as well."""
        if why := super().form(value, down, one_each, n_clients):
            return why
        found = {path: leaf.shape[-1] for path, leaf in tree.tensors({"": value})}
        sizes = getattr(down, self.field)
        wanted = sizes if isinstance(sizes, dict) else {"": sizes}
        if found == wanted:
            return None
        name = next(name for name in [*found, *wanted] if found.get(name) != wanted.get(name))
        counts = (f"{count.get(name, 'no')} numbers" for count in (found, wanted))
        return f"has {next(counts)}, not {next(counts)}" + (f" of '{name}'" if name else "")


@dataclass(frozen=True)
class Count(Expected):
    """One int64 a client, from 0 to the bound: a number of samples."""

    def form(self, value: Any, down: Any, one_each: bool, n_clients: int | None) -> str | None:
        """Compare dtype and shape."""
        return _scalar(value, torch.int64, n_clients)

    def within(self, value: Any, bounds: Bounds, n_clients: int) -> tuple[Tensor, str]:
        """Bound every leaf from both sides."""
        good = torch.ones(n_clients, dtype=torch.bool)
        for _, leaf in tree.tensors(value):
            good &= (leaf.clamp(0, bounds.count) == leaf).reshape(n_clients)
        return good, f"is not between 0 and {bounds.count:,}"


@dataclass(frozen=True)
class Flag(Expected):
    """One truth value a client."""

    def form(self, value: Any, down: Any, one_each: bool, n_clients: int | None) -> str | None:
        """Compare dtype and shape."""
        return _scalar(value, torch.bool, n_clients)


def _scalar(value: Any, dtype: torch.dtype, n_clients: int | None) -> str | None:
    for _, leaf in tree.values(value):
        found = _form(leaf, n_clients)
        if found != (dtype, ()):
            return f"is {_words(*found)}, not one {dtype} a client"
    return None


def _form(leaf: Any, n_clients: int | None) -> tuple[torch.dtype | None, tuple[int, ...]]:
    """Dtype and shape of one client's part; no dtype where it is not for these clients."""
    count = 1 if n_clients is None else n_clients
    if isinstance(leaf, Rows):
        return (leaf.dtype if leaf.n_clients == count else None), leaf.table_shape
    if isinstance(leaf, Stacked):
        return None, ()
    if n_clients is None:
        return leaf.dtype, tuple(leaf.shape)
    fits = leaf.dim() > 0 and leaf.shape[0] == n_clients
    return (leaf.dtype if fits else None), tuple(leaf.shape[1:])


def _whole_norm(leaves: list[Any], n_clients: int, exact: bool = False) -> Tensor:
    """L2 norm of each client's part over all leaves, ``(C,)``, or an upper bound of it."""
    norms = [_norm(leaf, n_clients, exact) for leaf in leaves]
    if len(norms) == 1:
        return norms[0]
    return torch.linalg.vector_norm(torch.stack(norms).double(), dim=0)


def _norm(leaf: Any, n_clients: int, exact: bool) -> Tensor:
    """L2 norm of each client's part, ``(C,)``, or, of rows where it need not be exact, a bound."""
    if isinstance(leaf, Rows):
        return leaf.squared_norm().sqrt() if exact else leaf.norm_bound()
    return torch.linalg.vector_norm(leaf.reshape(n_clients, -1), dim=1)


def _words(dtype: torch.dtype | None, shape: tuple[int, ...]) -> str:
    if dtype is None:
        return "not one part for each client"
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


# Folds: how uploads become one value while they arrive.

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
    is_mean: ClassVar[bool] = False
    """Whether it sums every field by `weights`, so that a rule can stand in for the mean."""
    counts_alike: bool = False
    """Whether each client's upload counts by 1 at most."""
    claims: bool = False
    """Whether `weights` are what clients say of themselves."""
    _named: ClassVar[dict[str, type[Fold]]] = {}

    def __init_subclass__(cls) -> None:
        """Note the fold under its name; what it says of `of` a class with another has not said."""
        super().__init_subclass__()
        if "of" in cls.__dict__:
            cls.is_mean = cls.__dict__.get("is_mean", False)
            cls.counts_alike = cls.__dict__.get("counts_alike", False)
        cls.name = cls.__dict__.get("name", "")
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

    def weights(self, up: Any, n_clients: int) -> Tensor:
        """What each of C clients counts by in a mean of stacked uploads, ``(C,)``. Default: 1."""
        return torch.ones(n_clients, dtype=torch.int64)

    def total(self, sums: Any, weight: Tensor) -> Any:
        """What the fold gives where it would have these sums and this weight; inverts `sums`."""
        return sums

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
    is_mean = counts_alike = True

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
