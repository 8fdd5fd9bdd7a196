"""Whether local training runs beside other local training, in a thread of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_BESIDE: ContextVar[bool] = ContextVar("chunks run beside one another", default=False)


@contextmanager
def beside_others() -> Iterator[None]:
    """Say so, inside.

    Example:
        >>> with beside_others():
        ...     runs_beside_others()
        True
    """
    token = _BESIDE.set(True)
    try:
        yield
    finally:
        _BESIDE.reset(token)


def runs_beside_others() -> bool:
    """Whether other threads train at the same time."""
    return _BESIDE.get()
