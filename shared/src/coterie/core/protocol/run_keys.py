"""The keys of a run: what its server and its clients draw by, from its seed."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class RunKeys:
    """Where every draw of a run has its key from.

    Whoever trains outside of a run, and wants its very batches, asks here as well.

    Attributes:
        seed: of the run.

    Example:
        >>> keys = RunKeys(0)
        >>> keys.round(0, 1).seed() == keys.round(0, 2).seed()
        False
    """

    seed: int

    @property
    def clients(self) -> Key:
        """What clients fold their ids into: the secret of each."""
        return Key.from_seed(self.seed).fold("clients")

    @property
    def server(self) -> Key:
        """The server's."""
        return Key.from_seed(self.seed).fold("server")

    @property
    def begin(self) -> Key:
        """By which the server draws its first state."""
        return self.server.fold("begin")

    def round(self, block: int, number: int) -> Key:
        """By which the server draws in a round of a block, from 1; 0 is its start."""
        return self.server.fold("block", block, "round", number)

    def step(self, ids: Tensor, name: str, block: int, number: int) -> Key:
        """By which clients ``(C,)`` draw in a step of a round, asked for the first time in it."""
        return self.clients.fold(ids).fold(name, block, number, 0)
