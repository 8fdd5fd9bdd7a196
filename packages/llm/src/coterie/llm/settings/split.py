"""Settings of a split model; torch-free, the docstring of a field is its ``--help`` text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.core.errors import UserError
from coterie.core.settings.sections import at_least, between


@dataclass(frozen=True)
class SplitSettings:
    """The flexible storage strategy (section 3.2): which layers are the server's."""

    k: int | None = None
    """Layers that a client holds below the server's; it also holds the last one. Default: all
    layers are the client's."""
    server: str | None = None
    """host:port of `coterie llm serve`; default: the server's layers are in this process."""
    secret: str | None = None
    """File from which the tokens of clients and coordinator follow, written by the server."""
    ca: str | None = None
    """Certificate that the server's must follow from (PEM); without, only this machine is talked
    to."""
    cert: str | None = None
    """Certificate of the clients, where the server demands one (PEM)."""
    key: str | None = None
    """Key of that certificate."""
    wire: Literal["float32", "bfloat16"] | None = None
    """Number format of what crosses; default: the model's."""
    deadline: float = 120.0
    """Seconds in which the server must answer."""

    def __post_init__(self) -> None:
        at_least("split.k", self.k, 1)
        between("split.deadline", self.deadline, 0, float("inf"))
        if self.k is None and self.server is not None:
            raise UserError("'split.server' needs 'split.k', the number of the client's layers")
