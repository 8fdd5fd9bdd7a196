"""metrics.csv: one line a round, always a valid CSV, cut back when a run is resumed."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from coterie.core.files import replacing, writing

FIRST_COLUMNS = ("round", "block")
STREAM = "_stream"
"""Ends the names of numbers that only the last round of a run has."""
_THEN = "then go on by --resume"


class MetricsFile:
    """Every round's scalars in ``metrics.csv``.

    Columns are ``round``, ``block``, then keys in the order of their first appearance. A key that
    appears later gets an empty cell in the earlier lines; the file is then replaced at once.

    Args:
        folder: of the run.

    Raises:
        UserError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> file = MetricsFile(Path(tempfile.mkdtemp()))
        >>> file.begin(0)
        >>> file.write(1, {"block": 0, "fed/loss": 0.5})
        >>> file.write(1, {"test/auc": 0.75})
        >>> file.path.read_text().split()
        ['round,block,fed/loss,test/auc', '1,0,0.5,0.75']
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.csv"
        self._columns: list[str] = []
        self._file: BinaryIO | None = None
        self._line: dict[str, str] = {}
        self._start = 0  # of the last line, in bytes

    def begin(self, rounds: int, without: str | None = None) -> None:
        """Keep the lines of so many rounds, so that a resumed file is that of one that never broke.

        Args:
            rounds: done.
            without: ending of keys that the last line loses; None loses none.
        """
        with writing(self.path, _THEN):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            columns, lines = read_metrics(self.path.parent)
            lines = [line for line in lines if int(line["round"]) <= rounds]
            if without is not None and lines:
                lines[-1] |= {key: "" for key in columns if key.endswith(without)}
            keys = [key for key in columns if any(line[key] for line in lines)]
            self._rewrite(list(dict.fromkeys((*FIRST_COLUMNS, *keys))), lines)

    def write(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Append a round's line, or add to the last one, and hand it to the operating system.

        Args:
            round_: number of the round.
            numbers: with ``block`` among them the first time.
        """
        given = {key: number(value) for key, value in numbers.items() if key != "round"}
        again = self._line.get("round") == str(round_)
        if again and given.items() <= self._line.items():
            return
        line = (self._line if again else {"round": str(round_)}) | given
        new = [key for key in line if key not in self._columns]
        with writing(self.path, _THEN):
            if new:
                lines = read_metrics(self.path.parent)[1]
                self._rewrite([*self._columns, *new], lines[:-1] if again else lines)
                again = False
            self._put(line, again)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            file, self._file = self._file, None
            # Every line was flushed; one that could not be was reported when it was written.
            with suppress(OSError):
                file.close()

    def _put(self, line: dict[str, str], again: bool) -> None:
        if self._file is None:
            self._file = self.path.open("r+b")
            self._file.seek(0, io.SEEK_END)
        if again:
            self._file.seek(self._start)
        self._start, self._line = self._file.tell(), line
        self._file.write(_lines(self._columns, [line]).encode())
        self._file.truncate()  # after it is written: a process killed here has lost no line
        self._file.flush()

    def _rewrite(self, columns: list[str], lines: Sequence[dict[str, str]]) -> None:
        self.close()
        with replacing(self.path) as temporary:
            header = _lines(columns, [dict(zip(columns, columns, strict=True))])
            temporary.write_text(header + _lines(columns, lines), encoding="utf-8", newline="")
        self._columns, self._line = columns, {}


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


def _lines(columns: Sequence[str], lines: Sequence[Mapping[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, "", extrasaction="ignore", lineterminator="\n")
    writer.writerows(lines)
    return text.getvalue()
