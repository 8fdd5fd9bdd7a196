"""Use a trained run: measure it again, recommend to its users, adapt to someone new."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from coterie.core.callbacks.checkpoints import LAST, read_checkpoint
from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError, nearest
from coterie.core.metrics.ranking import top_k
from coterie.core.privacy.attack import plot_curve
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.experiment import Experiment, RecommendsToUsers
from coterie.core.run.rounds import FederatedModule
from coterie.core.run.runfolder import RunFolder


def open_run(
    run: Path, change: Callable[[Any], Any] | None = None
) -> tuple[Experiment[Any], FederatedModule]:
    """Load a run's data and the state of its last checkpoint.

    Args:
        run: its folder.
        change: makes of the run's settings those that it is opened with; None takes them as they
            are.

    Raises:
        UserError: there is no such run, or its checkpoint is missing, damaged or of another run.
    """
    folder = RunFolder.open(run)
    settings = _here(folder) if change is None else change(_here(folder))
    experiment: Experiment[Any] = load(find_paper(folder.paper).experiment)(settings)
    module = FederatedModule(experiment.federation())
    path = folder.checkpoints / LAST
    if not path.is_file():
        raise UserError(f"{run} has no checkpoint {path}: train it first, or go on with --resume")
    module.on_load_checkpoint(read_checkpoint(path))
    return experiment, module


def evaluate(run: Path) -> dict[str, float]:
    """Measure the newest block of a run again on its test data.

    Raises:
        UserError: as `open_run`.
    """
    _, module = open_run(run)
    return module.retest()


def recommend(
    run: Path, *, user: str | None = None, new_user: Path | None = None, top: int = 10
) -> list[dict[str, Any]]:
    """Recommend the best items that the user has not consumed yet.

    Args:
        run: folder of a run.
        user: id of one of its users, as in the data set.
        new_user: CSV with a column ``item`` (ids) or ``title``: the history of someone new, whose
            private parameters are fitted here with the public ones fixed; nothing is uploaded.
        top: how many.

    Returns:
        Rows ``rank, item, title, score``, best first.

    Raises:
        UserError: the user or an item is unknown, or as `open_run`.
    """
    experiment, module = _open_recommender(run)
    data = experiment.interactions
    if new_user is not None:
        known = read_history(new_user, data)
        scores = experiment.scores_for_newcomer(module, known)
    else:
        number = _user_number(str(user), data)
        scores = experiment.scores(module, number)
        known = data.item[data.user == number].unique()
    known = known[known < scores.shape[1]]
    seen = torch.zeros_like(scores, dtype=torch.bool)
    seen[0, known] = True
    best = top_k(scores, top, seen)[0]
    return [
        {
            "rank": rank,
            "item": data.item_names[item],
            "title": data.titles[item] if data.titles else "",
            "score": round(float(scores[0, item]), 4),
        }
        for rank, item in enumerate(best[best >= 0].tolist(), start=1)
    ]


def attack(run: Path, scales: Sequence[float]) -> tuple[list[dict[str, Any]], Path]:
    """Measure how well a server guesses positive items from one upload of a trained run.

    Args:
        run: folder of a run.
        scales: of the Laplace noise that the uploads hide behind; 0 = none.

    Returns:
        Rows ``noise, scorer, auc, precision, recall``, and the PNG drawn into the run's folder.

    Raises:
        UserError: as `open_run`.
    """
    experiment, module = _open_recommender(run)
    curve = experiment.attack(module, scales)
    rows = [{"noise": scale, **row} for scale, report in curve.items() for row in report.rows()]
    return rows, plot_curve(curve, run / "attack.png")


def read_history(path: Path, data: Interactions) -> Tensor:
    """Read the items of a new user, ``(n,)`` int64 item numbers without repetition.

    Raises:
        UserError: the file is not a CSV with a column item or title, or none of them is known.
    """
    try:
        table = pd.read_csv(path, dtype=str, skipinitialspace=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as CSV: {error}") from error
    for column, names in (("item", data.item_names), ("title", data.titles or [])):
        if column in table.columns and names:
            number = {name: place for place, name in enumerate(names)}
            wanted = table[column].dropna().tolist()
            found = sorted({number[name] for name in wanted if name in number})
            if found:
                return torch.tensor(found)
            hint = nearest(str(wanted[0]), number) if wanted else "the column is empty"
            if len(hint) > 200:
                hint = "see the item ids of the data set"
            raise UserError(f"{path}: none of its {column}s is known to the run: {hint}")
    raise UserError(
        f"{path} has the columns {', '.join(table.columns)}: it needs one named item (ids) or title"
    )


def _open_recommender(run: Path) -> tuple[RecommendsToUsers[Any], FederatedModule]:
    experiment, module = open_run(run)
    if not isinstance(experiment, RecommendsToUsers):
        paper = RunFolder.open(run).paper
        raise UserError(f"{paper} classifies samples: there are no items to recommend or to attack")
    return experiment, module


def _here(folder: RunFolder) -> Any:
    """Settings of a run with ``run.out`` where the folder is now, seen from anywhere."""
    path = folder.path.absolute()
    if path.parent.name != folder.paper:
        return folder.settings
    run = dataclasses.replace(folder.settings.run, out=str(path.parent.parent))
    return dataclasses.replace(folder.settings, run=run)


def _user_number(name: str, data: Interactions) -> int:
    try:
        return data.user_names.index(name)
    except ValueError:
        raise UserError(
            f"user '{name}' is not in the run's data after filtering "
            f"({data.n_users} users, such as {', '.join(data.user_names[:3])})"
        ) from None
