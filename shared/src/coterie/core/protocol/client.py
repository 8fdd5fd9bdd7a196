"""The client half of an algorithm, and what its uploads pass. Imports no server half."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_args, get_origin

from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.protocol.common_secret import CommonSecret
from coterie.core.protocol.messages import AnyStep, Form, Private
from coterie.core.tensors import tree
from coterie.core.tensors.appended import Appended
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.core.wire.annotations import holds

P = TypeVar("P", bound=Private)
X = TypeVar("X")
Data = TypeVar("Data", bound="ClientData")


class ClientData(Protocol):
    """Local data of some clients: ``ids`` ascending, ``take`` for a part of them.

    In the list form ``data[place]`` gives those of one client, with its number as ``id``.
    """

    ids: Tensor  # (C,) int64

    def take(self: Data, index: Tensor) -> Data:
        """Data of the clients at the positions ``index``, ``(K,)`` int64."""
        ...


class Client(Generic[P, X]):
    """The client half: its steps and what a newcomer's private state is.

    ``P`` is the private state and ``X`` the local data: of C clients, stacked, or of one client in
    the list form, where nothing has a client axis.

    Attributes:
        form: "stacked" where clients can run as rows of tensors, a chunk at a time; "list" runs one
            after the other, each with shapes of its own.
        concurrent: whether several chunks may run at the same time, in forks of one process: steps
            keep nothing beside private state that a later one would read.
        secret: what all clients know and no server does; None where nothing needs one.

    Raises:
        TypeError: on making a class, one of its steps is of the other form, or its private state
            has an append-only part and no list form.
    """

    form: ClassVar[Form] = "stacked"
    concurrent: ClassVar[bool] = False
    secret: CommonSecret | None = None
    _steps: ClassVar[dict[str, AnyStep[Any, Any]]] = {}
    _types: ClassVar[tuple[Any, Any]]

    def __init_subclass__(cls) -> None:
        """Collect the steps, and read the types of private state and data off ``Client[P, X]``."""
        super().__init_subclass__()
        members = ((name, getattr(cls, name)) for name in dir(cls))
        cls._steps = {name: member.step for name, member in members if hasattr(member, "step")}
        for step in cls._steps.values():
            if step.form != cls.form:
                raise TypeError(f"{cls.__name__} is of the {cls.form} form, {step} is not")
        for base in cls.__dict__.get("__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Client):
                given = dict(zip(origin.__parameters__, get_args(base), strict=True))  # type: ignore[attr-defined]
                first, second = origin._types
                cls._types = (given.get(first, first), given.get(second, second))
        with suppress(NameError):  # defined later: not checked
            if cls.form == "stacked" and holds(cls._types[0], Appended):
                raise TypeError(
                    f"{cls.__name__} is of the stacked form, where nothing is append-only: set "
                    "form = 'list', or keep a tensor"
                )

    def enrol(self, data: X, key: Key) -> P:
        """Make the private state of newcomers from their data and keys."""
        raise NotImplementedError(f"{type(self).__name__} must say how a client starts")

    def widened(self, private: P) -> P:
        """Give private state of a checkpoint the room that it has by now. Default: the same.

        For state whose shape follows from the number of blocks, as data may have grown since.
        """
        return private

    def work(self, data: Any) -> Tensor | None:
        """Estimate the work of each client, ``(C,)``; equal work is put into the same chunk."""
        return None

    def footprint(self, data: Any, down: Any) -> Tensor | None:
        """Estimate the bytes that each client adds to the working memory of a step, ``(C,)``.

        Where no chunk size is set, the engine stacks as many clients as fit into its budget; None
        stacks all of them.
        """
        return None

    def left(self) -> Any:
        """Take what steps left beside their answers, such as what a module logged; None: nothing.

        Where steps run in a process of their own it is brought to this client half by `found`.
        """
        return None

    def found(self, left: Any) -> None:
        """Add what steps left elsewhere to what they left here."""

    def constants(self) -> Mapping[str, str]:
        """Digests of what is neither sent nor trained and must be as the server has it, by name.

        Default: there is nothing of the kind.
        """
        return {}

    @classmethod
    def steps(cls) -> dict[str, AnyStep[Any, Any]]:
        """The steps by name: the whole protocol."""
        return cls._steps

    @classmethod
    def data_type(cls) -> Any:
        """Class of the local data."""
        return cls._types[1]


Client._types = Client.__parameters__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Factors:
    """What scores are products of: an item's is <vector, its row> + offset.

    Attributes:
        items: ``(n_items, d)`` rows, public.
        vectors: ``(C, d)`` of the clients, private.
        offsets: ``(C,)`` of the clients, private.
    """

    items: Tensor
    vectors: Tensor
    offsets: Tensor


class RecommendsItems(Generic[P]):
    """A client half that scores items on its device; beside `Client`."""

    def predict(self, down: Any, mine: P) -> Tensor:
        """Score all items for C clients on their devices, ``(C, n_items)``.

        Args:
            down: what `ServesItems.serve` gave for them.
            mine: their private state.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how it scores items")

    def factors(self, down: Any, mine: P) -> Factors:
        """Give what the scores of `predict` are products of; its arguments. Default: of nothing.

        Raises:
            UserError: the scores are none.
        """
        raise UserError(
            "its scores are no products of a public row and a private vector, so no other program "
            "can be given them"
        )

    def adapt(self, down: Any, history: Ragged, key: Key) -> P:
        """Fit the private state of C newcomers to their items with the public part fixed."""
        raise NotImplementedError(f"{type(self).__name__} does not adapt to newcomers")


# Middleware: what an upload passes between the client's step and the transport.


class Middleware(Protocol):
    """A change made on the client's side to its stacked upload before it leaves."""

    def __call__(self, up: Any, key: Key) -> Any:
        """Return the changed upload; ``key`` holds the clients' own keys, ``(C,)``."""
        ...


@dataclass(frozen=True)
class OfSteps:
    """A layer for the uploads of some steps alone.

    Attributes:
        layer: what they pass.
        steps: names of the steps.
    """

    layer: Middleware
    steps: tuple[str, ...]

    def __call__(self, up: Any, key: Key) -> Any:
        """Return the upload, of one of the steps, as the layer changes it."""
        return self.layer(up, key)


def layers_of(step: str, layers: Sequence[Middleware]) -> list[Middleware]:
    """What the uploads of a step pass, in order.

    Example:
        >>> def halve(up, key):
        ...     return up / 2
        >>> len(layers_of("fit", [halve, OfSteps(halve, ("send",))]))
        1
    """
    return [one for one in layers if not isinstance(one, OfSteps) or step in one.steps]


def passed(up: Any, key: Key, layers: Sequence[Middleware], alone: bool) -> Any:
    """An upload after some layers; they take a stack, also of one client ``alone``."""
    up = tree.as_stack(up) if alone else up
    for layer in layers:
        up = layer(up, key)
    return tree.as_one(up) if alone else up
