"""Computing for a caller who has a process of their own: it is given back as it was."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.core.errors import Interrupted, UserError
from coterie.core.registry.importing import heavy
from coterie.core.registry.papers import Paper
from coterie.core.terminal import silenced

_turn = threading.RLock()
_FLAG = re.compile(r"--((?:\w+\.)*\w+)")
_WORDS = {
    "resume": "coterie.load(folder).resume()",
    "run.name": "name=",
    "run.out": "out=",
    "out": "out=",
}


@contextmanager
def computing(engine: Any) -> Iterator[None]:
    """Have the threads and kernels of a run; the process has its own again on the way out.

    They belong to the whole process, so one thread computes at a time, and others wait.

    Args:
        engine: section of the run's settings.
    """
    with _turn, heavy("coterie.core.run.process").computing_as(engine):
        yield


def trained(
    paper: Paper,
    settings: Any,
    quiet: bool,
    callbacks: Sequence[Any] = (),
    loggers: Sequence[Any] = (),
) -> Path:
    """Train a run, or go on with one, and give its folder: the one place that does.

    An interruption (Ctrl-C, the stop button of a notebook) ends it after a warning, and the folder
    is that of an unfinished run; before there is a folder it goes on its way.

    Args:
        paper: to train.
        settings: of the run.
        quiet: whether nothing is printed.
        callbacks: of Lightning.
        loggers: of Lightning.

    Raises:
        UserError: as `coterie.core.training.train.train`.
    """
    if quiet:
        settings = replace(settings, run=replace(settings.run, progress=False))
    with silenced(quiet), in_python(), computing(settings.engine):
        try:
            train = heavy("coterie.core.training.train").train
            folder: Path = train(paper, settings, callbacks, loggers)
        except Interrupted as end:
            if end.folder is None:
                raise
            since = "after its last whole round" if end.saved else "from its beginning"
            warnings.warn(
                f"interrupted: the run {end.folder} is unfinished; its resume() goes on {since}",
                stacklevel=3,
            )
            return end.folder
    return folder


@contextmanager
def in_python() -> Iterator[None]:
    """Name arguments of calls in messages where flags of the command line stand."""
    try:
        yield
    except UserError as error:
        said = str(error)
        words = without_flags(said)
        if words == said:
            raise
        raise UserError(words) from error


def without_flags(message: str) -> str:
    """Write flags of the command line as a caller in Python gives them.

    Example:
        >>> without_flags("go on by --resume, or choose another --run.name")
        'go on by coterie.load(folder).resume(), or choose another name='
        >>> without_flags("lower sizes, or --engine.chunk, or leave out --variant best")
        "lower sizes, or engine={'chunk': …}, or leave out variant=best"
    """

    def call(found: re.Match[str]) -> str:
        flag = found[1]
        if flag in _WORDS:
            return _WORDS[flag]
        section, _, key = flag.rpartition(".")
        return f"{section}={{'{key}': …}}" if section else f"{key}="

    return _FLAG.sub(call, message).replace("= ", "=") if "--" in message else message
