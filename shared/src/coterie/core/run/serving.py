"""Use a trained run: measure it again, recommend to its users, adapt to someone new."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import Interactions, in_words
from coterie.core.data.sources.catalogue import load as load_data
from coterie.core.errors import UserError
from coterie.core.metrics.ranking import top_k
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
from coterie.core.run.recommendation_files import (
    Recommendations,
    check_out,
    write_recommendations,
)
from coterie.core.run.runfolder import RunFolder
from coterie.core.run.simulated import read_run
from coterie.core.settings.sections import DataSettings
from coterie.core.tensors.stacked import Ragged

_BATCH = 256  # users who are ranked at once


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
    experiment, module = _open_recommender(run)
    with computing_as(experiment.settings.engine):
        if new_user is not None:
            known, scores, notes = _of_newcomer(experiment, module, new_user)
        else:
            known, scores, notes = _of_user(experiment, module, str(user))
    data = experiment.interactions
    best = best_items(scores, Ragged.from_lists([known.tolist()]), top)[0]
    if not best:
        notes.append(f"nothing is left to recommend: all {data.n_items:,} items are consumed")
    rows = [
        {
            "rank": rank,
            "item": data.item_names[item],
            "title": data.titles[item] if data.titles else "",
            "score": score,
        }
        for rank, item, score in best
    ]
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
    experiment, module = _open_recommender(run)
    if out.resolve() == Path(experiment.settings.data.name).expanduser().resolve():
        raise UserError(f"{out} is the file that the run was trained on: choose another --out")
    with computing_as(experiment.settings.engine):
        table, served = _of_everybody(experiment, module, top)
    write_recommendations(out, table)
    return served


class Lists(NamedTuple):
    """Recommendations to some users of a run.

    Attributes:
        table: of those who have any.
        left_out: users, by number, who have none because they took no part, and why.
        finished: users, by number, who have none because they have consumed all that there is.
    """

    table: Recommendations
    left_out: dict[int, UserError]
    finished: list[int]


def lists_of(
    experiment: RecommendsToUsers[Any], module: FederatedRun, users: Sequence[int], top: int
) -> Lists:
    """Recommend to users of a run.

    Args:
        experiment: of the run, opened by `open_run`.
        module: its state.
        users: numbers, in the order of the table.
        top: how many items a user gets, at most.
    """
    data = experiment.interactions
    items = Ragged.from_pairs(*data.had(), data.n_users)
    found, batch = Lists(Recommendations(), {}, []), []
    for place, number in enumerate(users, 1):
        try:
            batch.append((number, experiment.scores(module, number)))
        except UserError as error:
            found.left_out[number] = error
        if batch and (len(batch) == _BATCH or place == len(users)):
            known = items.take(torch.tensor([user for user, _ in batch]))
            best = best_items(torch.cat([scores for _, scores in batch]), known, top)
            for (user, _), ranked in zip(batch, best, strict=True):
                for rank, item, score in ranked:
                    found.table.add(data.user_names[user], rank, data.item_names[item], score)
                if not ranked:
                    found.finished.append(user)
            batch = []
    return found


def _of_everybody(
    experiment: RecommendsToUsers[Any], module: FederatedRun, top: int
) -> tuple[Recommendations, Served]:
    users = experiment.interactions.n_users
    found = lists_of(experiment, module, range(users), top)
    left_out, finished = len(found.left_out), len(found.finished)
    if left_out == users:
        refusal = list(found.left_out.values())[-1]
        raise UserError(f"there is nobody to recommend to: {refusal}")
    return found.table, Served(users - left_out - finished, left_out, finished)


def _of_newcomer(
    experiment: RecommendsToUsers[Any], module: FederatedRun, path: Path
) -> tuple[Tensor, Tensor, list[str]]:
    """Give what someone new had, scores ``(1, n_items)`` and notes."""
    history = read_history(path, experiment.interactions, experiment.settings.data)
    return history.had, experiment.scores_for_newcomer(module, history.liked), history.notes


def _of_user(
    experiment: RecommendsToUsers[Any], module: FederatedRun, name: str
) -> tuple[Tensor, Tensor, list[str]]:
    """Do the same for a user of the run."""
    data = experiment.interactions
    number = user_number(name, data, experiment.settings.data)
    users, items = data.had()
    return items[users == number].unique(), experiment.scores(module, number), []


def best_items(scores: Tensor, known: Ragged, top: int) -> list[list[tuple[int, int, float]]]:
    """Rank, item and score of the best items that each user does not know, best first.

    Args:
        scores: ``(U, items)``; those of -inf are of items that nobody can score for the user.
        known: items that each of the U users has had.
        top: how many items a user gets, at most.
    """
    inside = known.values < scores.shape[1]
    unscored = scores == -torch.inf
    user, item = unscored.nonzero(as_tuple=True)
    rows = torch.cat([known.rows[inside], user])
    seen = Ragged.from_pairs(rows, torch.cat([known.values[inside], item]), len(known))
    scores = scores.masked_fill(unscored, 0.0)
    best = top_k(scores, min(top, scores.shape[1]), seen)
    values = scores.gather(1, best.clamp(min=0)).tolist()
    return [
        [
            (k, item, round(v, 4))
            for k, (item, v) in enumerate(zip(*row, strict=True), 1)
            if item >= 0
        ]
        for row in zip(best.tolist(), values, strict=True)
    ]


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
    experiment, module = _open_recommender(run)
    with computing_as(experiment.settings.engine):
        curve = experiment.attack(module, scales)
    rows = [{"noise": scale, **row} for scale, report in curve.items() for row in report.rows()]
    return rows, plot_curve(curve, run / "attack.png")


def _open_recommender(run: Path) -> tuple[RecommendsToUsers[Any], FederatedRun]:
    experiment, module = open_run(run)
    return check_recommends(experiment), module


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


def user_number(name: str, data: Interactions, rules: DataSettings) -> int:
    """Find the number of a user.

    Args:
        name: as in the data set.
        data: of the run.
        rules: section ``data`` of the run's settings.

    Raises:
        UserError: there is no such user, or filters left it out.
    """
    with suppress(ValueError):
        return data.user_names.index(name)
    some = f"({data.n_users} users, such as {', '.join(data.user_names[:3])})"
    if data.dropped and name in load_data(rules.name, rules.root, rules.columns).user_names:
        what = "; ".join(in_words(data.dropped))
        raise UserError(
            f"user '{name}' is in the data, but not in the run's after filtering {some}: {what}"
        )
    like = next((each for each in data.user_names if each.casefold() == name.casefold()), None)
    hint = f": did you mean '{like}'?" if like is not None else ""
    raise UserError(f"user '{name}' is not in the run's data after filtering {some}{hint}")
