"""Runs whose results are kept on disk, in worker processes, with a bar that counts them."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm

from coterie.core.errors import UserError
from coterie.core.files import writing

_SILENCE = 30.0  # least seconds between plain lines, so that a log file stays short


class Counting:
    """Show how much of some work is done.

    On a terminal that is a bar; elsewhere a line, after a part when the last is half a minute old.

    Args:
        title: of the work.
        total: number of parts; None where nobody knows.
        shown: false shows nothing.
        clock: seconds.

    Example:
        >>> with Counting("Runs", 2, shown=False) as bar:
        ...     bar.done("first")
        ...     bar.up_to(2)
    """

    def __init__(
        self,
        title: str,
        total: int | None,
        shown: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._total, self._parts = title, total, 0
        live = shown and sys.stderr.isatty()
        self._bar: tqdm[Any] = tqdm(desc=title, total=total, leave=False, disable=not live)
        self._lines = shown and not live
        self._clock, self._since = clock, clock()

    def __enter__(self) -> Counting:
        """Give itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the bar away."""
        self._bar.close()

    def done(self, label: str) -> None:
        """Note that one more part is done; ``label`` says which."""
        self._bar.set_postfix_str(label)
        self._show(self._parts + 1, f", {label}")

    def up_to(self, parts: int) -> None:
        """Note that so many parts are done."""
        self._show(parts)

    def _show(self, parts: int, label: str = "") -> None:
        self._bar.update(parts - self._parts)
        self._parts = parts
        now = self._clock()
        if self._lines and now - self._since >= _SILENCE:
            self._since = now
            of_all = "" if self._total is None else f" of {self._total}"
            sys.stderr.write(f"{self._title}: {parts}{of_all}{label}\n")
            sys.stderr.flush()


# Runs whose results are kept on disk, in worker processes; an interrupted table goes on.

Work = Callable[[Any, Path], None]
"""A function of a module's top level: computes from its (pickled) argument and writes the file, in
one step or not at all."""


@dataclass(frozen=True)
class Job:
    """A result on disk and how to make it.

    Attributes:
        path: the file; where it exists there is nothing to do, so its name must tell all that the
            result depends on.
        work: makes it.
        argument: for ``work``.
        label: for the progress display.
        needs: a job whose file ``work`` reads.
    """

    path: Path
    work: Work
    argument: Any
    label: str = ""
    needs: Job | None = None


def run_jobs(jobs: Sequence[Job], workers: int, title: str, progress: bool = True) -> None:
    """Make the files of all jobs that are not there yet.

    Args:
        jobs: those they need need not be named; equal paths are made once.
        workers: processes with one thread each; 0 runs the jobs in this process, one by one.
        title: of the progress display.
        progress: show it, on stderr.

    Raises:
        UserError: the folder cannot be written, or a job meets a mistake of the user's.
    """
    waiting = _missing(jobs)
    for job in waiting:
        with writing(job.path.parent):
            job.path.parent.mkdir(parents=True, exist_ok=True)
    if not waiting:
        return
    with Counting(title, len(waiting), progress) as bar:
        if workers == 0:
            for job in waiting:
                _do(job.work, job.argument, job.path)
                bar.done(job.label)
        else:
            _in_processes(waiting, min(workers, len(waiting)), bar.done)


def worker_count() -> int:
    """How many workers a table uses: two, if the machine has as many cores."""
    return min(2, os.cpu_count() or 1)


def _missing(jobs: Sequence[Job]) -> list[Job]:
    """The jobs to run, each after the one it needs."""
    found: dict[Path, Job] = {}
    for job in jobs:
        if job.path.exists() or job.path in found:
            continue
        if job.needs is not None and not job.needs.path.exists():
            found.setdefault(job.needs.path, job.needs)
        found[job.path] = job
    return list(found.values())


def _in_processes(waiting: list[Job], workers: int, done: Callable[[str], None]) -> None:
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    pool = ProcessPoolExecutor(workers, context, _prepare)
    running: dict[Future[None], Job] = {}
    try:
        while waiting or running:
            ready = [job for job in waiting if job.needs is None or job.needs.path.exists()]
            for job in ready:
                waiting.remove(job)
                running[pool.submit(_do, job.work, job.argument, job.path)] = job
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                future.result()
                done(job.label)
    except BrokenProcessPool:
        raise UserError(
            "a worker of the table was killed, perhaps for memory: say the same command again to "
            "go on, with --engine.chunk 64 for less memory"
        ) from None
    finally:
        pool.shutdown(wait=not running, cancel_futures=True)


def _do(work: Work, argument: Any, path: Path) -> None:
    """Do the work of a job, and give back its memory.

    A Trainer is part of reference cycles, with all tensors of its run: gigabytes, but few objects,
    so that Python would collect them much later.
    """
    work(argument, path)
    gc.collect()


def _prepare() -> None:
    """Set up a worker: one thread; it ends without a traceback when interrupted or orphaned.

    Numbers below 1e-38 are taken as 0. A trained softmax gives a class that it excludes such a
    probability, the processor is slow with it, and in the sums it is rounded away.
    """
    import torch

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
