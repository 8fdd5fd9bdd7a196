"""What a first call of a module's own code shows, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.core.front.sources import Fields

_NODES = 100_000
"""Of a loss's graph, that are looked at; longer ones are those of no module of layers."""


@contextmanager
def trying(call: str, fields: Fields) -> Iterator[None]:
    """Say of an error in a user's code what it was called with.

    Args:
        call: what is called, such as "training_step of Net".
        fields: of the batch.

    Raises:
        UserError: whatever is raised inside; it is its cause.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        found = [f"'{name}' {_form(values)}" for name, values in fields.items()]
        said = " ".join(str(error).split())[:200] or "without a word"
        raise UserError(
            f"{call} fails on a client's first samples ({type(error).__name__}: {said}): it was "
            f"given {', '.join(found)}"
        ) from error


def _form(values: Tensor) -> str:
    return f"{str(values.dtype).removeprefix('torch.')} {tuple(values.shape)}"


def check_own(module: nn.Module, loss: Tensor) -> None:
    """Refuse the loss of a copy that depends on parameters of the original.

    A function that was made in ``__init__`` and holds a layer is no part of the module: its copies
    have it as it is, and their own layer would not be trained.

    Args:
        module: the original.
        loss: of a copy of it.

    Raises:
        UserError: it does.
    """
    theirs = {id(value): name for name, value in module.named_parameters()}
    seen: set[Any] = set()
    left: list[Any] = [loss.grad_fn]
    while left and len(seen) < _NODES:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = theirs.get(id(getattr(node, "variable", None)))
        if name is not None:
            raise UserError(
                f"{type(module).__name__} reads '{name}' by something that copies of it share, as "
                "a lambda or a partial kept in __init__ that holds a layer: clients train copies, "
                "so call the layer by self"
            )
        left += [one for one, _ in node.next_functions]
