"""Studies of papers whose tables have a part for each of several backbones."""

from __future__ import annotations

from typing import ClassVar

from coterie.core.settings.configuration import configure
from coterie.core.settings.schema import values_of
from coterie.core.tables.study import R, S, Study


class BackboneStudy(Study[S, R]):
    """A study of all backbones, or of the one that the user names by ``--model.name``.

    Attributes:
        all_backbones: names, in the order of the tables.
    """

    all_backbones: ClassVar[tuple[str, ...]]

    @property
    def backbones(self) -> tuple[str, ...]:
        """The backbone that the user names, or all."""
        if "model.name" in self.configuration.given.flags:
            return (self._backbone,)
        return self.all_backbones

    def file(self, which: str) -> str:
        """Name of the file of "table1" or "figure2", with the backbone that the user names."""
        backbone = f"-{self.backbones[0]}" if len(self.backbones) == 1 else ""
        return f"{super().file(which)}{backbone}"

    def tuned(self, backbone: str) -> S:
        """Settings of a backbone: its tuned configuration if there is one, then the user's."""
        if backbone == self._backbone:
            return self.settings
        words = [*self.configuration.given.argv, "--model.name", backbone]
        found: S = configure(self.paper, words).settings
        return found

    @property
    def _backbone(self) -> str:
        """The backbone of the settings as given."""
        return str(values_of(self.settings)["model.name"])
