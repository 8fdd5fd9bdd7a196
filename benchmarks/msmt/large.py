"""Public sets at their published size, as random text: conversion, and the start of a run.

``python -m benchmarks.msmt.large aliexpress [--form joined|official|zipped] [--countries NL ES]``
or ``tenrec``, with ``--share 0.01`` for a small trial. One country's text is on the disk at a time;
all four with their samples need 43 GB, Tenrec 20.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.core.machine import forget_peak, most_resident
from benchmarks.core.timing import in_a_process
from benchmarks.msmt.published_files import ALIEXPRESS_ROWS, write_aliexpress, write_tenrec
from coterie.core.data.sources.csv_blocks import csv_blocks
from coterie.core.data.sources.sample_forms import Form
from coterie.core.tensors.keys import Key
from coterie.msmt.data.aliexpress import FIELDS, read_aliexpress
from coterie.msmt.data.aliexpress_pages import Join
from coterie.msmt.data.task import Task
from coterie.msmt.data.tenrec import read_tenrec
from coterie.msmt.settings import ScenarioData

_HERE = "benchmarks.msmt.large"  # where it is run as a program, its name is another
_PARSED = 60  # blocks of text that are parsed without more, for comparison
_TEXT = (".csv", ".zip")


def report(data: str, form: str, countries: list[str], share: float, folder: Path) -> Iterator[str]:
    """Write, convert and measure; yield lines.

    Args:
        data: ``aliexpress`` or ``tenrec``.
        form: of AliExpress, see `write_aliexpress`.
        countries: of AliExpress.
        share: of the published rows.
        folder: for text and samples; holds nothing else.
    """
    name = f"the conversion of {data}"
    if data == "tenrec":
        write_tenrec(folder, share)
        yield _line(data, in_a_process(f"{_HERE}:conversion", name, data, str(folder), []))
    else:
        for country in countries:
            place = folder / f"AliExpress_{country}"
            write_aliexpress(place, country, form, share)  # type: ignore[arg-type]
            arguments = (data, str(folder), [country])
            yield _line(country, in_a_process(f"{_HERE}:conversion", name, *arguments))
            hollow(place)
    found = in_a_process(f"{_HERE}:start", f"the start on {data}", data, str(folder), countries)
    yield (
        f"start on {found['rows']:,} converted samples: {found['cpu']:.1f} CPU s, "
        f"{found['wall']:.1f} s, {found['peak'] / 1e6:,.0f} MB at most; then {found['steps']:,} "
        f"shuffled batches of 2,048 a scenario: {found['speed']:,.0f} samples a CPU second, "
        f"{found['peak_of_steps'] / 1e6:,.0f} MB"
    )


def conversion(data: str, folder: str, countries: list[str]) -> dict[str, Any]:
    """Convert in this process, and measure it."""
    place = Path(folder)
    text = [path for path in place.rglob("*") if path.suffix in _TEXT and _is_of(path, countries)]
    parsed = _parsed(max(text, key=lambda path: path.stat().st_size))
    forget_peak()
    began, wall = time.process_time(), time.perf_counter()
    task = _read(data, place, countries)
    cpu, wall = time.process_time() - began, time.perf_counter() - wall
    arrow = [path for path in place.rglob("*.arrow") if _is_of(path, countries)]
    return {
        "rows": _count(task),
        "text": sum(path.stat().st_size for path in text),
        "written": sum(path.stat().st_size for path in arrow),
        "cpu": cpu,
        "wall": wall,
        "peak": most_resident(),
        "parsed": parsed,
    }


def start(data: str, folder: str, countries: list[str], steps: int = 500) -> dict[str, Any]:
    """Read what is converted in this process, and the first batches of an epoch."""
    import torch

    forget_peak()
    began, wall = time.process_time(), time.perf_counter()
    task = _read(data, Path(folder), countries)
    cpu, wall = time.process_time() - began, time.perf_counter() - wall
    peak = most_resident()
    forget_peak()
    key = Key.from_seed(0).fold(task.clients.train.ids)
    batches = task.clients.train.batches(1, 2048, key)
    clients = torch.arange(len(task.schema.scenarios)).split(1)
    began, rows = time.process_time(), 0
    for number in range(steps):
        rows += sum(len(batches(number, client)["labels"][0]) for client in clients)
    speed = rows / (time.process_time() - began)
    return {
        "rows": _count(task),
        "cpu": cpu,
        "wall": wall,
        "peak": peak,
        "steps": steps,
        "speed": speed,
        "peak_of_steps": most_resident(),
    }


def _read(data: str, folder: Path, countries: list[str]) -> Task:
    settings, key = ScenarioData(name=data), Key.from_seed(0)
    if data == "tenrec":
        return read_tenrec(folder, settings, key, streamed=True)
    return read_aliexpress(folder, settings, key, countries=countries, streamed=True)


def _count(task: Task) -> int:
    parts = task.clients.train, task.clients.valid, task.clients.test
    return sum(int(samples.lengths.sum()) for samples in parts)


def _is_of(path: Path, countries: list[str]) -> bool:
    return not countries or path.parent.name.removeprefix("AliExpress_") in countries


def _parsed(path: Path) -> float:
    """Rows that pyarrow alone parses in a CPU second, of the start of a file."""
    if path.name == "train.csv":
        layout = Form(FIELDS).layout
    elif "_item_" in path.name:
        layout = Join.layout
    else:
        from coterie.msmt.data.tenrec import _layout

        layout = _layout(True)
    began = time.process_time()
    rows = sum(len(block) for block in islice(csv_blocks(path, layout), _PARSED))
    return rows / (time.process_time() - began)


def hollow(folder: Path) -> None:
    """Free the disk of text that is converted: files of the same size and time without content."""
    for path in (path for path in folder.iterdir() if path.suffix in _TEXT):
        stat = path.stat()
        os.truncate(path, 0)
        os.truncate(path, stat.st_size)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _line(name: str, found: dict[str, Any]) -> str:
    return (
        f"{name}: {found['rows']:,} rows, {found['text'] / 1e9:.2f} GB of text, "
        f"{found['cpu']:,.0f} CPU s ({found['rows'] / found['cpu']:,.0f} rows a CPU s; pyarrow's "
        f"csv alone {found['parsed']:,.0f}), {found['wall']:,.0f} s, "
        f"{found['peak'] / 1e6:,.0f} MB at most, {found['written'] / 1e9:.2f} GB written"
    )


def main() -> None:
    """Read the arguments, and print what is found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=["aliexpress", "tenrec"])
    parser.add_argument("--form", choices=["joined", "official", "zipped"], default="joined")
    parser.add_argument("--countries", nargs="+", choices=list(ALIEXPRESS_ROWS))
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, help="where there is room; default a temporary one")
    given = parser.parse_args()
    countries = [] if given.data == "tenrec" else given.countries or list(ALIEXPRESS_ROWS)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for line in report(given.data, given.form, countries, given.share, Path(folder)):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
