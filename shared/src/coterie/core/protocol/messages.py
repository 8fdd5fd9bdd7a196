"""What crosses the boundary between a client and the server, and the steps that it crosses in.

Messages are frozen dataclasses; the base class says in which direction they may travel. A field of
a `Down` declares with `carries` what it is, a field of an `Up` with `leaves` what it reveals.
In the stacked form of a message every tensor has the client axis first; in the list form there is
none. What cannot travel is refused when the class is made.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_origin

import torch
from torch import Tensor

from coterie.core.protocol.uploads import Expected
from coterie.core.tensors import tree
from coterie.core.wire.annotations import check_class, hints_of


class Reveals(enum.Enum):
    """What a reader of one plain upload learns about the client.

    Attributes:
        is_release: whether such a field holds real numbers made of the client's rows, those that
            clipping and noise change and a privacy budget counts.

    Example:
        >>> [one.name for one in Reveals if one.is_release]
        ['PARAMETERS', 'ITEMS_TOUCHED', 'RESIDUALS', 'FITS']
    """

    is_release: bool

    def __new__(cls, words: str, is_release: bool = False) -> Reveals:
        """Make a member whose value is its words."""
        member = object.__new__(cls)
        member._value_, member.is_release = words, is_release
        return member

    NOTHING = "nothing about the client's data"
    SEALED = "nothing, unless one client helps the reader: all of them have the key"
    OVERLAP = "how many items two clients share; which ones, if one client gives the key away"
    MEASUREMENT = "a measurement over the client's data"
    STEPS = "roughly how much data the client has"
    IDENTITIES = "who the client's users are, to a reader who knows the names they go by"
    PATTERN = "who rated what"
    RATINGS = "ratings as they are"
    PARAMETERS = "parameters fitted to the client's data", True
    # Measured by coterie.core.privacy.attack: the two are not mixed for long.
    ITEMS_TOUCHED = (
        "which items the client trained on; the changes tell positives from negatives",
        True,
    )
    RESIDUALS = (
        "the sign of a residual tells a positive from a negative, differences tell ratings",
        True,
    )
    FITS = "a function of the client's rows and of what it received", True


class _Message:
    """What `Down`, `Up` and `Private` have in common: they are checked when a class is made."""

    _stays = False

    def __init_subclass__(cls) -> None:
        """Check the fields; what is only defined later is checked when a step is declared.

        Raises:
            TypeError: a field is not declared, or cannot travel.
        """
        super().__init_subclass__()
        for name, hint in inspect.get_annotations(cls).items():
            _check_declared(cls, name, hint)
        with suppress(NameError):
            check_class(cls, stays=cls._stays)


@dataclasses.dataclass(frozen=True)
class Down(_Message):
    """A message from the server to a client."""


@dataclasses.dataclass(frozen=True)
class Up(_Message):
    """A message from a client to the server; the only thing transported upwards."""


@dataclasses.dataclass(frozen=True)
class Report(Up):
    """Measurements of a client; no parameters. NaN says that there was nothing to measure."""


@dataclasses.dataclass(frozen=True)
class Private(_Message):
    """State that stays with its client."""

    _stays = True


def carries(what: str, *, default: Any = dataclasses.MISSING, relays: bool = False) -> Any:
    """Declare a field of a `Down`.

    Args:
        what: the content in words, for the privacy table.
        default: of the field; none by default.
        relays: whether the server passes on what other clients sent it, as it came. The keys of a
            dict are then the numbers of those who sent its values.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Model(Down):
        ...     row: int = carries("the global row")
        >>> contents(Model)
        [('row', 'the global row')]
    """
    return dataclasses.field(default=default, metadata={"carries": what, "relays": relays})


def contents(message: type[Down]) -> list[tuple[str, str]]:
    """List a downward message's fields with their words, also of those that are passed on."""
    passed_on = relayed(message)
    return [
        (f.name, f.metadata["carries"] + (", passed on from other clients" * (f.name in passed_on)))
        for f in dataclasses.fields(message)
    ]


relayed: Callable[[Any], frozenset[str]] = cache(
    lambda message: frozenset(
        field.name
        for field in (dataclasses.fields(message) if dataclasses.is_dataclass(message) else ())
        if field.metadata.get("relays")
    )
)
"""Fields of a class of messages that the server passes on from clients to clients."""


EVERYTHING = frozenset({"everything"})
"""What a field may depend on that measures all that a client holds."""


def leaves(
    what: str,
    *,
    reveals: Reveals,
    depends_on: Set[str] | None = None,
    expected: Expected | None = None,
    relays: bool = False,
) -> Any:
    """Declare a field of an `Up`.

    Args:
        what: the content in words, for the privacy table.
        reveals: what a reader of one upload learns.
        depends_on: names of the private fields that may influence the value. A test perturbs every
            other private field and expects the upload to stay bit-equal. `EVERYTHING` names all.
        expected: the form that the server accepts; None for whatever the annotation allows.
        relays: whether the server passes it on to other clients, as it came. The keys of a dict are
            then the numbers of those who are to get its values.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Table(Up):
        ...     items: int = leaves("item rows", reveals=Reveals.ITEMS_TOUCHED)
        >>> [field.what for field in declared(Table)]
        ['item rows']
    """
    leaving = Leaving("", what, reveals, frozenset(depends_on or ()), expected)
    return dataclasses.field(metadata={"leaves": leaving, "relays": relays})


@dataclasses.dataclass(frozen=True)
class Leaving:
    """One declared field of an upload."""

    name: str
    what: str
    reveals: Reveals
    depends_on: frozenset[str]
    expected: Expected | None = None


declared: Callable[[Any], tuple[Leaving, ...]] = cache(
    lambda message: tuple(
        dataclasses.replace(field.metadata["leaves"], name=field.name)
        for field in dataclasses.fields(message)
    )
)
"""List the declarations of the fields of a class of uploads."""


def _check_declared(cls: type, name: str, hint: Any) -> None:
    if issubclass(cls, Private) or "ClassVar" in str(hint) or get_origin(hint) is ClassVar:
        return
    how = "leaves" if issubclass(cls, Up) else "carries"
    field = cls.__dict__.get(name)
    if not isinstance(field, dataclasses.Field) or how not in field.metadata:
        raise TypeError(f"{cls.__name__}.{name} must be declared with {how}(...)")


# Steps: what a server may ask of its clients, declared once, with the messages of both ways.

Form = Literal["stacked", "list"]
D = TypeVar("D", bound=Down | None)
U = TypeVar("U", bound=Up | None)
M = TypeVar("M")
Me = TypeVar("Me")
P = TypeVar("P")
X = TypeVar("X")
K = TypeVar("K")


class AnyStep(Generic[D, U]):
    """A step of either form: its name and its messages; see `Step` and `ListStep`.

    Attributes:
        name: of the step, and of the `Client` method that is bound to it.
        down: the message that a client receives; None for none.
        up: the message that it answers with; None for none. Then the step only changes what the
            client has: a client that is not there gets it later, with the next step that it is
            asked for.
        form: of the clients that have it.
        diverged: field of the upload, ``(C,)`` bool, that says whose training diverged: these
            clients keep their new private state, to learn of it, but their uploads do not count.
    """

    form: ClassVar[Form]

    def __init__(
        self, name: str, down: type[D] | D, up: type[U] | U, diverged: str | None = None
    ) -> None:
        self.name, self.diverged = name, diverged
        self.down: type | None = down  # type: ignore[assignment]  # mypy allows a D as well
        self.up: type | None = up  # type: ignore[assignment]
        for message, base in ((self.down, Down), (self.up, Up)):
            if message is not None:
                if not issubclass(message, base):
                    raise TypeError(f"step '{name}': {message.__name__} is no {base.__name__}")
                check_class(message)
        if diverged is not None and diverged not in hints_of(up):
            raise TypeError(f"step '{name}': the upload has no field '{diverged}'")

    def __repr__(self) -> str:
        ways = [None if way is None else way.__name__ for way in (self.down, self.up)]
        return f"{type(self).__name__}({self.name!r}, {ways[0]}, {ways[1]})"

    def __call__(
        self, method: Callable[[Me, D, P, X, K], tuple[U, M]]
    ) -> Callable[..., tuple[U, M]]:
        """Bind a method ``(self, down, mine, data, key) -> (up, mine)`` of a `Client` to the step.

        Raises:
            TypeError: the method has another name than the step.
        """
        if method.__name__ != self.name:
            raise TypeError(f"step '{self.name}' is bound to a method called '{method.__name__}'")
        method.step = self  # type: ignore[attr-defined]
        return method

    def serves(self, asked: AnyStep[Any, Any]) -> bool:
        """Whether a client that has this step can be asked for another one."""
        if self is asked:
            return True
        return (
            (self.name, self.form) == (asked.name, asked.form)
            and _is(asked.down, self.down)
            and _is(self.up, asked.up)
        )


class Step(AnyStep[D, U]):
    """A step of clients in the stacked form.

    Messages, private state, data and keys are stacked over a chunk of C clients; the method must
    treat each row alone. Returning None for ``mine`` leaves the private state as it is.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Nudge(Down):
        ...     pass
        >>> Step("nudge", Nudge, None)
        Step('nudge', Nudge, None)
    """

    form: ClassVar[Form] = "stacked"


class ListStep(AnyStep[D, U]):
    """A step of clients in the list form: of one client, nothing has a client axis."""

    form: ClassVar[Form] = "list"


@dataclass(frozen=True)
class PerClient(Generic[D]):
    """Messages that differ from client to client, in the list form.

    Attributes:
        messages: client id -> its message. Clients that are not asked may be in it.
    """

    messages: Mapping[int, D]


@dataclass(frozen=True)
class Aligned(Generic[D]):
    """A message that differs from client to client, in the stacked form.

    Attributes:
        ids: ``(R,)`` ascending ids of the clients it is for. Clients that are not asked may be in.
        message: stacked over them.
    """

    ids: Tensor
    message: D

    def of(self, ids: Tensor) -> D:
        """The messages of the clients ``ids``, ``(K,)``, in that order.

        Raises:
            KeyError: there is none for one of them.
        """
        places = torch.searchsorted(self.ids, ids).clamp_max(max(self.ids.numel() - 1, 0))
        if not self.ids.numel() or bool((self.ids[places] != ids).any()):
            raise KeyError(f"no message for some of the clients {ids.tolist()[:5]}")
        return tree.take(self.message, places)


def _is(narrow: type | None, wide: type | None) -> bool:
    return narrow is wide or (narrow is not None and wide is not None and issubclass(narrow, wide))
