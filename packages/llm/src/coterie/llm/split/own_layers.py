"""The middle in the coordinator's process, whose part is in the run's checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from coterie.llm.mixing import Mixing
from coterie.llm.split.part import Kept

if TYPE_CHECKING:
    from coterie.llm.split.middle import Middle


class OwnLayers:
    """A middle in the coordinator's process, see `coterie.llm.split.part.ServerLayers`.

    Args:
        middle: of this process.
        clients: K.
        optimizer: whether its state is kept from round to round.
    """

    def __init__(self, middle: Middle, clients: int, *, optimizer: bool) -> None:
        self._middle, self._clients, self._optimizer = middle, clients, optimizer

    def begin(self) -> Kept:
        """Give all clients the common start."""
        return Kept(part=self._middle.start(self._clients, optimizer=self._optimizer))

    def use(self, kept: Kept) -> None:
        """Let the next sessions start from a part."""
        assert kept.part is not None
        self._middle.use(kept.part)

    def gram(self, ids: Tensor, changes: bool) -> Tensor:
        """Inner products of what was trained; see `Middle.gram`."""
        return self._middle.gram(ids, changes)

    def mix(self, kept: Kept, how: Mixing, number: int, *, floor: int, best: int) -> Kept:
        """Mix what was trained; the run's checkpoint keeps what of it is needed."""
        return Kept(number, self._middle.mix(how))

    def anew(self, kept: Kept) -> Kept:
        """The same with a new optimizer."""
        assert kept.part is not None
        return replace(kept, part=self._middle.anew(kept.part))
