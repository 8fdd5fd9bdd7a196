"""The privacy budget: ε spent so far, noted after every round."""

from __future__ import annotations

import math

from coterie.core.callbacks.contract import RoundCallback, Rounds
from coterie.core.privacy.accountant import epsilon, price
from coterie.core.settings.sections import PrivacySettings


class PrivacyBudget(RoundCallback):
    """Note ``privacy/epsilon`` of all rounds so far, against the server.

    It is that of a client, or where entries are clipped of one entry, and covers the steps that
    have noise. Nothing is noted where nothing is guaranteed (noise without a clip).

    Attributes:
        releases: noised releases of each client so far.
    """

    kept = ("releases",)

    def __init__(self, settings: PrivacySettings) -> None:
        self.settings, self.releases = settings, 0

    def note(self, run: Rounds) -> None:
        """Count what each client released in the round."""
        self.releases += price(self.settings, run.journal.releases)
        spent = epsilon(self.settings, self.releases)
        if math.isfinite(spent):
            run.journal.scalar("privacy/epsilon", spent)
