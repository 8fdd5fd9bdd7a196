"""metrics.csv: one line a round, always a valid CSV, cut back when a run is resumed."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from coterie.core.callbacks.contract import RoundCallback, Rounds
from coterie.core.callbacks.stream import STREAM
from coterie.core.files import replacing, writing

FIRST_COLUMNS = ("round", "block")
_THEN = "then go on by --resume"


class CsvLog(RoundCallback):
    """Write every round's scalars to ``metrics.csv``.

    Columns are ``round``, ``block``, then keys in the order of their first appearance. A key that
    appears later gets an empty cell in the earlier lines; the file is then replaced at once. When
    training starts, lines after the restored round are dropped, so that a resumed run's file is
    that of an uninterrupted one.

    Raises:
        UserError: the file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.csv"
        self._columns: list[str] = []
        self._file: TextIO | None = None

    def start(self, run: Rounds) -> None:
        """Keep the lines up to the restored round, none for a new run."""
        with writing(self.path, _THEN):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            columns, lines = read_metrics(self.path.parent)
            lines = [line for line in lines if int(line["round"]) <= run.round]
            if run.reopened and lines:  # what was noted for being the end, is not the end's
                lines[-1] |= {key: "" for key in columns if key.endswith(STREAM)}
            keys = [key for key in columns if any(line[key] for line in lines)]
            self._rewrite(list(dict.fromkeys((*FIRST_COLUMNS, *keys))), lines)

    def write(self, run: Rounds) -> None:
        """Append the round's line and hand it to the operating system."""
        scalars = run.journal.scalars
        line = {"round": str(run.round), "block": str(run.block)}
        line |= {key: number(value) for key, value in scalars.items() if key not in FIRST_COLUMNS}
        new = [key for key in line if key not in self._columns]
        with writing(self.path, _THEN):
            if new:
                self._rewrite([*self._columns, *new], read_metrics(self.path.parent)[1])
            self._append(line)

    def end(self, run: Rounds) -> None:
        """Close the file."""
        self._close()

    failed = end

    def _append(self, line: dict[str, str]) -> None:
        if self._file is None:
            self._file = self.path.open("a", newline="", encoding="utf-8")
        writer = csv.DictWriter(self._file, self._columns, restval="", lineterminator="\n")
        writer.writerow(line)
        self._file.flush()

    def _rewrite(self, columns: list[str], lines: Sequence[dict[str, str]]) -> None:
        self._close()
        with (
            replacing(self.path) as temporary,
            temporary.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.DictWriter(
                file, columns, restval="", extrasaction="ignore", lineterminator="\n"
            )
            writer.writeheader()
            writer.writerows(lines)
        self._columns = columns

    def _close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            # Every line was flushed; one that could not be was reported when it was written.
            with suppress(OSError):
                file.close()


def number(value: float) -> str:
    """Write a number so that reading it gives the same one back.

    Example:
        >>> number(587.0), number(0.1), number(float("nan"))
        ('587', '0.1', 'nan')
    """
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def read_metrics(folder: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Columns and complete lines of a run's ``metrics.csv``; both empty where there is none."""
    path = folder / "metrics.csv"
    if not path.is_file():
        return [], []
    text = path.read_text(encoding="utf-8")
    # A process killed while writing leaves a line without its end: its numbers may be cut short.
    whole = text[: text.rfind("\n") + 1]
    reader = csv.DictReader(whole.splitlines(), restval="")
    return list(reader.fieldnames or []), [
        line for line in reader if str(line.get("round")).isdigit()
    ]
