"""A process of a crew: does chunks with what it had in memory when it was forked."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from coterie.core.errors import UserError
from coterie.core.federation.parent import end_with_parent
from coterie.core.federation.postal import Line, LineEnded, Mail
from coterie.core.kernels import switch
from coterie.core.local_training.stacking import beside_others
from coterie.core.local_training.step_count import counting_steps
from coterie.core.tensors.device import tiny_are_zero

_BAD_FORK = "in combination with fork-based multiprocessing"  # as torch says

Work = Callable[[Any, Any], Any]
"""From what a whole ask has in common, and from what is of one chunk, to what comes of it."""


@dataclass(frozen=True)
class Surroundings:
    """What is set for a process or a thread and changes what it computes.

    Attributes:
        dtype: format of new tensors.
        gradients: whether autograd notes anything.
        threads: of torch.
        kernels: whether compiled loops may be used.
        tiny_as_zero: whether numbers too small for the processor are.
    """

    dtype: torch.dtype
    gradients: bool
    threads: int
    kernels: bool
    tiny_as_zero: bool

    @staticmethod
    def here() -> Surroundings:
        """Those of this thread."""
        return Surroundings(
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.get_num_threads(),
            switch.available(),
            tiny_are_zero(),
        )

    @contextmanager
    def set(self) -> Iterator[None]:
        """Have them in this thread."""
        torch.set_default_dtype(self.dtype)
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        switch.allow(self.kernels)
        torch.set_flush_denormal(self.tiny_as_zero)
        with torch.set_grad_enabled(self.gradients):
            yield


def serve(line: Line, work: Work, parent: int) -> None:
    """Answer what comes on a line until it ends, or the parent; what a forked process does.

    All work is done on a thread of its own: the one that was forked has the threads of torch that
    it had, which are none of this process, and torch would wait for them for ever.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # these are for the parent
        signal.signal(number, signal.SIG_IGN)
    end_with_parent(parent)
    thread = threading.Thread(target=_served, args=(line, work), daemon=True)
    thread.start()
    thread.join()
    os._exit(0)


def _served(line: Line, work: Work) -> None:
    told = _Told()
    common: Any = None
    try:
        line.send("ready")
        while True:
            mail = line.receive()
            if mail.kind == "ask":
                common = None  # so that its memory is free
                common, surroundings = mail.read()[0]
                continue
            _answer(line, mail, common, surroundings, work, told)
    except LineEnded:
        return
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _answer(
    line: Line, mail: Mail, common: Any, surroundings: Surroundings, work: Work, told: _Told
) -> None:
    """Do a chunk, and send what comes of it or what went wrong."""
    made: Any
    try:
        with surroundings.set(), beside_others(), counting_steps() as steps:
            given, tensors = mail.read()
            before = [tensor._version for tensor in tensors]
            made = work(common, given)
        known = {
            id(tensor): place
            for place, (tensor, version) in enumerate(zip(tensors, before, strict=True))
            if tensor._version == version
        }
        letter = line.writer.write(made, known)
    except Exception as error:
        _flush()
        line.send("failed", more=(mail.more, time.process_time(), 0, told.taken(), _as_sent(error)))
        return
    _flush()
    del given, tensors, made  # so that their memory is free
    line.send("done", letter, (mail.more, time.process_time(), steps.total, told.taken(), None))


def _flush() -> None:
    """What a loss prints comes with its answer: this process will be ended without notice."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # it may be closed
            stream.flush()


def _as_sent(error: Exception) -> bytes:
    """An error as bytes that the parent can read."""
    if _BAD_FORK in str(error):
        error = UserError(
            "'engine.workers' are forked from this process, and torch computes no gradients in a "
            "fork of one that has computed some beside a GPU: begin in a new process, say "
            "CUDA_VISIBLE_DEVICES='', or leave it at 1"
        )
    text = "".join(traceback.format_exception(error))
    try:
        if not isinstance(error, UserError):  # one line says all of it
            error.add_note(f"in a process of 'engine.workers':\n{text}")
        sent = pickle.dumps(error)
        pickle.loads(sent)
    except Exception:
        sent = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}\n{text}"))
    return sent


def _can_be_sent(thing: Any) -> bool:
    try:
        pickle.dumps(thing)
    except Exception:
        return False
    return True


class _Told:
    """Log records and warnings of this process, for the parent to tell."""

    def __init__(self) -> None:
        self._told: list[Any] = []

        def call(logger: logging.Logger, record: logging.LogRecord) -> None:
            record.msg, record.args = record.getMessage(), None
            record.exc_info = record.exc_text = record.stack_info = None
            if not _can_be_sent(record):  # for what somebody has put into it
                about = (record.name, record.levelno, record.pathname, record.lineno, record.msg)
                record = logging.LogRecord(*about, None, None, record.funcName)
            self._told.append(record)

        def show(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
            category = next(filter(_can_be_sent, category.__mro__))  # a local class cannot
            self._told.append((str(message), category, filename, lineno))

        logging.Logger.callHandlers = call  # type: ignore[method-assign,assignment]
        warnings.showwarning = show  # type: ignore[assignment]

    def taken(self) -> list[Any]:
        """What there is, once."""
        taken, self._told[:] = list(self._told), []
        return taken
