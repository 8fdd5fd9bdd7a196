"""A crew: processes forked from this one, which do chunks of clients side by side.

A fork has all that its parent had in memory, so clients' data and the client half are there at
once, in the same memory, and nothing is started or read. Messages and private state go there, and
answers come back, as letters (`coterie.core.federation.letters`).

What is in memory there grows old: where the client half has changed since, as when a callback
raises a weight in a loss, the processes are forked anew.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from coterie.core.errors import UserError
from coterie.core.federation.hand import Surroundings, Work, serve
from coterie.core.federation.letters import Letter, Reader, Writer
from coterie.core.federation.postal import Line, LineEnded, Mail
from coterie.core.local_training.step_count import count_steps

log = logging.getLogger(__name__)

G = TypeVar("G")
_WAITING = 2
"""Pieces that a process has at once: one that it does, one that waits, so that it never does."""
_START = 60.0  # seconds that a fork has to say that it is there
_DYING = 0.2  # seconds until it is known how a process has ended
_PARENT = 0  # number of this process among readers


class Crew:
    """Processes that live as long as this does, or until what they know has changed.

    Args:
        count: how many.
        work: what they do; see `coterie.core.federation.hand.Work`.
        knows: gives what must be as it was when they were forked, to be compared; None where
            that cannot be told, so that they are forked for every call.
        classes: of messages, which may be defined where they have no name to be found by.

    Attributes:
        starts: how often they were forked.

    Example:
        >>> crew = Crew(2, lambda common, given: given + common)
        >>> [found for _, found in crew.answers(1, range(4))]
        [1, 2, 3, 4]
    """

    def __init__(
        self,
        count: int,
        work: Work,
        knows: Callable[[], Any] = lambda: True,
        classes: Sequence[type] = (),
    ) -> None:
        self.count, self._work, self._knows, self._classes = count, work, knows, tuple(classes)
        self._forks: _Forks | None = None
        self._known: Any = None
        self._numbers = iter(range(1 << 62))
        self._spent = 0.0  # by processes that have been ended
        self.starts = 0

    def answers(self, common: Any, given: Iterable[G]) -> Iterator[tuple[G, Any]]:
        """Give every piece of work with what came of it, in order.

        An error of a piece is raised in its place; what has not begun is dropped then.

        Args:
            common: what all have in common, sent once to each process.
            given: the pieces; few are taken ahead of what is asked for.

        Raises:
            UserError: a process was killed, or cannot be had.
        """
        forks = self._ready()
        letter = forks.writer.write((common, Surroundings.here()))
        asked = _Ask(forks, letter, self._numbers)
        try:
            yield from asked.results(given)
        except LineEnded as ended:
            raise self._lost() from ended
        finally:
            asked.drop()

    def start(self) -> None:
        """Fork the processes, which the first call of `answers` does else."""
        self._ready()

    def rest(self) -> None:
        """End the processes; the next piece of work forks others."""
        self._end()

    @property
    def seconds(self) -> float:
        """Processor time of all processes that there have been, as of their last answers."""
        return self._spent + (0.0 if self._forks is None else self._forks.spent())

    def _end(self) -> list[int]:
        """End the processes; give the exit statuses of those that had ended before."""
        if self._forks is None:
            return []
        self._spent = self.seconds
        ended, self._forks = self._forks.end() or [], None
        return ended

    def _ready(self) -> _Forks:
        """Processes that know what this one knows."""
        known = self._knows()
        if known is None and not self.starts:
            log.warning(
                "processes of 'engine.workers' are forked for every ask: what clients compute with "
                "cannot be compared from one to the next"
            )
        if self._forks is None or known is None or known != self._known:
            self.rest()
            self.starts += 1
            self._known = known
            self._forks = _Forks(self.count, self._work, self._classes)
        return self._forks

    def _lost(self) -> UserError:
        """Say how a process has ended."""
        time.sleep(_DYING)
        signals = [-status for status in self._end() if status < 0]
        how = "has ended by itself, as it says above"
        if signals:
            how = f"was killed (signal {max(signals)}), perhaps for lack of memory"
        return UserError(
            f"a process of 'engine.workers' {how}: go on from the last checkpoint by --resume, "
            "with fewer workers or a smaller 'engine.chunk'"
        )


class _Forks:
    """Forked processes, and the lines to them.

    Attributes:
        writer: of all that is sent to them.
        lines: to each.
        seconds: processor time of each so far.
        end: ends them, as does the end of this process; gives their exit statuses before.
    """

    def __init__(self, count: int, work: Work, classes: Sequence[type]) -> None:
        if not hasattr(os, "memfd_create"):
            raise UserError(
                "'engine.workers' are processes with memory in common, which they have on Linux "
                "alone: leave it at 1"
            )
        self.writer = Writer(classes)
        self.lines: list[Line] = []
        self.seconds: dict[Line, float] = {}
        self._tellers: dict[Any, Line] = {}
        held: list[tuple[int, Connection]] = []
        self.end = weakref.finalize(self, _end, os.getpid(), held, self.writer)
        try:
            for number in range(1, count + 1):
                ends = [end for _, end in held]
                process, connection = _forked(ends, work, classes)
                held.append((process, connection))
                self.lines.append(Line(connection, self.writer, Reader(classes), number, process))
            for line in self.lines:
                if not line.connection.poll(_START):
                    raise TimeoutError("one does not come up")
                line.receive()
        except LineEnded as error:
            self.end()
            why = ""
            if "grpc" in sys.modules:
                why = "; gRPC may crash them: import coterie before it is imported"
            raise UserError(
                f"a process of 'engine.workers' ended when it began: leave it at 1{why}"
            ) from error
        except OSError as error:
            self.end()
            raise UserError(
                f"cannot fork processes for 'engine.workers' ({error}): lower it"
            ) from error

    def spent(self) -> float:
        """Processor time of all."""
        return sum(self.seconds.values())

    def tell(self, line: Line, told: Iterable[Any]) -> None:
        """Tell what a process has to tell, unless another has told the same."""
        for one in told:
            is_record = isinstance(one, logging.LogRecord)
            said = (one.name, one.levelno, one.msg) if is_record else one
            if self._tellers.setdefault(said, line) is not line:
                continue
            if is_record:
                logging.getLogger(one.name).handle(one)
            else:
                warnings.warn_explicit(*one)


def _forked(
    ends: Sequence[Connection], work: Work, classes: Sequence[type]
) -> tuple[int, Connection]:
    """Fork a process that does work; its id, and the connection to it.

    Args:
        ends: of the connections to others.
        work: what it does.
        classes: of messages.
    """
    here, there = multiprocessing.Pipe()
    parent = os.getpid()
    for stream in (sys.stdout, sys.stderr):  # else what waits there might be written twice
        with suppress(Exception):
            stream.flush()
    with warnings.catch_warnings():
        # Threads of this process are not there, and their locks stay as they are: of those that
        # training takes none is held between two rounds.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()  # noqa: TID251
    if process:
        there.close()
        return process, here
    try:
        for end in (*ends, here):  # else the other ends would not learn that the parent has ended
            end.close()
        serve(Line(there, Writer(classes), Reader(classes), _PARENT, parent), work, parent)
    finally:
        os._exit(1)


def _end(owner: int, held: list[tuple[int, Connection]], writer: Writer) -> list[int]:
    """End processes, whatever they are at: they keep nothing. Give how those had ended that had."""
    if os.getpid() != owner:  # in a fork of a fork
        return []
    found = []
    for process, end in held:
        end.close()
        with suppress(ChildProcessError, ProcessLookupError):  # somebody else has waited for it
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                found.append(os.waitstatus_to_exitcode(status))
                continue
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    held.clear()
    writer.close()
    return found


@dataclass
class _Piece:
    """Work that was given to a process, and what came."""

    given: Any
    letter: Letter
    line: Line | None = None
    mail: Mail | None = None


class _Ask:
    """One call of `Crew.answers`."""

    def __init__(self, forks: _Forks, letter: Letter, numbers: Iterator[int]) -> None:
        self._forks, self._letter, self._numbers = forks, letter, numbers
        self._pieces: dict[int, _Piece] = {}  # in order
        self._busy = dict.fromkeys(forks.lines, 0)
        self._knowing: set[Line] = set()

    def results(self, given: Iterable[G]) -> Iterator[tuple[G, Any]]:
        """As `Crew.answers`."""
        rest = iter(given)
        most = _WAITING * len(self._busy) + 1
        while True:
            while len(self._pieces) < most and min(self._busy.values()) < _WAITING:
                if not self._give(rest):
                    break
            if not self._pieces:
                return
            number, first = next(iter(self._pieces.items()))
            while first.mail is None:
                self._take()
            del self._pieces[number]
            yield first.given, self._outcome(first)

    def drop(self) -> None:
        """Read nothing of what has come and was not asked for any more: its memory is free."""
        for piece in self._pieces.values():
            if piece.mail is not None:
                piece.mail.drop()
        self._pieces.clear()

    def _give(self, rest: Iterator[Any]) -> bool:
        """Give the next piece to who has least to do, if there is one."""
        for given in rest:
            line, number = min(self._busy, key=self._busy.__getitem__), next(self._numbers)
            if line not in self._knowing:
                line.send("ask", self._letter)
                self._knowing.add(line)
            piece = _Piece(given, self._forks.writer.write(given), line)
            line.send("run", piece.letter, number)
            self._pieces[number] = piece
            self._busy[line] += 1
            return True
        return False

    def _take(self) -> None:
        """Wait for what comes; of an earlier ask, which was broken off, nothing is used."""
        by_connection = {line.connection: line for line, count in self._busy.items() if count}
        for ready in wait(list(by_connection)):
            line = by_connection[ready]  # type: ignore[index]
            mail = line.receive()
            number, self._forks.seconds[line], *_ = mail.more
            if (piece := self._pieces.get(number)) is None:
                mail.drop()
                continue
            piece.mail = mail
            self._busy[line] -= 1

    def _outcome(self, piece: _Piece) -> Any:
        assert piece.mail is not None
        assert piece.line is not None
        _, _, steps, told, error = piece.mail.more
        self._forks.tell(piece.line, told)
        count_steps(steps)
        if error is not None:
            raise pickle.loads(error)
        return piece.mail.read(piece.letter.tensors)[0]
