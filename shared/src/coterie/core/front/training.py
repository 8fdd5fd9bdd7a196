"""Train a paper from Python, and open what was trained."""

from __future__ import annotations

import os
from typing import Any

from coterie.core.errors import UserError
from coterie.core.front.computing import in_python, trained
from coterie.core.front.given import Configs, Data, Files, configured
from coterie.core.front.run import Run
from coterie.core.registry.papers import Paper, find_paper
from coterie.core.settings.base import BaseSettings
from coterie.core.settings.configuration import Configuration
from coterie.core.terminal import console, silenced

_NAMES = ("settings", "config", "preset", "variant", "out", "name", "quiet")


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
    **changes: Any,
) -> Run:
    """Train a paper; the same as ``coterie train``, with the same numbers.

    Every call makes a new run in a folder ``<out>/<paper>/<name>`` of its own. Settings are those
    of ``coterie train PAPER --help``: ``--rounds 5`` is ``rounds=5``, and ``--kd.strength .03`` is
    ``kd={"strength": .03}``.

    Ctrl-C, or the stop button of a notebook, ends training: a warning tells so, and the run that
    is returned is unfinished (`Run.finished`); `Run.resume` goes on with it. Threads of torch and
    whatever else belongs to the process are afterwards as they were before; of several threads
    that train, one does at a time.

    Args:
        paper: its name, see `coterie.papers`.
        settings: all settings as one object, see `coterie.settings`; what is given beside them
            wins. Without it, they are those that the paper has for the data.
        data: name of a data set, path of a file, or a dict as ``{"path": "my.csv", "columns":
            {"user": "who", "item": "what"}}``.
        config: YAML files, also the ``config.yaml`` of a run's folder; the later ones win.
        preset: name of a preset, as ``smoke`` for a run of seconds.
        variant: name of a tuned configuration, or ``none``.
        out: folder of all runs; default is ``runs`` in the folder where Python runs.
        name: of this run's folder, which must be new. By default it is made of the data set, the
            method and the seed, and numbered where it is taken.
        quiet: print neither tables nor progress.
        changes: more settings by name; a section is a dict, or its dataclass.

    Returns:
        The run, with its numbers as data frames.

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
    files = Files(config, preset, variant)
    if settings is not None and files != Files():
        raise UserError(
            "a settings object is complete: give config, preset and variant to coterie.settings, "
            "which makes it"
        )
    with in_python():
        configuration = configured(found, given, "train()", files, own=settings, also=_NAMES)
    wanted = configuration.settings
    if wanted.run.resume:
        raise UserError("'run.resume' is not for train(): say coterie.load(folder).resume()")
    with silenced(quiet):
        _tell(found, configuration)
    return Run(trained(found, wanted, quiet))


def load(folder: str | os.PathLike[str]) -> Run:
    """Open the folder of a run, whoever trained it: Python or the command line.

    Args:
        folder: of the run, as ``runs/pplr/sample-pplr-tiny-item-seed0``.

    Raises:
        UserError: it is no folder of a run; the nearest one is named.
    """
    return Run(folder)


def _tell(paper: Paper, configuration: Configuration) -> None:
    """Say which tuned configurations take part, as the command line does."""
    if configuration.variants:
        files = ", ".join(f"configs/{paper.name}/{name}.yaml" for name in configuration.variants)
        console(soft_wrap=True).print(f"Settings: {files} (variant='none' for the general ones)")
