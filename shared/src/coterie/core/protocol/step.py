"""Steps: what a server may ask of its clients, declared once, with the messages of both ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, Literal, TypeVar

from coterie.core.protocol.messages import Down, Up
from coterie.core.wire.travel import check_class, hints_of

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
        up: the message that it answers with; None for none.
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


def _is(narrow: type | None, wide: type | None) -> bool:
    return narrow is wide or (narrow is not None and wide is not None and issubclass(narrow, wide))
