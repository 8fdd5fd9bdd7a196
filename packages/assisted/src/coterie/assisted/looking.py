"""What a page about a run says beside its numbers: what an attack on it found. Torch-free."""

from __future__ import annotations

from pathlib import Path

from coterie.core.tables.report import Report, saved_report

_TITLE = "Ratings that an attack read off what organisations exchange"


def reports(folder: Path) -> list[Report]:
    """Give the attack of ``coterie assisted attack``, if it was made on this run.

    Raises:
        UserError: its file is damaged.
    """
    found = saved_report(folder / "attack.json", _TITLE)
    return [] if found is None else [found]
