"""Samples from a file: how many a second, and in how much memory."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.core.machine import forget_peak, most_resident, resident
from benchmarks.core.timing import Row, in_a_process, row
from benchmarks.msmt.steps import ALIEXPRESS
from coterie.core.data.samples.arrow_rows import ArrowRows
from coterie.core.data.samples.streamed import RowRange, StreamedSamples
from coterie.core.data.sources.arrow_samples import ROWS, SampleWriter
from coterie.core.data.sources.sample_forms import Field
from coterie.core.tensors.keys import Key

SAMPLES = 4_000_000
_BATCH, _EPOCHS = 2048, 3
_WANTED, _GROWTH = 4e6, 200e6  # samples a second; bytes
FIELDS = (
    Field("ids", tuple(f"c{n}" for n in range(len(ALIEXPRESS.vocabularies))), "ids", "uint16"),
    Field("numbers", tuple(f"n{n}" for n in range(ALIEXPRESS.n_numbers)), "numbers", "float32"),
    Field("labels", ALIEXPRESS.tasks, "labels", "uint8"),
)
"""AliExpress' samples."""


def loading(samples: int = SAMPLES) -> Iterator[Row]:
    """Measure shuffled epochs over a file of random samples, in a process of its own.

    Args:
        samples: in the file, 286 bytes each.
    """
    found = in_a_process(f"{__name__}:in_this_process", "the batches of a file", samples)
    what = f"{samples:,} samples of a file, shuffled, batches of {_BATCH:,}"
    for number, speed in enumerate(found["speeds"], start=1):
        name = f"{what}, epoch {number}; what it should be"
        yield row(name, "samples a CPU s", speed, _WANTED, share=True)
    yield row("  resident memory grows by; what it may", "bytes", found["growth"], _GROWTH)


def in_this_process(samples: int) -> dict[str, Any]:
    """Write a file and read it in three epochs: samples a second of each, and growth of memory."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.arrow"
        write(path, samples)
        data = StreamedSamples(torch.tensor([0]), ((RowRange(ArrowRows(path), 0, samples),),))
        key, first = Key.from_seed(0).fold(data.ids), torch.tensor([0])
        before, speeds = resident(), []
        forget_peak()
        batches = data.batches(_EPOCHS, _BATCH, key)
        each = int(batches.per_epoch[0])
        for epoch in range(_EPOCHS):
            began = time.process_time()
            for number in range(epoch * each, (epoch + 1) * each):
                batches(number, first)
            speeds.append(samples / (time.process_time() - began))
        return {"speeds": speeds, "growth": most_resident() - before}


def write(path: Path, samples: int) -> None:
    """Write random samples, the same block over and over."""
    rng = np.random.default_rng(0)
    block: dict[str, np.ndarray] = {
        "ids": rng.integers(0, ALIEXPRESS.vocabularies, (ROWS, len(ALIEXPRESS.vocabularies))),
        "numbers": rng.random((ROWS, ALIEXPRESS.n_numbers), dtype=np.float32),
        "labels": rng.integers(0, 2, (ROWS, ALIEXPRESS.n_tasks)),
    }
    with SampleWriter(path, FIELDS) as writer:
        for start in range(0, samples, ROWS):
            writer.add({name: values[: samples - start] for name, values in block.items()})
        writer.finish({})
