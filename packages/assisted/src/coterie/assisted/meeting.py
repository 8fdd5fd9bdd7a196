"""How organisations find out which users (or items) they have in common; the client half."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Generic, TypeVar

import torch

from coterie.assisted.data import OwnDomain
from coterie.assisted.messages import (
    ALIGN,
    MEET,
    PATTERN,
    Alignment,
    Announcement,
    Met,
    Pattern,
    Peer,
    Peers,
)
from coterie.assisted.view import NOWHERE, places_of
from coterie.core.tensors.keys import Key

M = TypeVar("M", bound=Met)


class Meeting(Generic[M]):
    """The steps by which organisations meet, before the first round.

    Attributes:
        asks: whether peers answer for held-out cells, so that they must know where these are.
    """

    asks: ClassVar[bool] = True

    @ALIGN
    def align(self, down: None, mine: M, data: OwnDomain, key: Key) -> tuple[Announcement, None]:
        """Say whom it knows, under names that only organisations can make (Eq. 1 and 2)."""
        return Announcement(data.rows, torch.tensor(data.train.n_columns)), None

    @PATTERN
    def pattern(self, down: Alignment, mine: M, data: OwnDomain, key: Key) -> tuple[Pattern, M]:
        """Say where it has ratings of users (or items) that others know."""
        mine = replace(mine, shared=down.numbers)
        held = places_of(mine, data.valid) if self.asks else NOWHERE
        return Pattern(places_of(mine, data.train), held), mine

    @MEET
    def meet(self, down: Peers, mine: M, data: OwnDomain, key: Key) -> tuple[None, M]:
        """Note who the others are."""
        peers = mine.peers
        for name in sorted(down.cells, key=int):
            about = down.columns[name], down.rows[name], down.cells[name], down.queries[name]
            peers = peers.append(Peer(int(name), *about))
        return None, replace(mine, peers=peers)
