"""Figure 3a of PPLR, measured: how well the input can be rebuilt, over depth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.core.tables.paired import Spread, spread
from coterie.core.tables.plots import Lines, plot_panels
from coterie.llm.attack.inversion import AttackReport

_LINES = {
    "trained attack (h, 4h, h)": "",
    "nearest embedding of h_l": "nearest_",
    "without h_l": "trivial_",
}
_LABELS = {"cosine": "cosine with the input embedding", "recovery": "share of tokens found"}


def rows(reports: Sequence[AttackReport]) -> list[dict[str, Any]]:
    """Tabulate attacks of several seeds: one row a layer, means and standard deviations."""
    found = []
    for layer in range(len(reports[0].learnt)):
        values = {
            "": [report.learnt[layer] for report in reports],
            "nearest_": [report.nearest[layer] for report in reports],
            "trivial_": [report.trivial for report in reports],
        }
        row: dict[str, Any] = {"layer": layer + 1}
        for prefix, guesses in values.items():
            for name in ("cosine", "recovery"):
                spreads = spread([getattr(guess, name) for guess in guesses])
                row |= {f"{prefix}{name}": spreads.mean, f"{prefix}{name}_sd": spreads.sd}
        found.append(row)
    return found


def draw(rows: Sequence[dict[str, Any]], seeds: int, path: Path) -> Path | None:
    """Draw the `rows` of so many seeds, cosine and token recovery over layers, as PNG.

    Raises:
        UserError: the file cannot be written.
    """
    panels = [panel(rows, seeds, label, measure, _LINES) for measure, label in _LABELS.items()]
    return plot_panels(panels, "Rebuilding the input of unseen users from h_l", path)


def panel(
    rows: Sequence[dict[str, Any]], seeds: int, y_label: str, measure: str, lines: dict[str, str]
) -> Lines:
    """Make one plot of a measure over layers; ``lines`` names the prefix of each line's columns."""
    shown = {
        name: [Spread(row[prefix + measure], row[f"{prefix}{measure}_sd"], seeds) for row in rows]
        for name, prefix in lines.items()
    }
    return Lines("layer l", [row["layer"] for row in rows], shown, y_label=y_label)
