"""The runs of a folder, a row each, read again only where a file has changed. Torch-free."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.looking.facts import RunFacts
from coterie.core.looking.measures import headline, in_words
from coterie.core.run.lock import LOCK

PATIENCE = 1.0
"""Seconds that a look at the folder may read files for."""
_DEPTH = 3  # folders between that of the runs and a run
_READ = ("config.yaml", "summary.json", "about.json", "metrics.csv", LOCK)
Signature = tuple[tuple[int, int] | None, ...]


@dataclass
class Shelf:
    """The runs below a folder.

    A run is called by an id made of its place, so no path is ever taken from outside.

    Args:
        root: the folder.
    """

    root: Path
    _rows: dict[str, tuple[Signature, dict[str, Any]]] = field(default_factory=dict)
    _paths: dict[str, Path] = field(default_factory=dict)

    def rows(self, seconds: float = PATIENCE) -> list[dict[str, Any]]:
        """A row for each run that is there now, the newest first; a damaged one says why.

        Args:
            seconds: that it may read for; what is left has a row of state "unread" until the next
                look, which goes on.
        """
        until, found, rows = time.monotonic() + seconds, {}, []
        for path in _runs(self.root, _DEPTH):
            name = path.relative_to(self.root).as_posix()
            number = hashlib.sha256(os.fsencode(name)).hexdigest()[:12]
            found[number] = path
            signature = signed(path, _READ)
            known = self._rows.get(number)
            # A killed process leaves its lock's file: who holds it is asked each time.
            if known is None or known[0] != signature or signature[-1] is not None:
                if time.monotonic() < until:
                    self._rows[number] = (signature, _row(number, name, path, signature))
                elif known is None:
                    rows.append(_blank(number, name, signature) | {"state": "unread"})
        self._paths = found
        self._rows = {number: row for number, row in self._rows.items() if number in found}
        rows += [row for _, row in self._rows.values()]
        return sorted(rows, key=lambda row: (-row["changed"], row["name"]))

    def path(self, number: str) -> Path | None:
        """The folder of a run of the last look; None where there is none of this id."""
        return self._paths.get(number)


def signed(path: Path, names: Iterable[str]) -> Signature:
    """When files were last written, and their sizes; None for what is not there."""
    found: list[tuple[int, int] | None] = []
    for name in names:
        try:
            stat = os.stat(path / name)
        except OSError:
            found.append(None)
        else:
            found.append((stat.st_mtime_ns, stat.st_size))
    return tuple(found)


def _runs(folder: Path, depth: int) -> Iterator[Path]:
    """Folders with a config.yaml, no deeper than that; links are not followed."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    if any(entry.name == "config.yaml" for entry in entries):
        yield folder
        return
    for entry in entries:
        if depth and not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
            yield from _runs(Path(entry.path), depth - 1)


def _row(number: str, name: str, path: Path, signature: Signature) -> dict[str, Any]:
    row = _blank(number, name, signature)
    try:
        run = RunFacts(path)
        row |= {
            "paper": run.paper.name,
            "method": run.method,
            "data": run.data,
            "seed": run.seed,
            "state": run.state,
            "rounds": run.rounds,
            "asked": run.config.get("rounds"),
        }
        measure, value = _measured(run)
    except (UserError, OSError) as error:
        why = " ".join(str(error).split())
        return _blank(number, name, signature) | {"state": "damaged", "problem": why}
    return row | {
        "measure": measure and in_words(measure),
        "value": None if value != value else value,
    }


def _blank(number: str, name: str, signature: Signature) -> dict[str, Any]:
    """A row that says where a run is, and when it last changed."""
    changed = max((one[0] for one in signature if one is not None), default=0) / 1e9
    return dict.fromkeys(_UNKNOWN) | {"id": number, "name": name, "changed": changed}


_UNKNOWN = (
    "problem",
    "state",
    "paper",
    "method",
    "data",
    "seed",
    "rounds",
    "asked",
    "measure",
    "value",
)


def _measured(run: RunFacts) -> tuple[str | None, float]:
    """The number that a row shows: the test at the end, validation before."""
    if run.finished:
        names = headline(run)
        return (names[0], run.metrics[names[0]]) if names else (None, float("nan"))
    name = run.monitor or "fed/loss"
    return name, run.last(name)
