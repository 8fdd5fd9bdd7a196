"""Train a paper from Python, and open what was trained."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coterie.core.errors import UserError
from coterie.core.front.computing import in_python, trained
from coterie.core.front.given import Configs, Data, Files, configured
from coterie.core.front.run import Run
from coterie.core.registry.papers import Paper, find_paper
from coterie.core.settings.base import BaseSettings
from coterie.core.terminal import console

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.loggers import Logger

_NAMES = ("settings", "config", "preset", "variant", "out", "name", "quiet", "callbacks", "loggers")


def train(
    paper: str,
    settings: BaseSettings | None = None,
    *,
    data: Data | None = None,
    config: Configs = (),
    preset: str | None = None,
    variant: str | None = None,
    out: str | os.PathLike[str] | None = None,
    name: str | None = None,
    quiet: bool = False,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    **changes: Any,
) -> Run:
    """Train a paper as ``coterie train`` does, with the same numbers, in a new folder.

    Settings are those of ``coterie train PAPER --help``: ``--rounds 5`` is ``rounds=5``, and
    ``--kd.strength .03`` is ``kd={"strength": .03}``.

    Ctrl-C, or the stop button of a notebook, ends training: a warning tells so, and the run that
    is returned is unfinished; `Run.resume` goes on with it. What belongs to the process, such as
    torch's threads, is afterwards as it was. Of several threads one trains at a time.

    Args:
        paper: its name, see `coterie.papers`.
        settings: all settings as one object, see `coterie.settings`; what is given beside it wins.
        data: name of a data set, path of a file, a data frame or `datasets.Dataset`, or a dict as
            ``{"path": "my.csv", "columns": {"user": "who", "item": "what"}}``. Of an object a copy
            is kept below ``$COTERIE_DATA``, from which the run can go on.
        config: YAML files, also the ``config.yaml`` of a run's folder; the later ones win.
        preset: name of a preset, as ``smoke`` for a run of seconds.
        variant: name of a tuned configuration, or ``none``.
        out: folder of all runs; default is ``runs`` in the folder where Python runs.
        name: of this run's folder; by default made of data, method and seed, and numbered.
        quiet: print neither tables nor progress.
        callbacks: of Lightning, as `lightning.pytorch.callbacks.EarlyStopping`; they may monitor
            every column of ``metrics.csv``. A number of your own for every round is a
            `coterie.core.training.callbacks.notes.Note`.
        loggers: of Lightning, besides those of the section ``logger``.
        changes: more settings by name; a section is a dict, or its dataclass.

    Raises:
        UserError: a paper, a setting or the data are wrong; one line that says what to do.

    Example:
        >>> import coterie
        >>> run = coterie.train("f3crec", preset="smoke", quiet=True)  # doctest: +SKIP
        >>> run.recommend(users=["1"], top=3)  # doctest: +SKIP
    """
    found = find_paper(paper)
    short = {"data": data, "run.out": out, "run.name": name}
    given = {**{key: value for key, value in short.items() if value is not None}, **changes}
    wanted = _wanted(found, settings, given, Files(config, preset, variant), quiet)
    return Run(trained(found, wanted, quiet, callbacks, loggers))


def load(folder: str | os.PathLike[str]) -> Run:
    """Open the folder of a run, whoever trained it: Python or the command line.

    Args:
        folder: of the run, as ``runs/pplr/sample-pplr-tiny-item-seed0``.

    Raises:
        UserError: it is no folder of a run; the nearest one is named.
    """
    return Run(folder)


def _wanted(paper: Paper, own: Any, given: dict[str, Any], files: Files, quiet: bool) -> Any:
    """Settings of a new run; say which tuned ones take part, as the command line does.

    Raises:
        UserError: they do not fit, or are of a run that goes on.
    """
    if own is not None and files != Files():
        raise UserError(
            "a settings object is complete: give config, preset and variant to coterie.settings, "
            "which makes it"
        )
    with in_python():
        found = configured(paper, given, "train()", files, own=own, also=_NAMES)
    if found.settings.run.resume:
        raise UserError("'run.resume' is not for train(): say coterie.load(folder).resume()")
    if found.variants and not quiet:
        names = ", ".join(f"configs/{paper.name}/{name}.yaml" for name in found.variants)
        console(soft_wrap=True).print(f"Settings: {names} (variant='none' for the general ones)")
    return found.settings
