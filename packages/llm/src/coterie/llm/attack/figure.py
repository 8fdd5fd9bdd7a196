"""Figure 3a of PPLR, measured: how well the input can be rebuilt, over depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.core.tables.paired import Spread
from coterie.core.tables.plots import Lines, plot_lines

_LINES = {
    "trained attack (h, 4h, h)": "",
    "nearest embedding of h_l": "nearest_",
    "without h_l": "trivial_",
}
_LABELS = {"cosine": "cosine with the input embedding", "recovery": "share of tokens found"}


def draw(rows: Sequence[dict[str, Any]], seeds: int, path: Path) -> Path:
    """Draw cosine and token recovery over layers, with standard deviations over seeds, as PNG.

    Args:
        rows: as `coterie.llm.attack.inversion.rows` gives them.
        seeds: number of them.
        path: file to write.

    Raises:
        UserError: the file cannot be written.
    """
    panels = [panel(rows, seeds, measure, _LINES) for measure in _LABELS]
    return plot_lines(panels, "", "Rebuilding the input of unseen users from h_l", path)


def panel(
    rows: Sequence[dict[str, Any]], seeds: int, measure: str, lines: Mapping[str, str]
) -> Lines:
    """Lay out one measure over layers; ``lines`` gives what its columns begin with by name."""
    spreads = {
        name: [
            Spread(row[f"{prefix}{measure}"], row[f"{prefix}{measure}_sd"], seeds) for row in rows
        ]
        for name, prefix in lines.items()
    }
    layers = [row["layer"] for row in rows]
    return Lines("layer l", layers, spreads, y_label=_LABELS[measure])
