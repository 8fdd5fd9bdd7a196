"""The standard streams of a command: closed, of another encoding, or into a full disk."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TextIO


class _Sink(io.FileIO):
    """A stream that loses what cannot be written, and remembers why: a run is worth more.

    A closed pipe is still an error, which ends a command as it should.
    """

    lost: OSError | None = None

    def write(self, data: object) -> int:
        """Write; what the disk refuses counts as written."""
        try:
            return super().write(data) or 0  # type: ignore[arg-type]
        except BrokenPipeError:
            raise
        except OSError as error:
            self.lost = self.lost or error
            return len(memoryview(data))  # type: ignore[arg-type]


def prepare_streams() -> None:
    """Make the streams usable, whatever started the command.

    - Closed ones (daemons, cron) go nowhere, so that no file of the run gets their number.
    - A character that the encoding lacks (``λ`` in ascii) is replaced, not an error.
    - What cannot be written, on a full disk say, does not end the command; see `complaint`.

    Streams that somebody has put in the place of the process's own are left alone.
    """
    for number in range(3):
        _open_if_closed(number)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    if sys.stdout is sys.__stdout__:
        sys.stdout = _lasting(sys.stdout, 1)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _lasting(sys.stderr, 2)


def complaint() -> str | None:
    """Say why a part of the output was lost; None if everything was written.

    Raises:
        BrokenPipeError: nobody reads it any more.
    """
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(raw, _Sink) or raw.lost is None:
        return None
    reason = (raw.lost.strerror or str(raw.lost)).lower()
    return f"a part of the output is lost, cannot write to standard output ({reason})"


def _lasting(stream: TextIO | None, number: int) -> io.TextIOWrapper:
    if isinstance(stream, io.TextIOWrapper) and isinstance(
        getattr(stream.buffer, "raw", None), _Sink
    ):
        return stream
    encoding, by_line = "utf-8", number == 2
    if isinstance(stream, io.TextIOWrapper):
        with suppress(OSError):
            stream.flush()
        encoding = stream.encoding
        by_line = stream.line_buffering or stream.write_through
    sink = io.BufferedWriter(_Sink(number, "wb", closefd=False))
    return io.TextIOWrapper(sink, encoding, errors="replace", line_buffering=by_line)


def _open_if_closed(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        os.dup2(opened, number)  # inherited by other processes, unlike what os.open gives
        if opened == number:
            os.set_inheritable(number, True)
        else:
            os.close(opened)
