"""Settings as a caller in Python gives them, checked by the schema of the command line. Torch-free.

What `coterie train` reads from flags, a call gives as keywords: a section as a dict or as its own
dataclass, or all of it as one settings object.
"""

from __future__ import annotations

import dataclasses
import os
import re
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core.errors import Interrupted, UserError
from coterie.core.registry.papers import Paper, find_paper, heavy, load, papers
from coterie.core.settings.base import BaseSettings
from coterie.core.settings.configuration import Configuration, Given, Source, arranged, flattened
from coterie.core.settings.parser import settings_parser
from coterie.core.settings.schema import suggest, values_of
from coterie.core.settings.sections import DataSettings
from coterie.core.terminal import silenced

Data = str | os.PathLike[str] | Mapping[str, Any] | object
"""Name of a data set, path of a file, a data set or frame, or the section ``data``."""
Configs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""Configuration files, the later ones win."""


class Files(NamedTuple):
    """Files that settings come from, as the flags of these names.

    Attributes:
        config: configuration files, the later ones win.
        preset: name of a preset.
        variant: name of a tuned configuration.
    """

    config: Configs = ()
    preset: str | None = None
    variant: str | None = None


def settings(
    paper: str,
    *,
    data: Data | None = None,
    config: Configs = (),
    preset: str | None = None,
    variant: str | None = None,
    **changes: Any,
) -> BaseSettings:
    """Make the settings of a paper's run: a frozen dataclass to look at, change and pass on.

    They are what `coterie.train` with the same arguments would train by. Change them by
    ``dataclasses.replace``; ``help(type(found))`` describes them.

    Args:
        paper: its name, see `coterie.papers`.
        data: name of a data set, path of a file, an object or a dict, as for `coterie.train`.
        config: YAML files, also of a run's folder; the later ones win.
        preset: name of a preset, as ``smoke``.
        variant: name of a tuned configuration, or ``none``.
        changes: settings by name, see `coterie.train`.

    Raises:
        UserError: a paper, a setting or a value is wrong; the nearest right one is named.

    Example:
        >>> import coterie
        >>> from dataclasses import replace
        >>> mine = coterie.settings("f3crec", preset="smoke", kd={"strength": 0.03})
        >>> mine.rounds, mine.kd.strength
        (2, 0.03)
        >>> replace(mine, seed=1).seed
        1
    """
    given = changes if data is None else {"data": data, **changes}
    files = Files(config, preset, variant)
    found: BaseSettings = configured(find_paper(paper), given, "settings()", files).settings
    return found


def configured(
    paper: Paper,
    given: Mapping[str, Any],
    call: str,
    files: Files | None = None,
    base: Source | None = None,
    own: Any = None,
    also: Sequence[str] = (),
) -> Configuration:
    """Make the settings of a run from what a call gives.

    Args:
        paper: whose.
        given: settings by name; sections as mappings or dataclasses, or dotted keys.
        call: what messages call it.
        files: where more settings come from.
        base: takes the place of the paper's own files, for a run that is resumed.
        own: a settings object, which has all of them; what is given wins.
        also: names that the call takes beside settings, which may be meant by a misspelt one.

    Raises:
        UserError: something does not fit, in one line.
    """
    config, preset, variant = files or Files()
    names = [config] if isinstance(config, str | os.PathLike) else config
    flags = flags_of(paper, given, call, also)
    if own is not None:
        base = _whole(paper, own)
        flags = {**base.values, **flags}  # above the environment, too
    configs = tuple(os.fspath(name) for name in names)
    found = arranged(
        paper, Given(configs=configs, preset=preset, variant=variant, flags=flags), base
    )
    data = found.settings.data
    if isinstance(data, DataSettings) and data.columns:
        from coterie.core.data.sources.file_forms import check_columns  # pyarrow is heavy

        check_columns(data.name, data.columns)
    return found


def flags_of(
    paper: Paper, given: Mapping[str, Any], call: str, also: Sequence[str] = ()
) -> dict[str, Any]:
    """Check settings that a call gives, and give them by dotted key; arguments as `configured`.

    Raises:
        UserError: one is unknown, is given twice, or has a value that does not fit.
    """
    parser = settings_parser(load(paper.settings))
    _refuse_objects(given, call)
    for key in given:
        top = str(key).partition(".")[0]
        if top not in parser.leaves and top not in parser.sections:
            hint = suggest(str(key), [*parser.leaves, *also])
            raise UserError(f"unknown setting '{key}' in {call}: {hint}")
    found: dict[str, Any] = {}
    tree = {str(key): _plain(_kept(key, value)) for key, value in given.items()}
    if "data" in tree:
        tree["data"] = _data(tree["data"], parser.leaves)
    for key, value in flattened(call, tree, parser):
        if key in found:
            raise UserError(f"'{key}' is given twice in {call}: leave one of them out")
        found[key] = value
    return parser.file(found, call)


def _refuse_objects(given: Any, call: str) -> None:
    """Say where objects of Lightning go, which no file of settings can have.

    Raises:
        UserError: one is among the settings.
    """
    if isinstance(given, Mapping | list | tuple):
        for value in given.values() if isinstance(given, Mapping) else given:
            _refuse_objects(value, call)
        return
    for kind in type(given).__mro__:
        if kind.__name__ in ("Callback", "Logger") and "lightning" in kind.__module__:
            raise UserError(
                f"settings in {call} name callbacks and loggers, and {type(given).__name__} is an "
                f"object: give it by {kind.__name__.lower()}s=[...]"
            )


def _kept(key: Any, value: Any) -> Any:
    """Data as an object are kept as a folder, from which the run goes on; else what is given.

    Raises:
        UserError: they cannot be kept, see `coterie.core.data.sources.hub_sets.saved_copy`.
    """
    if key != "data" or isinstance(value, str | os.PathLike):
        return value
    within = isinstance(value, Mapping) and "path" in value
    one = value["path"] if within else value
    if isinstance(one, str | os.PathLike | int | float | None) or type(one) is dict:
        return value
    from coterie.core.data.sources import hub_sets  # pyarrow is heavy

    if not (hub_sets.is_dataset(one) or hub_sets.is_frame(one)):
        return value
    path = hub_sets.saved_copy(one, value.get("root") if within else None)
    return {**value, "path": path} if within else path


def _data(given: Any, known: Mapping[str, Any]) -> Any:
    """The section ``data``, of which a name alone may be given, and a path for the name."""
    if isinstance(given, str):
        return {"name": given}
    if not isinstance(given, Mapping) or "path" not in given or "data.path" in known:
        return given
    if "name" in given:
        raise UserError("'data' has a name and a path: give one of them")
    return {("name" if key == "path" else key): value for key, value in given.items()}


def _plain(value: Any) -> Any:
    """Values as a file has them: of paths, tuples, numpy's numbers and dataclasses."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return of_numpy(value)


def of_numpy(value: Any) -> Any:
    """Make of a number of numpy one of Python; anything else stays what it is.

    Example:
        >>> import numpy as np
        >>> of_numpy(np.float32(0.5)), of_numpy("word")
        (0.5, 'word')
    """
    numpy = type(value).__module__ == "numpy"
    return value.item() if numpy and not getattr(value, "ndim", 1) else value


def _whole(paper: Paper, own: Any) -> Source:
    """Take a settings object for the source of all settings of a run.

    Raises:
        UserError: it is of another paper, or no settings object at all, or a field of it does not
            fit.
    """
    wanted: Any = load(paper.settings)
    name = "the settings object"
    kind: Any = type(own)
    if kind is wanted:
        return Source(name, settings_parser(wanted).file(values_of(own), name))
    makes = f"coterie.settings('{paper.name}') makes what fits"
    for other in papers().values():
        if kind is load(other.settings):
            raise UserError(f"these settings are of {other.name}, not of {paper.name}: {makes}")
    raise UserError(
        f"{type(own).__name__} is no settings object of {paper.name}: {makes}, or give settings "
        "by name, as rounds=5"
    )


# Computing for a caller who has a process of their own: it is given back as it was.

_turn = threading.RLock()
_FLAG = re.compile(r"--((?:\w+\.)*\w+)")
_WORDS = {
    "resume": "coterie.load(folder).resume()",
    "run.name": "name=",
    "run.out": "out=",
    "out": "out=",
}


@contextmanager
def computing(engine: Any) -> Iterator[None]:
    """Have the threads and kernels of a run; the process has its own again on the way out.

    They belong to the whole process, so one thread computes at a time, and others wait.

    Args:
        engine: section of the run's settings.
    """
    with _turn, heavy("coterie.core.run.driver").computing_as(engine):
        yield


def trained(
    paper: Paper,
    settings: Any,
    quiet: bool,
    callbacks: Sequence[Any] = (),
    loggers: Sequence[Any] = (),
) -> Path:
    """Train a run, or go on with one, and give its folder: the one place that does.

    An interruption (Ctrl-C, the stop button of a notebook) ends it after a warning, and the folder
    is that of an unfinished run; before there is a folder it goes on its way.

    Args:
        paper: to train.
        settings: of the run.
        quiet: whether nothing is printed.
        callbacks: of Lightning.
        loggers: of Lightning.

    Raises:
        UserError: as `coterie.core.training.train.train`.
    """
    if quiet:
        settings = replace(settings, run=replace(settings.run, progress=False))
    with silenced(quiet), in_python(), computing(settings.engine):
        try:
            train = heavy("coterie.core.training.train").train
            folder: Path = train(paper, settings, callbacks, loggers)
        except Interrupted as end:
            if end.folder is None:
                raise
            since = "after its last whole round" if end.saved else "from its beginning"
            warnings.warn(
                f"interrupted: the run {end.folder} is unfinished; its resume() goes on {since}",
                stacklevel=3,
            )
            return end.folder
    return folder


@contextmanager
def in_python() -> Iterator[None]:
    """Name arguments of calls in messages where flags of the command line stand."""
    try:
        yield
    except UserError as error:
        said = str(error)
        words = without_flags(said)
        if words == said:
            raise
        raise UserError(words) from error


def without_flags(message: str) -> str:
    """Write flags of the command line as a caller in Python gives them.

    Example:
        >>> without_flags("go on by --resume, or choose another --run.name")
        'go on by coterie.load(folder).resume(), or choose another name='
        >>> without_flags("lower sizes, or --engine.chunk, or leave out --variant best")
        "lower sizes, or engine={'chunk': …}, or leave out variant=best"
    """

    def call(found: re.Match[str]) -> str:
        flag = found[1]
        if flag in _WORDS:
            return _WORDS[flag]
        section, _, key = flag.rpartition(".")
        return f"{section}={{'{key}': …}}" if section else f"{key}="

    return _FLAG.sub(call, message).replace("= ", "=") if "--" in message else message
