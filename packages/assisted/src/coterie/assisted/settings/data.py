"""Settings of which ratings there are, and how organisations share them out. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.core.errors import UserError
from coterie.core.settings.sections import DataSettings, at_least, between

Feedback = Literal["explicit", "implicit"]
GENRES = 18
"""Number of MovieLens genres, each a domain of the partition genre."""


@dataclass(frozen=True)
class DomainSettings(DataSettings):
    """Ratings, and who holds which part of them."""

    min_interactions: int | None = 0
    """k of the k-core filter; 0 keeps all ratings."""
    feedback: Feedback = "explicit"
    """explicit: ratings are predicted; implicit: whether a rating is above the threshold."""
    threshold: float = 3.5
    """Of implicit feedback: a rating above it is positive; in the reading released, one that
    equals it as well."""
    align: Literal["user", "item"] = "user"
    """What organisations have in common. Users: each holds some of the items. Items: each holds
    some of the users."""
    domains: Literal["uniform", "genre", "source"] = "genre"
    """Who holds what: uniform draws equal parts; genre gives each item to one of its genres;
    source takes the domains that the data themselves have."""
    count: int | None = None
    """K of the partition uniform; default is 8."""
    common: float = 1.0
    """Share of the users (or items) that all organisations have in common; the others are known to
    each under a name of its own."""
    scale: tuple[float, float] | None = None
    """Lowest and highest rating that there may be, as [1,5]; default is any."""
    side: bool = False
    """Whether organisations use profiles of users and genres of items."""
    test: float = 0.1
    """Share of the ratings that are held out for the test."""
    valid: float = 0.1
    """Share of the ratings that choices are made by."""
    split: int | None = None
    """Seed of the split into parts; default is that of the run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("data.count", self.count, 2)
        at_least("data.common", self.common, 0)
        between("data.common", self.common, -1, 1)
        between("data.test", self.test, 0, 0.5)
        at_least("data.valid", self.valid, 0)
        if self.scale is not None and not self.scale[0] < self.scale[1]:
            raise UserError(f"'data.scale' must be lowest and highest rating, not {self.scale}")
        between("data.valid", self.valid, -1, 0.5)
        if self.count is not None and self.domains != "uniform":
            raise UserError(
                f"'data.count' has no effect with the partition {self.domains}: leave it out, or "
                "set data.domains uniform"
            )
        if self.align == "item" and self.domains != "uniform":
            raise UserError(
                f"'data.domains' {self.domains} shares out items, so organisations have users in "
                "common: set data.align user, or data.domains uniform"
            )

    @property
    def unread(self) -> dict[str, str]:
        """Roles of columns that have no effect: cells are drawn, whatever their order."""
        drawn = "data.test and data.valid draw the cells that are held out"
        found = {"split": drawn, "time": drawn, "order": drawn}
        if self.domains != "genre" and not self.side:
            found["genres"] = f"data.domains is {self.domains} and data.side is off"
        return found

    @property
    def n_domains(self) -> int:
        """K, where it does not depend on the data."""
        return self.count or 8
