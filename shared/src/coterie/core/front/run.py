"""A run as an object: its numbers as data frames, its recommendations, its end and its going on."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coterie.core.errors import UserError
from coterie.core.front.given import computing, configured, in_python, trained
from coterie.core.front.recommended import check_top, frame_of, numbers_of
from coterie.core.registry.papers import Paper, find_paper, heavy
from coterie.core.run.runfolder import RunFolder, further, paper_of, stored_settings
from coterie.core.settings.base import BaseSettings

if TYPE_CHECKING:
    import pandas as pd
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.loggers import Logger
    from matplotlib.figure import Figure

    from coterie.core.front.newcomers import Histories
    from coterie.core.run.driver import FederatedRun
    from coterie.core.run.experiment import Experiment
    from coterie.core.run.recommender import Recommender
    from coterie.core.run.replay import Replay

_RESUMED = ("quiet", "callbacks", "loggers")
_SHOWN = 8  # metrics that the short form of a run has


class Run:
    """A run of a paper in its folder; `coterie.train` and `coterie.load` give it.

    It holds nothing but the folder's path, and reads what it is asked for when it is asked: a run
    that goes on elsewhere is seen growing.

    Args:
        folder: of the run.

    Attributes:
        folder: of the run, absolute.
        paper: name of the paper.

    Raises:
        UserError: there is no run in the folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        if not isinstance(folder, str | os.PathLike):
            raise UserError(f"a run is opened by the path of its folder, not {folder!r:.40}")
        path = Path(folder).expanduser()
        with in_python():
            self.paper = paper_of(path).name
        self.folder = path.absolute()
        self._opened: tuple[object, Experiment[Any], FederatedRun] | None = None
        self._recommends: Recommender | None = None

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.folder / "summary.json").is_file()

    @property
    def config(self) -> BaseSettings:
        """All settings of the run, as `coterie.settings` makes them."""
        found: BaseSettings = RunFolder.open(self.folder).settings
        return found

    @property
    def metrics(self) -> dict[str, float]:
        """The final numbers by name, of a finished run; NaN for what nobody could measure.

        Raises:
            UserError: it is unfinished.
        """
        found = self._final("summary.json")["metrics"]
        return {name: float("nan") if value is None else value for name, value in found.items()}

    @property
    def notes(self) -> list[str]:
        """What else one should know of a finished run, in a line each.

        Raises:
            UserError: it is unfinished.
        """
        return list(self._final("summary.json")["notes"])

    @property
    def history(self) -> pd.DataFrame:
        """What was measured in every round so far, of all blocks: ``round``, ``block`` and numbers.

        NaN stands for what a round did not measure. Also of an unfinished run.

        Raises:
            UserError: ``metrics.csv`` is damaged.
        """
        import pandas as pd

        csv = heavy("coterie.core.run.metrics_file")
        columns, lines = csv.read_metrics(self.folder)
        try:
            table = {name: [float(line[name] or "nan") for line in lines] for name in columns}
        except ValueError as error:
            raise UserError(
                f"{self.folder / 'metrics.csv'} is no table of metrics: {error}"
            ) from None
        frame = pd.DataFrame(table or {name: [] for name in csv.FIRST_COLUMNS}, dtype="float64")
        return frame.astype(dict.fromkeys(csv.FIRST_COLUMNS, "int64"))

    @property
    def clients(self) -> pd.DataFrame:
        """The final test of every client, one a row.

        Where clients are users, ``user`` is their id in the data.

        Raises:
            UserError: the run is unfinished, or measures nothing client by client.
        """
        import pandas as pd

        if not self.finished:
            raise self._unfinished()
        if (self.folder / "clients.json").is_file():
            return pd.DataFrame(self._final("clients.json"))
        experiment, module = self._open()
        measured = {
            name.removeprefix("test/"): pd.Series(values.tolist(), index=ids.tolist())
            for name, (ids, values) in module.client_results.items()
        }
        if not measured:
            raise UserError(f"{self.paper} measures nothing client by client")
        frame = pd.DataFrame(measured).rename_axis("client").reset_index()
        if isinstance(experiment, heavy("coterie.core.run.experiment").RecommendsToUsers):
            names = experiment.interactions.user_names
            frame.insert(1, "user", [names[client] for client in frame["client"]])
        return frame

    @property
    def ledger(self) -> pd.DataFrame:
        """What crossed the boundary of the clients, of a finished run: bytes by message and field.

        Raises:
            UserError: it is unfinished.
        """
        import pandas as pd

        return pd.DataFrame(self._final("ledger.json"))

    def recommend(
        self, users: str | int | Iterable[str | int] | None = None, top: int = 10
    ) -> pd.DataFrame:
        """Recommend the best items that users of the run have not had yet.

        Users of the data who took no part in training (of PPLR the public ones) have no rows, and a
        warning says how many and why; so have users who have had all items.

        Args:
            users: ids as in the data, or one; None for everybody.
            top: how many items a user gets, at most.

        Returns:
            Columns user, rank (from 1), item, title (empty where the data have none) and score.

        Raises:
            UserError: a user is unknown, none of the users took part, or the paper recommends
                nothing.
        """
        check_top(top)
        with in_python():
            recommender = self._recommender()
            numbers = numbers_of(users, recommender)
            with computing(recommender.experiment.settings.engine):
                lists = recommender.lists(numbers, top)
        names = recommender.data.user_names
        if lists.left_out:
            first, why = next(iter(lists.left_out.items()))
            who = f"{len(lists.left_out)} of {len(numbers)} users have no list, as '{names[first]}'"
            if len(lists.left_out) == len(numbers):
                raise UserError(f"{who}: {why}")
            warnings.warn(f"{who}: {why}", stacklevel=2)
        if lists.finished:
            warnings.warn(
                f"nothing is left to recommend to {len(lists.finished)} of {len(numbers)} users, "
                f"as '{names[lists.finished[0]]}': they have had all items",
                stacklevel=2,
            )
        return frame_of([lists.table], recommender)

    def recommend_new(self, history: Histories, top: int = 10) -> pd.DataFrame:
        """Recommend to people who are not in the data, by what they had.

        Their private parameters are fitted here, with the public ones fixed; nothing is uploaded.
        Items that the run does not know are left out, and a warning names them.

        Args:
            history: ids of items, the oldest first; or such lists by person, as ``{"ann": [...]}``;
                or a data frame with the columns ``item`` (ids) or ``title``, and if need be
                ``rating`` and ``user``; or the path of such a file of one person.
            top: how many items a person gets, at most.

        Returns:
            Columns as of `recommend`; a person without a name is called ``new``.

        Raises:
            UserError: no item of a history is known, or the paper recommends nothing, or not to
                people who are new.
        """
        check_top(top)
        with in_python():
            recommender = self._recommender()
            with computing(recommender.experiment.settings.engine):
                tables, notes = heavy("coterie.core.front.newcomers").recommended(
                    recommender, history, top
                )
        for note in notes:
            warnings.warn(note, stacklevel=2)
        return frame_of(tables, recommender)

    def evaluate(self, split: Literal["test"] = "test") -> dict[str, float]:
        """Measure the newest block of the run again, as it is by now, finished or not.

        Args:
            split: ``test``; validation is measured in training, and is in `history`.

        Raises:
            UserError: another split is asked for, or the run has no checkpoint.
        """
        if split != "test":
            raise UserError(
                f"split '{split}' cannot be measured again, only 'test': what rounds were "
                "validated by is in run.history, in the columns that begin with eval/"
            )
        with in_python(), computing(self.config.engine):
            found: dict[str, float] = heavy("coterie.core.run.serving").evaluate(self.folder)
        return found

    def replay(self, *, round: int, client: int) -> Replay:
        """Run a round again, and look at what one client received, did, kept and sent in it.

        The round is compared with the transcript of the run, or without one
        (``logger={"transcript": True}``) with its ``metrics.csv``; one that differs is refused.

        Args:
            round: over all blocks, from 1.
            client: its number, as in `clients`.

        Returns:
            ``received`` and ``sent``, messages by step; ``before`` and ``after``, private state;
            all of them the paper's own dataclasses of tensors, of this client alone. ``turns`` has
            every ask, ``save(folder)`` writes the tensors as safetensors.

        Raises:
            UserError: there is no such round or client, the client took no part, settings or data
                are others by now, or the round that was run is not the one that was trained.
        """
        numbers = {"round": round, "client": client}
        for name, number in numbers.items():
            if isinstance(number, bool) or not hasattr(number, "__index__"):
                raise UserError(f"'{name}' must be a whole number, not {number!r}")
        with in_python():
            replay = heavy("coterie.core.run.replay").replay
            found: Replay = replay(self.folder, int(round), int(client))
        return found

    def plot(self) -> Figure:
        """Draw the curves of all rounds so far, as ``curves.png``: a ring marks the best ones.

        Returns:
            A figure of matplotlib that a notebook shows; ``run.plot().savefig("curves.svg")``
            writes it.

        Raises:
            UserError: no round has been run, or there is nothing to see in those that were.
        """
        dashboard = heavy("coterie.core.run.dashboard")
        draw = dashboard.drawing_again(self.folder, self._paper, dashboard.titled(self.config))
        if draw is None:
            raise UserError(f"{self.folder} has nothing to draw: no round, or no number changes")
        figure: Figure = heavy("coterie.core.figures").shown(draw)
        return figure

    def resume(
        self,
        *,
        quiet: bool = False,
        callbacks: Sequence[Callback] = (),
        loggers: Sequence[Logger] = (),
        **changes: Any,
    ) -> Run:
        """Go on with the run from its last whole round, to the numbers of one never interrupted.

        A finished run goes on with more rounds if its data are one block, or with the rows of more
        data, which came later, as one more block if its paper trains on blocks.

        Args:
            quiet: print neither tables nor progress.
            callbacks: the objects that `coterie.train` was given, made as they were.
            loggers: of Lightning; they need not be those of before.
            changes: settings that may change: ``rounds``, ``data`` for what came later, and those
                of ``run``, ``logger``, ``trainer`` and ``engine`` that change no number.

        Returns:
            The run.

        Raises:
            UserError: another setting is to change, the folder is not where a run's is, or a
                callback is missing that has a state, as early stopping has.
        """
        paper, out = self._paper, self.folder.parent.parent
        if self.folder.parent.name != paper.name:
            raise UserError(
                f"{self.folder} cannot go on there: move it to "
                f"{out / paper.name / self.folder.name}"
            )
        with in_python():
            base, given = stored_settings(self.folder), {**changes, "run.resume": True}
            wanted = configured(paper, given, "resume()", base=base, also=_RESUMED).settings
            wanted = further(self.folder, wanted)
        if (wanted.run.folder / paper.name / str(wanted.run.name)) != self.folder:
            raise UserError("a run goes on in its own folder: leave out and name out of 'run'")
        return type(self)(trained(paper, wanted, quiet, callbacks, loggers))

    def __repr__(self) -> str:
        numbers = (f"  {name}  {value}".rstrip() for name, value in self._numbers())
        lines = [self._title(), *numbers]
        return "\n".join([*lines, f"  in {self.folder}"])

    def _repr_html_(self) -> str:
        rows = (
            f"<tr><th style='text-align:left'>{escape(name.strip())}</th><td>{value}</td></tr>"
            for name, value in self._numbers()
        )
        head = f"<b>{escape(self._title())}</b><br><code>{escape(str(self.folder))}</code>"
        return f"{head}<table>{''.join(rows)}</table>"

    def _title(self) -> str:
        settings = self.config
        about = f"{self.paper}: {settings.method} on {settings.data.name}, seed {settings.seed}"
        return f"{about}, " + ("finished" if self.finished else f"unfinished, {self._rounds()}")

    def _numbers(self) -> list[tuple[str, str]]:
        """The first metrics as they are printed; none of an unfinished run."""
        found = sorted(self.metrics.items(), key=_by_weight) if self.finished else []
        width = max((len(name) for name, _ in found[:_SHOWN]), default=0)
        more = [(f"and {len(found) - _SHOWN} more", "")] if len(found) > _SHOWN else []
        return [(f"{name:<{width}}", f"{value:.4g}") for name, value in found[:_SHOWN]] + more

    @property
    def _paper(self) -> Paper:
        return find_paper(self.paper)

    def _rounds(self) -> str:
        done = len(heavy("coterie.core.run.metrics_file").read_metrics(self.folder)[1])
        return f"{done} round{'s' * (done != 1)} done"

    def _unfinished(self) -> UserError:
        return UserError(
            f"{self.folder} is unfinished, {self._rounds()}: say run.resume() to go on; "
            "run.history has its rounds"
        )

    def _final(self, name: str) -> Any:
        """Read a file that a run has from its end on."""
        if not self.finished:
            raise self._unfinished()
        return RunFolder.open(self.folder).read_json(name)

    def _recommender(self) -> Recommender:
        experiment, module = self._open()
        kept = self._recommends
        if kept is None or kept.module is not module:
            recommends = heavy("coterie.core.run.serving").check_recommends(experiment)
            kept = heavy("coterie.core.run.recommender").Recommender(recommends, module)
            self._recommends = kept
        return kept

    def _open(self) -> tuple[Experiment[Any], FederatedRun]:
        """Load data and state; kept until the checkpoint is another one."""
        serving = heavy("coterie.core.run.serving")
        path = self.folder / "checkpoints" / serving.LAST
        stamp = path.stat() if path.is_file() else None
        now = stamp and (stamp.st_mtime_ns, stamp.st_size, stamp.st_ino)
        if self._opened is None or self._opened[0] != now:
            with computing(self.config.engine):
                self._opened = (now, *serving.open_run(self.folder))
        return self._opened[1:]


def _by_weight(metric: tuple[str, float]) -> tuple[bool, bool]:
    """What is tested of the whole comes before what is of a block, or of validation."""
    name, _ = metric
    return not name.startswith("test/"), "/block" in name
