"""The line between two processes on which letters go, with blocks that the other has not seen."""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from torch import Tensor

from coterie.core.federation.letters import Letter, Reader, Text, Writer


class LineEnded(Exception):
    """The other end is not there any more."""


class Line:
    """One end of a line.

    Args:
        connection: with the other end.
        writer: of what is sent here; the other ends of several lines may read of one writer.
        reader: of what comes.
        other: number of who reads at the other end.
        process: that reads there.
    """

    def __init__(
        self, connection: Connection, writer: Writer, reader: Reader, other: int, process: int
    ) -> None:
        self.connection, self.writer, self.reader = connection, writer, reader
        self._other, self._process = other, process

    def send(self, kind: str, letter: Letter | None = None, more: Any = None) -> None:
        """Send a letter, and something small beside it.

        Raises:
            LineEnded: the other end is not there.
        """
        block = None if letter is None else letter.block
        is_new = block is not None and self._other not in block.readers
        if block is not None:
            block.readers[self._other] = True
        header = (
            kind,
            more,
            None if letter is None else letter.text,
            None if block is None else block.number,
            is_new,
            self.reader.unused(),
            self.writer.numbers(),
        )
        try:
            self.connection.send_bytes(pickle.dumps(header))
            if is_new and block is not None:
                send_handle(self.connection, block.descriptor, self._process)
        except OSError as error:
            raise LineEnded from error

    def receive(self) -> Mail:
        """Wait for what comes.

        Raises:
            LineEnded: the other end is not there.
        """
        try:
            header = pickle.loads(self.connection.recv_bytes())
            kind, more, text, block, is_new, unused, kept = header
            if is_new:
                self.reader.see(block, recv_handle(self.connection))
        except (EOFError, OSError) as error:
            raise LineEnded from error
        self.reader.forget(kept)
        self.writer.returned(self._other, unused)
        return Mail(self.reader, kind, more, text, block)


class Mail:
    """What has come.

    Attributes:
        kind: of it.
        more: what came beside the letter.
    """

    def __init__(
        self, reader: Reader, kind: str, more: Any, text: Text | None, block: int | None
    ) -> None:
        self.kind, self.more = kind, more
        self._reader, self._text, self._block = reader, text, block

    def drop(self) -> None:
        """Read nothing of it."""
        if self._block is not None:
            self._reader.skip(self._block)

    def read(self, known: list[Tensor] | None = None) -> tuple[Any, list[Tensor]]:
        """Read the letter: its tree and its tensors, see `Reader.read`."""
        assert self._text is not None
        return self._reader.read(self._text, self._block, known or ())
