"""The public card: all that the two halves of an algorithm have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from coterie.core.errors import UserError
from coterie.core.settings.schema import build, hints, values_of

S = TypeVar("S")
_OWN = (
    "run.",
    "logger.",
    "trainer.",
    "engine.device",
    "engine.threads",
    "engine.workers",
    "engine.name",
    "engine.processes",
    "engine.address",
    "engine.deadline",
    "engine.start",
    "engine.min_clients",
    "engine.patience",
    "data.columns",
)


@dataclass(frozen=True)
class Card:
    """What a client must know to make its half, and a server to make its own; nobody's data.

    Attributes:
        paper: its name, by which each side finds the code that it has installed itself.
        settings: flat keys and plain values, the reading's choices filled in.
        public: facts that everybody may know: numbers of items and classes, shapes of samples, a
            fingerprint of the common backbone.
        data: digest, with the clients' secret, of the data that a simulated federation was taken
            apart from; folders of one federation have the same. Empty where clients brought theirs.
        constants: digests of what both halves compute with and neither sends, by name; empty where
            nothing is known of them.
        blocks: how many blocks of data there are.
        protocol: number of the protocol that the server speaks; 0 where nothing is known.
        versions: of the packages that wrote the card, by name; empty where nothing is known.
        messages: step -> digest of what its messages look like; empty where nothing is known.

    Example:
        >>> card = Card("f3crec", {"model.dim": 8}, {"n_items": [40, 52]})
        >>> Card.from_json(card.to_json()) == card
        True
    """

    paper: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    public: Mapping[str, Any] = field(default_factory=dict)
    data: str = ""
    constants: Mapping[str, str] = field(default_factory=dict)
    blocks: int = 1
    protocol: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    messages: Mapping[str, str] = field(default_factory=dict)

    def read(self, settings: type[S]) -> S:
        """The settings, as their class; what is nobody's business has its default.

        Raises:
            UserError: a value is out of range.
        """
        known = hints(settings)
        return build(settings, {k: v for k, v in self.settings.items() if k in known})

    def to_json(self) -> str:
        """Write it down, the same text for equal cards."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @staticmethod
    def of(paper: str, settings: Any, public: Mapping[str, Any]) -> Card:
        """Make a card of a run's settings, without those of the machine it runs on."""
        values = values_of(settings).items()
        return Card(paper, {k: v for k, v in values if not k.startswith(_OWN)}, public)

    @staticmethod
    def from_json(text: str) -> Card:
        """Read what `to_json` gave.

        Raises:
            UserError: it is no card.
        """
        try:
            return Card(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise UserError(f"this is no card: {error}") from error
