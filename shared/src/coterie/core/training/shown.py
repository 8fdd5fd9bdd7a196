"""What `coterie train` prints before and after a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from coterie.core.data.interactions.interactions import in_words
from coterie.core.registry.papers import Paper
from coterie.core.run.experiment import Experiment
from coterie.core.run.runfolder import Summary
from coterie.core.terminal import console, folded, table, width

_MOST_CLIENTS = 20  # rows of a table that one still reads


def show_data(paper: Paper, experiment: Experiment[Any]) -> None:
    """Print what is trained on what, with the statistics of every block."""
    settings = experiment.settings
    printed = console(soft_wrap=True)
    about = (
        f": {settings.method} ({settings.reading} reading), "
        f"seed {settings.seed}, on {experiment.source}"
    )
    text = Text(_folded(paper.name + about))
    text.stylize("bold", 0, len(paper.name))
    printed.print(text)
    if rows := experiment.describe_data():
        printed.print(_table(rows))
    for line in in_words(experiment.left_out()):
        printed.print(_folded(f"Rows {line}"))


def show_growth(folder: Path, files: Sequence[str]) -> None:
    """Say with the rows of which files a run goes on."""
    text = f"{folder} goes on with the rows of {' and '.join(files)}, a block of each file"
    console(soft_wrap=True).print(_folded(text))


_NOTHING_KEPT = "a run to try things out, nothing of it is kept"


def show_results(
    folder: Path | None, summary: Summary, clients: Sequence[dict[str, Any]] = ()
) -> None:
    """Print the summary of a finished run: metrics beside the paper's, bytes, where files are.

    Many clients are left to the file ``clients.json``.
    """
    printed = console(soft_wrap=True)
    if clients and len(clients) <= _MOST_CLIENTS:
        printed.print(_table(clients))
    metrics = [
        {"metric": name, "ours": value, "paper": summary.reference.get(name, "")}
        for name, value in summary.metrics.items()
    ]
    printed.print(_table(metrics))
    for note in summary.notes:
        printed.print(_folded(f"Note: {note}"))
    printed.print(
        _folded(
            f"{summary.rounds} rounds in {summary.seconds:.1f} s; clients sent "
            f"{summary.up_bytes / 1e6:.1f} MB and received {summary.down_bytes / 1e6:.1f} MB"
        )
    )
    written = _NOTHING_KEPT if folder is None else f"written to {folder}: {_there(folder)}"
    printed.print(_folded(written))


def _there(folder: Path) -> str:
    """Name what a run writes, without a figure that could not be drawn."""
    figure = ["curves.png"] * (folder / "curves.png").is_file()
    others = ["ledger.json", "config.yaml", "checkpoints/"]
    return ", ".join(["summary.json", "metrics.csv", *figure, *others])


def show_stopped(folder: Path | None, rounds: int) -> None:
    """Say that the Trainer stopped a run before its end, and what can be done with what is kept."""
    text = f"stopped by the Trainer after round {rounds}, before the run's end: " + (
        f"--resume goes on, coterie evaluate --run {folder} measures it as it is"
        if folder is not None
        else _NOTHING_KEPT
    )
    console(soft_wrap=True).print(_folded(text))


def _folded(text: str) -> str:
    return "\n".join(folded(text, width()))


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """Lay out rows; a table of a run has no other place where columns are that had no room."""
    texts = [{name: _cell(value) for name, value in row.items()} for row in rows]
    numbers = {name for name in rows[0] if all(isinstance(row[name], int | float) for row in rows)}
    return "\n".join(table(texts, width(), numbers))


def _cell(value: Any) -> str:
    if value != value:
        return "unknown"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4f}"
    return f"{int(value):,}" if isinstance(value, int | float) else str(value)
