"""What a page about a run of PAGE says beside its numbers: its certificates. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.looking.clients import NAMED
from coterie.core.tables.report import Report, read_saved

_FILES = {"certificate-before": "before learning", "certificate": "as the run stands"}


def reports(folder: Path) -> list[Report]:
    """Give the certificates of a run that are in its folder, ``certificate*.json``.

    Raises:
        UserError: one is damaged.
    """
    found = {name: read_saved(folder / f"{name}.json") for name in _FILES}
    return [
        _report(folder, name, content) for name, content in found.items() if content is not None
    ]


def _report(folder: Path, name: str, content: Mapping[str, Any]) -> Report:
    try:
        verdict = "certified" if content["holds"] else "refused"
        tested, players = len(content["leaders"]), content["n_leaders"]
        row = {
            "leaders tested": f"{tested} of {players}",
            "after rounds": content["rounds"],
            "ε (largest regret)": content["epsilon"],
            "% of a stage's payoff": _percent(content["relative_epsilon"]),
            "95 % bound, all at once (%)": _percent(content["relative_upper"]),
            "mean regret": content["mean_regret"],
        }
        notes = [_unnamed(str(why), players) for why in content["reasons"]]
    except (KeyError, TypeError) as error:
        raise UserError(f"{folder / name}.json is damaged: {error}") from None
    title = f"Feedback Stackelberg equilibrium, {_FILES[name]}: {verdict}"
    return Report(name, title, [row], notes=[*notes, f"{name}.md has all of it."])


def _unnamed(words: str, players: int) -> str:
    """Leave the number of a client out where clients are many, as all of a report does."""
    return words if players <= NAMED else re.sub(r"\bleader \d+", "one leader", words)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100.0 * share
