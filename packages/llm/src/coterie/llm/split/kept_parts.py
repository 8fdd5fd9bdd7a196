"""Where the middle's part of the clients' adapters stands between rounds: here, or in files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.files import writing
from coterie.core.tensors import saved, tree
from coterie.core.tensors.device import CPU, moved
from coterie.core.wire.annotations import restore
from coterie.llm.mixing import Mixing
from coterie.llm.split.part import Kept, Part

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


# The server's folder of what each round made of its layers' part, for all clients.


class KeptParts:
    """What a coordinator may come back to, ``RUN/NUMBER.pt`` below a folder.

    A file is whole or not there, so whichever side is killed, the other's last checkpoint finds
    what it names.

    Args:
        middle: that trains and mixes.
        folder: of the server; made when first written to.
    """

    def __init__(self, middle: Middle, folder: Path) -> None:
        self._middle, self._folder = middle, folder
        self._run: str | None = None  # of what is in use

    def use(self, run: str, number: int, clients: int, *, optimizer: bool, anew: bool) -> None:
        """Let sessions start from what a round made; 0 is the start.

        Args:
            run: its name.
            number: of the round.
            clients: K.
            optimizer: whether its state is kept.
            anew: whether it starts anew here.

        Raises:
            UserError: the run is no name, or the round is not there (any more).
        """
        if not re.fullmatch("[0-9a-f]{1,64}", run):
            raise UserError("a run is named by hexadecimal digits")
        start = self._middle.start(clients, optimizer=optimizer)
        part = start if number == 0 else restore(start, self._load(run, number))
        self._middle.use(self._middle.anew(part) if anew else part)
        self._run = run

    def mix(self, how: Mixing, number: int, *, floor: int, best: int) -> None:
        """Mix what was trained, write it down, and forget what nobody comes back to.

        Raises:
            UserError: nothing is in use, a client has not finished, or the disk is full.
        """
        if self._run is None or number < 1:
            raise UserError("nothing is in use (has the server been restarted?): run again")
        part: Part = self._middle.mix(how)
        path = self._path(self._run, number)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            saved.save(moved(tree.to_plain(part), CPU), path)
        self._forget(self._run, floor, best)

    def _forget(self, run: str, floor: int, best: int) -> None:
        files = self._folder.joinpath(run).glob("*.pt")
        there = {int(path.stem): path for path in files if path.stem.isdecimal()}
        newest = max((number for number in there if number <= floor), default=0)
        for number, path in there.items():
            if number < newest and number != best:
                path.unlink(missing_ok=True)

    def _load(self, run: str, number: int) -> Any:
        path = self._path(run, number)
        if not path.is_file():
            raise UserError(
                f"the server has nothing of round {number} of this run: go on from the run's last "
                "checkpoint, on the server that has trained it"
            )
        return saved.load(path)

    def _path(self, run: str, number: int) -> Path:
        return self._folder / run / f"{number}.pt"
