"""Whether a run may go on with another number of rounds; asked before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.files import writing
from coterie.core.registry.papers import Paper
from coterie.core.run.checkpoint import LAST, read_checkpoint
from coterie.core.run.driver import FederatedRun
from coterie.core.run.lock import held
from coterie.core.run.runfolder import RunFolder, resumable
from coterie.core.settings.schema import values_of


@contextmanager
def open_folder(paper: Paper, settings: Any, federation: Federation) -> Iterator[RunFolder]:
    """Open the run to resume, or make a new folder, and keep others from training there meanwhile.

    See `RunFolder.for_settings`. A complete run that gets more rounds is an unfinished one from
    then on.

    Raises:
        UserError: as there, or the run cannot go on with so many rounds, or another process trains
            it; the folder is as it was.
    """
    if not settings.run.resume:
        folder = RunFolder.create(paper, settings)
        with held(folder.path):
            yield folder
        return
    path = resumable(paper, settings)
    with held(path):
        RunFolder.open(path, settings)
        stored = values_of(RunFolder.open(path).settings)["rounds"]
        wanted = values_of(settings)["rounds"]
        if stored != wanted and reopened(federation, path, wanted):
            summary = path / "summary.json"
            with writing(summary):
                summary.unlink(missing_ok=True)
        yield RunFolder.for_settings(paper, settings)


def reopened(federation: Federation, path: Path, rounds: int) -> bool:
    """Check that a run may go on with another number of rounds; say whether it was complete.

    Raises:
        UserError: it may not, or its checkpoint is damaged or of another run.
    """
    last = path / "checkpoints" / LAST
    if not last.is_file():
        return False
    run = FederatedRun(federation)
    run.load_plain(read_checkpoint(last)["federation"])
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
