"""Runs of W&B on disk, read back with the program behind its own `wandb leet inspect`."""

import json
import subprocess
from importlib.util import find_spec
from pathlib import Path


def inspect(file: Path, *options: str) -> str:
    """Say what is in a run's log; past W&B's command, whose import takes longer than the rest."""
    found = find_spec("wandb")
    assert found is not None
    assert found.origin is not None
    command = [Path(found.origin).parent / "bin" / "wandb-core", "leet", "inspect"]
    folder = file.parent
    done = subprocess.run(
        [*command, "--no-observability", *options, "--json", "--run-file", file, folder.parent],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def records(file: Path) -> list[dict]:
    """Read the records of a run's log."""
    return [json.loads(line) for line in inspect(file).splitlines()]


def history_of(lines: list[dict]) -> list[dict]:
    """Pick what the run has logged by step."""
    return [line["history"]["item"] for line in lines if line["type"] == "history"]
