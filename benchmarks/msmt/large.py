"""Conversion of a large text file: ``python -m benchmarks.msmt.large [ROWS]``."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.core.machine import forget_peak, most_resident
from benchmarks.msmt.loading import FIELDS
from benchmarks.msmt.steps import ALIEXPRESS
from coterie.core.data.sources.arrow_samples import convert
from coterie.core.data.sources.sample_forms import Form

_ROWS, _BLOCK = 10_000_000, 20_000


def write_text(path: Path, rows: int) -> None:
    """Write random rows of 81 columns, the same block over and over."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, ALIEXPRESS.vocabularies, (_BLOCK, len(ALIEXPRESS.vocabularies)))
    numbers = rng.random((_BLOCK, ALIEXPRESS.n_numbers)).round(6)
    labels = rng.integers(0, 2, (_BLOCK, ALIEXPRESS.n_tasks)).cumprod(1)
    lines = [
        ",".join([*map(str, a), *map(str, b), *map(str, c)])
        for a, b, c in zip(ids.tolist(), numbers.tolist(), labels.tolist(), strict=True)
    ]
    block = "\n".join(lines) + "\n"
    with path.open("w") as file:
        file.write(",".join(name for each in FIELDS for name in each.columns) + "\n")
        for _ in range(rows // _BLOCK):
            file.write(block)


def report(rows: int = _ROWS) -> str:
    """Convert a file in this process, and say what it took."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "samples.csv"
        write_text(text, rows)
        size = text.stat().st_size
        forget_peak()
        began = time.process_time()
        found = convert([text], Path(folder) / "samples.arrow", Form(FIELDS))
        seconds = time.process_time() - began
        return (
            f"{found.count:,} rows of {size / 1e9:.1f} GB text: {seconds:,.0f} CPU s "
            f"({found.count / seconds:,.0f} a second), {most_resident() / 1e6:,.0f} MB at most\n"
        )


if __name__ == "__main__":
    sys.stdout.write(report(*map(int, sys.argv[1:])))
