"""Open a run at its tested round, and find whose state is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.checkpoint import BEST, LAST
from coterie.core.run.driver import FederatedRun, computing_as
from coterie.core.run.experiment import Experiment, RecommendsToUsers
from coterie.core.run.exported import Asked, Exported
from coterie.core.run.recommender import Recommender
from coterie.core.run.runfolder import RunFolder
from coterie.core.run.serving import open_run


def of_run(run: Path, asked: Asked, kept: Path | None = None) -> Exported:
    """Give what a run's experiment gives of its tested round.

    Args:
        run: its folder.
        asked: whose own state is wanted too.
        kept: what another process kept of the run; runs of most papers have none.

    Raises:
        UserError: there is no such run, client or user, or nothing can be given.
    """
    if kept is not None:
        raise UserError("--state is of a model that is split between machines: leave it out")
    folder = RunFolder.open(run)
    tested = load(find_paper(folder.paper).experiment).tested
    # Without a best round, as where nothing was measured, the last one is what there is.
    there = (folder.checkpoints / tested).is_file()
    experiment, module = open_run(run, checkpoint=tested if there else LAST)
    # The last one has what its clients kept of the best round, where an experiment tests that.
    _check_tested(folder, module.round, there and tested == BEST)
    with computing_as(experiment.settings.engine):
        return of_experiment(experiment, module, asked)


def _check_tested(folder: RunFolder, number: int, best: bool) -> None:
    """Refuse the checkpoint of another round than the run has tested."""
    if not folder.finished or not best:
        return
    tested = folder.read_json("summary.json")["metrics"].get("test/best_round", number)
    if tested != number:
        raise UserError(
            f"{folder.path} was tested in round {tested:g}, and its best.ckpt is of round "
            f"{number}: put back the one of that round"
        )


def of_experiment(experiment: Experiment[Any], module: FederatedRun, asked: Asked) -> Exported:
    """Give what an opened run gives; see `of_run`."""
    if asked.user is None:
        return experiment.exported(module, asked)
    if not isinstance(experiment, RecommendsToUsers):
        raise UserError(f"the clients of {experiment.paper} are no users: say --client NUMBER")
    number = Recommender(experiment, module).number(asked.user)
    return experiment.exported(module, replace(asked, client=number))
