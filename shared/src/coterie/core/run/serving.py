"""Use a trained run: measure it again, recommend to its users, adapt to someone new."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from coterie.core.data.sources.later_files import files_of
from coterie.core.errors import UserError
from coterie.core.privacy.attack import plot_curve
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.checkpoint import (
    LAST,
    check_data_there,
    check_settings,
    naming,
)
from coterie.core.run.driver import FederatedRun, computing_as
from coterie.core.run.experiment import Experiment, RecommendsToUsers
from coterie.core.run.histories import read_history
from coterie.core.run.recommendation_files import check_out, write_recommendations
from coterie.core.run.recommender import NEW, Recommender
from coterie.core.run.runfolder import RunFolder
from coterie.core.run.simulated import read_run


def open_run(
    run: Path,
    change: Callable[[Any], Any] | None = None,
    device: Literal["auto", "cpu"] = "cpu",
    checkpoint: str = LAST,
) -> tuple[Experiment[Any], FederatedRun]:
    """Load a run's data and the state of a checkpoint, by default the last one.

    The caller's process keeps its threads and kernels; who computes with the run uses
    `coterie.core.run.driver.computing_as` to have those of the run.

    Args:
        run: its folder.
        change: makes of the run's settings those that it is opened with; None takes them as they
            are.
        device: where to compute, wherever it was trained. The data are on the CPU, so to look into
            a run is easiest there.
        checkpoint: which one of the run.

    Raises:
        UserError: there is no such run, or its checkpoint is missing, damaged or of another run.
    """
    folder = RunFolder.open(run)
    path = folder.checkpoints / checkpoint
    if not path.is_file():
        raise UserError(f"{run} has no checkpoint {path}: train it first, or go on with --resume")
    saved = read_run(path)
    check_data_there(folder)
    settings = _here(folder) if change is None else change(_here(folder))
    settings = dataclasses.replace(
        settings, engine=dataclasses.replace(settings.engine, device=device)
    )
    experiment: Experiment[Any] = load(find_paper(folder.paper).experiment)(settings)
    with computing_as(settings.engine):
        module = FederatedRun(experiment.federation())
        with naming(folder.path):
            if change is None:
                check_settings(saved["federation"], module.federation)
            module.load_plain(saved["federation"])
    return experiment, module


def evaluate(run: Path) -> dict[str, float]:
    """Measure the newest block of a run again on its test data.

    Raises:
        UserError: as `open_run`.
    """
    experiment, module = open_run(run, device="auto")
    with computing_as(experiment.settings.engine):
        return module.retest()


def recommend(
    run: Path, *, user: str | None = None, new_user: Path | None = None, top: int = 10
) -> tuple[list[dict[str, Any]], list[str]]:
    """Recommend the best items that the user has not consumed yet.

    Consumed is all that stands in the data with the user, also what filters left out.

    Args:
        run: folder of a run.
        user: id of one of its users, as in the data set.
        new_user: the history of someone new, see `coterie.core.run.histories.read_history`, whose
            private parameters are fitted here with the public ones fixed; nothing is uploaded.
        top: how many.

    Returns:
        Rows ``rank, item, title, score``, best first; and what the user should know of them, a line
        each.

    Raises:
        UserError: the user or all items are unknown, or as `open_run`.
    """
    recommender = open_recommender(run)
    data, settings = recommender.data, recommender.experiment.settings
    with computing_as(settings.engine):
        if new_user is not None:
            history = read_history(new_user, data, settings.data)
            table, notes = recommender.for_newcomer(NEW, history, top), list(history.notes)
        else:
            table, notes = recommender.list_of(recommender.number(str(user)), top), []
    rows = recommender.rows(table)
    if not rows:
        notes.append(f"nothing is left to recommend: all {data.n_items:,} items are consumed")
    return rows, notes


class Served(NamedTuple):
    """How many users of a run were served.

    Attributes:
        users: who have recommendations.
        left_out: who have none because they took no part.
        finished: who have none because they have consumed all that there is.
    """

    users: int
    left_out: int
    finished: int


def recommend_all(run: Path, out: Path, top: int = 10) -> Served:
    """Recommend to all users of a run, into a file with the columns user, rank, item and score.

    Args:
        run: its folder.
        out: the file, in the format of its suffix, see
            `coterie.core.run.recommendation_files.write_recommendations`; all or nothing.
        top: how many items a user gets, at most.

    Raises:
        UserError: nobody took part, the file cannot be written or is the run's own, or as
            `open_run`.
    """
    check_out(out)
    recommender = open_recommender(run)
    settings, users = recommender.experiment.settings, recommender.data.n_users
    if out.resolve() in [path.resolve() for path in files_of(settings.data)]:
        raise UserError(f"{out} is the file that the run was trained on: choose another --out")
    with computing_as(settings.engine):
        found = recommender.lists(range(users), top)
    left_out, finished = len(found.left_out), len(found.finished)
    if left_out == users:
        refusal = list(found.left_out.values())[-1]
        raise UserError(f"there is nobody to recommend to: {refusal}")
    write_recommendations(out, found.table)
    return Served(users - left_out - finished, left_out, finished)


def attack(run: Path, scales: Sequence[float]) -> tuple[list[dict[str, Any]], Path | None]:
    """Measure how well a server guesses positive items from one upload of a trained run.

    Args:
        run: folder of a run.
        scales: of the Laplace noise that the uploads hide behind; 0 = none.

    Returns:
        Rows ``noise, scorer, auc, precision, recall``, and the PNG drawn into the run's
        folder, if it can be.

    Raises:
        UserError: as `open_run`.
    """
    experiment, module = open_run(run)
    recommends = check_recommends(experiment)
    with computing_as(experiment.settings.engine):
        curve = recommends.attack(module, scales)
    rows = [{"noise": scale, **row} for scale, report in curve.items() for row in report.rows()]
    return rows, plot_curve(curve, run / "attack.png")


def open_recommender(run: Path) -> Recommender:
    """Open a run that recommends.

    Raises:
        UserError: it does not, or as `open_run`.
    """
    experiment, module = open_run(run)
    return Recommender(check_recommends(experiment), module)


def check_recommends(experiment: Experiment[Any]) -> RecommendsToUsers[Any]:
    """Refuse what has no items.

    Raises:
        UserError: it classifies samples.
    """
    if not isinstance(experiment, RecommendsToUsers):
        raise UserError(
            f"{experiment.paper} classifies samples: there are no items to recommend or to attack"
        )
    return experiment


def _here(folder: RunFolder) -> Any:
    """Settings of a run with ``run.out`` where the folder is now, seen from anywhere."""
    path = folder.path.absolute()
    if path.parent.name != folder.paper:
        return folder.settings
    run = dataclasses.replace(folder.settings.run, out=str(path.parent.parent))
    return dataclasses.replace(folder.settings, run=run)
