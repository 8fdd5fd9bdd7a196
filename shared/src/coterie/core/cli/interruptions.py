"""Ctrl-C while modules are imported: heard at once, raised when they are complete."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_IMPORTING = "<frozen importlib._bootstrap>"
_AGAIN = 0.02  # seconds


@contextmanager
def never_in_an_import() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on Ctrl-C as ever, only not in the middle of an import.

    Modules with compiled parts do not expect it there: numpy goes on with half of itself, a
    module of matplotlib says that it cannot be initialised, C++ of torch ends the process. In
    5 of 120 interruptions at the start of a command, that was a traceback or no end at all. Nor in
    a ``__del__``, where Python prints the exception and goes on as if nothing had been pressed.

    Does nothing where signals cannot be heard (not in the main thread) or are not to be (nohup).

    Example:
        >>> with never_in_an_import():
        ...     import json
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    alarm = signal.signal(signal.SIGALRM, _raise_or_put_off)
    signal.signal(signal.SIGINT, _raise_or_put_off)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, alarm)


def _raise_or_put_off(number: int, frame: FrameType | None) -> None:
    if _out_of_place(frame):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)
    else:
        signal.default_int_handler(number, frame)


def _out_of_place(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
