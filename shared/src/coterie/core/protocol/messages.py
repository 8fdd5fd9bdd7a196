"""What crosses the boundary between a client and the server, and what never does.

Messages are frozen dataclasses. The base class says in which direction they may travel:

- `Down`: server to client.
- `Up`: client to server. Every field declares with `leaves` what it reveals.
- `Report`: an `Up` that carries measurements (a loss, a metric), never parameters.
- `Private`: stays with its client; no engine transports it.

In the stacked form of a message every tensor has the client axis first.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Set
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Some = TypeVar("Some")


class Reveals(enum.Enum):
    """What a reader of one plain upload learns about the client."""

    NOTHING = "nothing about the client's data"
    MEASUREMENT = "a measurement over the client's data"
    STEPS = "roughly how much data the client has"
    PARAMETERS = "parameters fitted to the client's data"
    # Measured by coterie.core.privacy.attack: the two are not mixed for long.
    ITEMS_TOUCHED = "which items the client trained on; the changes tell positives from negatives"


@dataclasses.dataclass(frozen=True)
class Down:
    """A message from the server to a client."""


@dataclasses.dataclass(frozen=True)
class Up:
    """A message from a client to the server; the only thing transported upwards."""


@dataclasses.dataclass(frozen=True)
class Report(Up):
    """Measurements of a client; no parameters."""


@dataclasses.dataclass(frozen=True)
class Private:
    """State that stays with its client."""


EVERYTHING = frozenset({"everything"})
"""What a field may depend on that measures all that a client holds."""


def leaves(what: str, *, reveals: Reveals, depends_on: Set[str] | None = None) -> Any:
    """Declare a field of an `Up`.

    Args:
        what: the content in words, for the privacy table.
        reveals: what a reader of one upload learns.
        depends_on: names of the private fields that may influence the value. A test perturbs every
            other private field and expects the upload to stay bit-equal. `EVERYTHING` names all.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Table(Up):
        ...     items: int = leaves("item rows", reveals=Reveals.ITEMS_TOUCHED)
        >>> [field.what for field in declared(Table)]
        ['item rows']
    """
    return dataclasses.field(
        metadata={"leaves": Leaving("", what, reveals, frozenset(depends_on or ()))}
    )


@dataclasses.dataclass(frozen=True)
class Leaving:
    """One declared field of an upload."""

    name: str
    what: str
    reveals: Reveals
    depends_on: frozenset[str]


def declared(message: type[Up]) -> list[Leaving]:
    """List the declarations of an upload's fields.

    Raises:
        TypeError: a field is not declared with `leaves`.
    """
    found = []
    for field in dataclasses.fields(message):
        if "leaves" not in field.metadata:
            raise TypeError(f"{message.__name__}.{field.name} must be declared with leaves(...)")
        found.append(dataclasses.replace(field.metadata["leaves"], name=field.name))
    return found


def message_types(step: Any) -> tuple[type | None, type | None]:
    """Read the message types ``(down, up)`` of a step from its annotations.

    ``Some | None`` counts as ``Some``.

    Raises:
        TypeError: an annotation is missing or names no single message type: it would be absent from
            the privacy table.
    """
    hints = get_type_hints(step)
    returns = get_args(hints.get("return"))
    if "down" not in hints or len(returns) != 2:
        raise TypeError(f"step '{step.__name__}' must annotate down and tuple[up, mine]")
    return _message(hints["down"], step), _message(returns[0], step)


def _message(hint: Any, step: Any) -> type | None:
    union = get_origin(hint) in (Union, types.UnionType)
    found = [one for one in (get_args(hint) if union else (hint,)) if one not in (None, type(None))]
    if not found:
        return None
    if len(found) > 1 or not (isinstance(found[0], type) and issubclass(found[0], (Down, Up))):
        raise TypeError(f"step '{step.__name__}' must name one message type, not {hint}")
    return found[0]
