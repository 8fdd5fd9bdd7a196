"""Open the folder of a run: a new one, or that of a run that goes on, perhaps with more."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.files import writing
from coterie.core.registry.papers import Paper
from coterie.core.run.checkpoint import LAST, check_folder
from coterie.core.run.driver import FederatedRun
from coterie.core.run.lasting import MORE, has_more
from coterie.core.run.lock import held
from coterie.core.run.runfolder import RunFolder, resumable
from coterie.core.run.simulated import CLIENTS, read_run
from coterie.core.settings.schema import values_of
from coterie.core.training.shown import show_growth


@contextmanager
def opened_folder(paper: Paper, settings: Any, federation: Federation) -> Iterator[RunFolder]:
    """Open the run folder; one that is gone afterwards where nothing is to be kept."""
    if not settings.trainer.fast_dev_run:
        with _held_folder(paper, settings, federation) as folder:
            yield folder
        return
    if settings.run.resume:
        raise UserError("'trainer.fast_dev_run' keeps nothing, so there is no run to resume")
    with tempfile.TemporaryDirectory() as name:
        section = replace(settings.run, out=name, name="fast_dev_run")
        with _held_folder(paper, replace(settings, run=section), federation) as folder:
            yield folder


@contextmanager
def _held_folder(paper: Paper, settings: Any, federation: Federation) -> Iterator[RunFolder]:
    """Open the run to resume, or make a new folder, and keep others from training there meanwhile.

    See `RunFolder.for_settings`. A new folder is removed again where the run is refused
    before anything came of it. A complete run that gets more rounds, or more blocks, is an
    unfinished one from then on.

    Raises:
        UserError: as there, or the run cannot go on with so many rounds or with these data, or
            another process trains it; the folder is as it was.
    """
    if not settings.run.resume:
        folder = RunFolder.create(paper, settings)
        try:
            with held(folder.path):
                yield folder
        except UserError:
            _remove_unused(folder)
            raise
        return
    path = resumable(paper, settings)
    with held(path):
        RunFolder.open(path, settings)
        then, now = values_of(RunFolder.open(path).settings), values_of(settings)
        more = then["rounds"] != now["rounds"] and reopened(federation, path, now["rounds"])
        if has_more(then, now):
            check_grown(settings.engine.name, federation, path)
            show_growth(path, now[MORE][len(then[MORE]) :])
            more = True
        if more:
            summary = path / "summary.json"
            with writing(summary):
                summary.unlink(missing_ok=True)
        yield RunFolder.for_settings(paper, settings)


def _remove_unused(folder: RunFolder) -> None:
    """Remove the new folder of a run that was refused before anything came of it."""
    config = folder.path / "config.yaml"
    if list(folder.path.iterdir()) == [config]:
        config.unlink()
        folder.path.rmdir()


def check_grown(engine: str, federation: Federation, path: Path) -> None:
    """Check that a run may go on with data that have got more blocks.

    Raises:
        UserError: its clients are in folders of their own, which hold the data that there were; or
            its checkpoint is damaged, or of other data than the first blocks.
    """
    if engine != "in-process" or (path / CLIENTS).is_dir():
        raise UserError(
            f"cannot add data to {path}: clients in processes of their own keep the data that they "
            "were started with; leave 'engine.name' at in-process, or start a new run with all "
            "files, by --data.more"
        )
    check_folder(path, federation)


def reopened(federation: Federation, path: Path, rounds: int) -> bool:
    """Check that a run may go on with another number of rounds; say whether it was complete.

    Raises:
        UserError: it may not, or its checkpoint is damaged or of another run.
    """
    last = path / "checkpoints" / LAST
    if not last.is_file():
        return False
    run = FederatedRun(federation)
    run.load_plain(read_run(last)["federation"])
    done = run.finished
    why = _obstacle(run, rounds)
    if why is not None:
        flag = "" if done else "leave the flag out, or "
        raise UserError(
            f"cannot resume {path} with 'rounds' {rounds}: {why}; {flag}start a new run without "
            "--resume"
        )
    return run.reopened


def _obstacle(run: FederatedRun, rounds: int) -> str | None:
    """What is against another number of rounds; a complete run is reopened if there is nothing."""
    complete = run.finished
    try:
        run.reopen()
        run.federation.server.change_rounds(run.server_state, run.block_history, rounds)
    except UserError as error:
        return str(error)
    if run.block_open and not complete and run.ends_here():
        return f"it has done {run.block_round} already"
    if run.finished:
        return f"it came to its end by itself in round {run.round}, more change nothing"
    if run.block > 0 or (run.block == 0 and not run.block_open):
        return "earlier blocks had another number"
    return None
