"""Train a paper twice in brief and compare what came out, to the last bit."""

from __future__ import annotations

import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from coterie.core.cli.output import aside
from coterie.core.errors import UserError
from coterie.core.registry.papers import Paper
from coterie.core.run.metrics_file import read_metrics
from coterie.core.run.runfolder import RunFolder
from coterie.core.settings.configuration import configure


def check(paper: Paper) -> int:
    """Train the smoke preset twice and compare all numbers but times; return how many there are.

    Raises:
        UserError: they differ; the first difference is named.
    """
    with tempfile.TemporaryDirectory(prefix="coterie-") as folder:
        first, second = (_numbers(paper, Path(folder), name) for name in ("first", "second"))
    if first.keys() != second.keys():
        odd = sorted(first.keys() ^ second.keys())[0]
        raise UserError(f"two equal runs of {paper.name} differ: only one has '{odd}'")
    for name, value in first.items():
        if value != second[name]:
            raise UserError(
                f"two equal runs of {paper.name} differ in '{name}': {value} and {second[name]}"
            )
    return len(first)


def _numbers(paper: Paper, folder: Path, name: str) -> dict[str, Any]:
    """Everything a run measured, as text where it was printed, without times."""
    flags = ["--out", str(folder), "--run.name", name, "--run.progress", "false"]
    flags += ["--preset", "smoke", "--logger.wandb", "off"]
    with aside(active=True):
        import_module("coterie.core.training.train").train(paper, configure(paper, flags).settings)
    run = RunFolder.open(folder / paper.name / name)
    numbers = dict(run.read_json("summary.json")["metrics"])
    for row, values in enumerate(read_metrics(run.path)[1], 1):
        numbers |= {f"{key} in row {row}": value for key, value in values.items()}
    return {key: value for key, value in numbers.items() if "seconds" not in key}
