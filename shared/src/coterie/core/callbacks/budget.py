"""The privacy budget: ε spent so far, noted after every round."""

from __future__ import annotations

import math
from typing import Any

from coterie.core.callbacks.contract import RoundCallback, Rounds
from coterie.core.privacy.build import accountant
from coterie.core.settings.sections import PrivacySettings


class PrivacyBudget(RoundCallback):
    """Note ``privacy/epsilon`` of a client in every round so far, against the server.

    Nothing is noted where nothing is guaranteed (noise without a clip).
    """

    def __init__(self, settings: PrivacySettings) -> None:
        self.accountant = accountant(settings)

    def note(self, run: Rounds) -> None:
        """Count what each client released in the round."""
        self.accountant.step(run.journal.releases)
        epsilon = self.accountant.epsilon()
        if math.isfinite(epsilon):
            run.journal.scalar("privacy/epsilon", epsilon)

    def state_dict(self) -> dict[str, Any]:
        """Releases so far, for a resumed run."""
        return self.accountant.to_plain()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`."""
        self.accountant.load_plain(state)
