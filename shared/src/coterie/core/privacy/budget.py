"""How much of a privacy budget is spent: who released how often, and what that guarantees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from coterie.core.privacy.accountant import Sampled, covered, epsilon, epsilon_of_sums, price
from coterie.core.protocol.journal import Release
from coterie.core.settings.sections import PrivacySettings

_NOBODY = torch.empty(0, dtype=torch.int64)


@dataclass
class Budget:
    """What clients have released so far.

    Attributes:
        settings: of clip and noise.
        clients: ``(K,)`` ascending ids of those who took part.
        spent: ``(K,)`` int64, their noised releases; with noise of the server's, sums they are in.
        rounds: with noise of the server's, how many rounds there were of each kind.

    Example:
        >>> both, one = torch.tensor([3, 7]), torch.tensor([7])
        >>> budget = Budget(PrivacySettings(clip=1.0, noise="laplace", scale=2.0))
        >>> budget.add([Release("update", 1, both, both, 2)])
        >>> budget.add([Release("update", 1, one, one, 2)])
        >>> budget.epsilon()
        2.0
    """

    settings: PrivacySettings
    clients: Tensor = _NOBODY
    spent: Tensor = _NOBODY
    rounds: dict[Sampled, int] = field(default_factory=dict)

    def add(self, releases: Sequence[Release]) -> None:
        """Count what was released in a round."""
        noised = covered(self.settings, releases)
        if self.settings.at == "client":
            for one in noised:
                self._count(one.asked, price(self.settings, [one]))
            return
        noised = [one for one in noised if one.heard.numel()]
        for one in noised:
            self._count(one.heard, 1)
        if noised:
            # Of one round the sample is one: what is asked of it again is no new draw.
            most = max(noised, key=lambda one: one.asked.numel() / one.among)
            kind = (most.asked.numel(), most.among, len(noised))
            self.rounds[kind] = self.rounds.get(kind, 0) + 1

    def epsilon(self) -> float:
        """Epsilon of the client that released most; infinite where nothing is guaranteed."""
        most = int(self.spent.max()) if self.spent.numel() else 0
        if self.settings.at == "client":
            return epsilon(self.settings, most)
        return epsilon_of_sums(self.settings, most, self.rounds)

    def _count(self, ids: Tensor, times: int) -> None:
        everybody = torch.cat([self.clients, ids.cpu()]).unique()
        spent = torch.zeros_like(everybody)
        spent[torch.searchsorted(everybody, self.clients)] = self.spent
        spent[torch.searchsorted(everybody, ids.cpu())] += times
        self.clients, self.spent = everybody, spent

    def to_plain(self) -> dict[str, Any]:
        """As a checkpoint holds it."""
        rounds = [[*kind, count] for kind, count in self.rounds.items()]
        return {"clients": self.clients, "spent": self.spent, "rounds": rounds}

    def load_plain(self, plain: dict[str, Any]) -> None:
        """Go on where `to_plain` was asked."""
        self.clients, self.spent = plain["clients"], plain["spent"]
        self.rounds = {(a, n, sums): count for a, n, sums, count in plain["rounds"]}
