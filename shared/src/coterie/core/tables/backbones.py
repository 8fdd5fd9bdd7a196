"""Studies of papers whose tables have a part for each of several backbones."""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar

from coterie.core.run.experiment import Named
from coterie.core.settings.configuration import configure
from coterie.core.tables.study import R, Settings, Study


class BackboneSettings(Settings, Protocol):
    """Settings that name a backbone."""

    @property
    def model(self) -> Named:
        """The backbone."""
        ...


B = TypeVar("B", bound=BackboneSettings)


class BackboneStudy(Study[B, R]):
    """A study of all backbones, or of the one that the user names by ``--model.name``.

    Attributes:
        all_backbones: names, in the order of the tables.
    """

    all_backbones: ClassVar[tuple[str, ...]]

    @property
    def backbones(self) -> tuple[str, ...]:
        """The backbone that the user names, or all."""
        if "model.name" in self.configuration.given.flags:
            return (self.settings.model.name,)
        return self.all_backbones

    def file(self, which: str) -> str:
        """Name of the file of "table1" or "figure2", with the backbone that the user names."""
        backbone = f"-{self.backbones[0]}" if len(self.backbones) == 1 else ""
        return f"{super().file(which)}{backbone}"

    def tuned(self, backbone: str) -> B:
        """Settings of a backbone: its tuned configuration if there is one, then the user's."""
        if backbone == self.settings.model.name:
            return self.settings
        words = [*self.configuration.given.argv, "--model.name", backbone]
        found: B = configure(self.paper, words).settings
        return found
