"""What the tables share: readings and cells, how a run is made, what its numbers depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from coterie.assisted.experiment import Experiment
from coterie.assisted.paper import PAPER
from coterie.assisted.published import departures
from coterie.assisted.settings.run import Settings
from coterie.assisted.tables.cells import Cell, cells
from coterie.assisted.tables.reads import essential
from coterie.assisted.tables.runs import train
from coterie.core.data.interactions.digest import data_digest
from coterie.core.errors import UserError
from coterie.core.settings.configuration import configure
from coterie.core.tables import study

READINGS = ("recommended", "released")
_LIMITS = ("reading", "data.feedback", "data.align", "data.domains")


class Study(study.Study[Settings]):
    """The runs behind a table or figure."""

    paper = PAPER
    train, essential = train, essential

    @cached_property
    def settings(self) -> Settings:
        """As the user gave them.

        Raises:
            UserError: the user named a method or a model, which would have no effect.
        """
        for name in ("method", "model.name"):
            if name in self.given:
                raise UserError(
                    "the tables and figures of mtal say themselves which methods and models they "
                    f"run: leave out --{name}, or train one by coterie train mtal --{name} NAME"
                )
        settings: Settings = self.configuration.settings
        return settings

    @property
    def given(self) -> Mapping[str, Any]:
        """Settings that the user gave by flags."""
        return self.configuration.given.flags

    @property
    def readings(self) -> tuple[str, ...]:
        """The reading that the user names, or two."""
        return (self.settings.reading,) if "reading" in self.given else READINGS

    def cells(self, *, shown: bool = False) -> list[Cell]:
        """The columns; ``shown``: those of the slides only, if the user does not say."""
        return cells(self._data.domains is not None, self.given, shown=shown)

    def tuned(self, cell: Cell, reading: str) -> Settings:
        """Settings of MTAL in a cell: the tuned configuration if there is one, then the user's."""
        flags = [f"--{name}={value}" for name, value in cell.values.items()]
        words = [*self.configuration.given.argv, *flags, f"--reading={reading}"]
        found: Settings = configure(self.paper, words).settings
        return replace(found, method="mtal")

    def setup(self, some: Settings) -> str:
        """Say what is trained, and in what it is not as in the slides."""
        train, rounds = some.train, some.rounds
        text = f"MTAL: {rounds} rounds of {train.epochs} epochs; the others {rounds * train.epochs}"
        text += " epochs. In brackets the number of the authors' slides (users in common: 18 "
        text += "genres, items in common: 8 parts)"
        others = departures(some)
        if others:
            text += f". Not as in the slides (theirs in brackets): {', '.join(others)}; so their "
            text += "numbers stand beside ours for the order of the rows alone"
        return f"{text}."

    def file(self, which: str) -> str:
        """Name of the file of "table1" or "figure6", with the choices that limit it."""
        words = [super().file(which)]
        words += [str(self.given[name]) for name in _LIMITS if name in self.given]
        return "-".join([*words, *(["side"] if self.settings.data.side else [])])

    def stem(self, settings: Settings) -> str:
        """Begin the names of files of a run: method and cell."""
        data = settings.data
        model = [settings.model.name] if settings.method != "mtal" else []
        held = [] if settings.method == "joint" else [data.domains]
        words = [settings.method, *model, data.feedback, data.align, *held, settings.reading]
        return "-".join(words)

    @cached_property
    def digest(self) -> str:
        """Hash of the data set."""
        return data_digest(self._data)

    @cached_property
    def _data(self) -> Any:
        return Experiment(self.settings).interactions
