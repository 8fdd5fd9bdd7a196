"""Use a trained run: measure it again, recommend to its users, adapt to someone new."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.core.callbacks.checkpoints import LAST, read_checkpoint
from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError, nearest
from coterie.core.files import write_text
from coterie.core.kernels import switch
from coterie.core.metrics.ranking import top_k
from coterie.core.privacy.attack import plot_curve
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.driver import FederatedRun
from coterie.core.run.experiment import Experiment, RecommendsToUsers
from coterie.core.run.runfolder import RunFolder
from coterie.core.tensors.ragged import Ragged

_BATCH = 256  # users who are ranked at once


def open_run(
    run: Path,
    change: Callable[[Any], Any] | None = None,
    device: Literal["auto", "cpu"] = "cpu",
) -> tuple[Experiment[Any], FederatedRun]:
    """Load a run's data and the state of its last checkpoint.

    Args:
        run: its folder.
        change: makes of the run's settings those that it is opened with; None takes them as they
            are.
        device: where to compute, wherever it was trained. The data are on the CPU, so to look into
            a run is easiest there.

    Raises:
        UserError: there is no such run, or its checkpoint is missing, damaged or of another run.
    """
    folder = RunFolder.open(run)
    path = folder.checkpoints / LAST
    if not path.is_file():
        raise UserError(f"{run} has no checkpoint {path}: train it first, or go on with --resume")
    saved = read_checkpoint(path)
    settings = _here(folder) if change is None else change(_here(folder))
    torch.set_num_threads(settings.engine.threads)
    switch.allow(settings.engine.kernels == "auto")
    settings = dataclasses.replace(
        settings, engine=dataclasses.replace(settings.engine, device=device)
    )
    experiment: Experiment[Any] = load(find_paper(folder.paper).experiment)(settings)
    module = FederatedRun(experiment.federation())
    module.load_plain(saved["federation"])
    return experiment, module


def evaluate(run: Path) -> dict[str, float]:
    """Measure the newest block of a run again on its test data.

    Raises:
        UserError: as `open_run`.
    """
    _, module = open_run(run, device="auto")
    return module.retest()


def recommend(
    run: Path, *, user: str | None = None, new_user: Path | None = None, top: int = 10
) -> tuple[list[dict[str, Any]], list[str]]:
    """Recommend the best items that the user has not consumed yet.

    Args:
        run: folder of a run.
        user: id of one of its users, as in the data set.
        new_user: file with a column ``item`` (ids) or ``title``: the history of someone new, whose
            private parameters are fitted here with the public ones fixed; nothing is uploaded.
        top: how many.

    Returns:
        Rows ``rank, item, title, score``, best first; and what the user should know of them, a line
        each.

    Raises:
        UserError: the user or all items are unknown, or as `open_run`.
    """
    experiment, module = _open_recommender(run)
    data, notes = experiment.interactions, []
    if new_user is not None:
        known, unknown = read_history(new_user, data)
        if unknown:
            some = ", ".join(name[:40] for name in unknown[:3])
            these = some if len(unknown) <= 3 else f"{some}, ..."
            notes.append(f"{len(unknown)} of {len(unknown) + len(known)} items unknown: {these}")
        scores = experiment.scores_for_newcomer(module, known)
    else:
        number = _user_number(str(user), data)
        known = data.item[data.user == number].unique()
        scores = experiment.scores(module, number)
    rows = [
        {
            "rank": rank,
            "item": data.item_names[item],
            "title": data.titles[item] if data.titles else "",
            "score": score,
        }
        for rank, item, score in _best(scores, Ragged.from_lists([known.tolist()]), top)[0]
    ]
    return rows, notes


def recommend_all(run: Path, out: Path, top: int = 10) -> tuple[int, int]:
    """Recommend to all users of a run, into a CSV file ``user,rank,item,score``, all or nothing.

    Returns:
        How many users have recommendations, and how many have none because they took no part.

    Raises:
        UserError: nobody took part, the file cannot be written, or as `open_run`.
    """
    experiment, module = _open_recommender(run)
    data = experiment.interactions
    items = Ragged.from_pairs(data.user, data.item, data.n_users)
    lines, batch = io.StringIO(newline=""), []
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["user", "rank", "item", "score"])
    served, refusal = 0, None
    for number in range(data.n_users):
        try:
            batch.append((number, experiment.scores(module, number)))
        except UserError as error:
            refusal = error
        if batch and (len(batch) == _BATCH or number + 1 == data.n_users):
            users = torch.tensor([user for user, _ in batch])
            found = _best(torch.cat([scores for _, scores in batch]), items.take(users), top)
            for user, best in zip(users.tolist(), found, strict=True):
                name = data.user_names[user]
                writer.writerows([name, rank, data.item_names[i], s] for rank, i, s in best)
            served, batch = served + len(batch), []
    if not served:
        raise UserError(f"there is nobody to recommend to: {refusal}")
    write_text(out, lines.getvalue())
    return served, data.n_users - served


def _best(scores: Tensor, known: Ragged, top: int) -> list[list[tuple[int, int, float]]]:
    """Rank, item and score of the best items that each user does not know, best first."""
    inside = known.values < scores.shape[1]
    seen = Ragged.from_pairs(known.rows[inside], known.values[inside], len(known))
    best = top_k(scores, top, seen)
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
    curve = experiment.attack(module, scales)
    rows = [{"noise": scale, **row} for scale, report in curve.items() for row in report.rows()]
    return rows, plot_curve(curve, run / "attack.png")


def read_history(path: Path, data: Interactions) -> tuple[Tensor, list[str]]:
    """Read the items of a new user.

    Returns:
        ``(n,)`` int64 item numbers without repetition, and what is unknown to the run.

    Raises:
        UserError: the file has no column item or title, is malformed, or none of them is known.
    """
    from coterie.core.data.sources.own_file import read_columns  # pyarrow is heavy

    table = read_columns(path, ("item", "title"), remedy="correct or delete the line")
    for column, names in (("item", data.item_names), ("title", data.titles or [])):
        if column in table.names and names:
            number = {name: place for place, name in enumerate(names)}
            wanted = list(dict.fromkeys(w for w in table.strings(column) if w.strip()))
            places = [number.get(word, number.get(word.strip())) for word in wanted]
            found = sorted({place for place in places if place is not None})
            if found:
                pairs = zip(wanted, places, strict=True)
                return torch.tensor(found), [word for word, place in pairs if place is None]
            hint = nearest(wanted[0], number) if wanted else "the column is empty"
            if len(hint) > 200:
                hint = "see the item ids of the data set"
            raise UserError(f"{path}: none of its {column}s is known to the run: {hint}")
    columns = ", ".join(table.names[:20])
    raise UserError(f"{path} has the columns {columns}: it needs one named item (ids) or title")


def _open_recommender(run: Path) -> tuple[RecommendsToUsers[Any], FederatedRun]:
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
