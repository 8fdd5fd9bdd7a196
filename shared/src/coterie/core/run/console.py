"""What `coterie train` prints before and after a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from coterie.core.data.interactions.dropped import in_words
from coterie.core.registry.papers import Paper
from coterie.core.run.experiment import Experiment
from coterie.core.run.runfolder import Summary
from coterie.core.terminal import console, one_line

_MOST_CLIENTS = 20  # rows of a table that one still reads


def show_data(paper: Paper, experiment: Experiment[Any]) -> None:
    """Print what is trained on what, with the statistics of every block."""
    settings = experiment.settings
    printed = console()
    about = (
        f": {settings.method} ({settings.reading} reading), "
        f"seed {settings.seed}, on {one_line(experiment.source)}"
    )
    printed.print(Text.assemble((paper.name, "bold"), about))
    if rows := experiment.describe_data():
        printed.print(_table(rows))
    for line in in_words(experiment.left_out()):
        printed.print(f"Rows {line}", highlight=False, markup=False, soft_wrap=True)


def show_results(folder: Path, summary: Summary, clients: Sequence[dict[str, Any]] = ()) -> None:
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
    printed.print(_table(metrics, "metric", "ours", "paper"))
    for note in summary.notes:
        printed.print(f"Note: {one_line(note)}")
    printed.print(
        f"{summary.rounds} rounds in {summary.seconds:.1f} s; clients sent "
        f"{summary.up_bytes / 1e6:.1f} MB and received {summary.down_bytes / 1e6:.1f} MB\n"
        f"written to {one_line(str(folder))}: {', '.join(_there(folder))}"
    )


def _there(folder: Path) -> list[str]:
    """List what a run writes, without a figure that could not be drawn."""
    figure = ["curves.png"] * (folder / "curves.png").is_file()
    others = ["ledger.json", "config.yaml", "checkpoints/"]
    return ["summary.json", "metrics.csv", *figure, *others]


def show_stopped(folder: Path, rounds: int) -> None:
    """Say that the Trainer stopped a run before its end, and what can be done with it."""
    console(soft_wrap=True).print(
        f"stopped by the Trainer after round {rounds}, before the run's end: --resume goes on, "
        f"coterie evaluate --run {one_line(str(folder))} measures it as it is"
    )


def _table(rows: Sequence[dict[str, Any]], *columns: str) -> Table:
    table = Table(box=None, header_style="dim")
    for name in columns or rows[0]:
        table.add_column(
            one_line(name), overflow="fold"
        )  # cut short, a number would be another one
    for row in rows:
        table.add_row(*(one_line(_cell(value)) for value in row.values()))
    return table


def _cell(value: Any) -> str:
    if value != value:
        return "unknown"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4f}"
    return f"{int(value):,}" if isinstance(value, int | float) else str(value)
