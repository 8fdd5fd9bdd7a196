"""The folder of a run: its settings, numbers and checkpoints. Torch-free."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, count, takewhile
from pathlib import Path
from platform import python_version
from typing import Any

from coterie.core.errors import UserError, nearest
from coterie.core.files import write_json, write_text, writing
from coterie.core.kernels import switch
from coterie.core.registry.data_sets import is_hub_name, stem
from coterie.core.registry.papers import Paper, find_paper, load
from coterie.core.run.lasting import MORE, differing, grown, has_more, located
from coterie.core.run.lock import holder, in_use
from coterie.core.run.origin import commits
from coterie.core.settings.configuration import Source, read_config, read_text, read_yaml, to_yaml
from coterie.core.settings.schema import build, values_of

_PACKAGES = ("coterie-core", "torch", "lightning", "numpy")
ABOUT, MEASURED, PARTIES = "about.json", "clients.npz", "parties.json"
"""Files of a run: what it is of; what every client measured."""


@dataclass(frozen=True)
class Summary:
    """What ``summary.json`` holds, of a finished run.

    Attributes:
        rounds: rounds that were run, over all blocks.
        metrics: the run's numbers by name.
        reference: the paper's numbers by the same names, where it prints them.
        up_bytes: bytes sent by all clients.
        down_bytes: bytes sent to all clients.
        seconds: wall time of training.
        notes: what else the user should know, in a line each.
        left_out: rows of the data that filters left out, a line for each filter.
        data_digest: of the clients' data, as the checkpoints have it.
    """

    rounds: int
    metrics: Mapping[str, float]
    reference: Mapping[str, float]
    up_bytes: int
    down_bytes: int
    seconds: float
    notes: Sequence[str] = ()
    left_out: Sequence[str] = ()
    data_digest: str | None = None


@dataclass(frozen=True)
class RunFolder:
    """One run's folder ``<out>/<paper>/<name>``.

    Attributes:
        path: the folder.
        paper: name of the paper.
        settings: as resolved, of the paper's own class.
    """

    path: Path
    paper: str
    settings: Any

    @classmethod
    def create(cls, paper: Paper, settings: Any) -> RunFolder:
        """Make a new folder with its ``config.yaml``, in one step or not at all.

        It is named by ``run.name``, or else by the settings and a number that is not taken yet.

        Raises:
            UserError: the name is taken, or the folder cannot be written.
        """
        parent, name = settings.run.folder / paper.name, settings.run.name
        for candidate in [name] if name else _numbered(default_name(paper, settings)):
            if (parent / candidate).exists():
                continue
            if _make(parent / candidate, _config(paper, settings)):
                return cls(parent / candidate, paper.name, settings)
        raise _refusal(parent / str(name))

    @classmethod
    def open(cls, path: str | Path, settings: Any = None) -> RunFolder:
        """Open the folder of an earlier run.

        Args:
            path: the folder.
            settings: to go on with; they may differ from the stored ones in `MAY_CHANGE` only.
                None takes the stored ones.

        Raises:
            UserError: there is no such run, its config.yaml is damaged, or a setting differs.
        """
        path = Path(path).expanduser()
        paper = paper_of(path)
        cls_settings = load(paper.settings)
        source = read_config(path / "config.yaml", cls_settings, paper.name)
        stored = build(cls_settings, source.values)
        if settings is not None:
            _check_compatible(path, stored, settings)
        return cls(path, paper.name, stored if settings is None else settings)

    @classmethod
    def for_settings(cls, paper: Paper, settings: Any) -> RunFolder:
        """Open the run that the settings ask to resume, else make a new folder.

        Raises:
            UserError: as `create`, `open` and `resumable`.
        """
        if settings.run.resume:
            folder = cls.open(resumable(paper, settings), settings)
            write_text(folder.path / "config.yaml", _config(paper, settings))
            return folder
        return cls.create(paper, settings)

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints; made when the first is written."""
        return self.path / "checkpoints"

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / "summary.json").is_file()

    def read_json(self, name: str) -> Any:
        """Read a JSON file of the run.

        Raises:
            UserError: it is missing or damaged.
        """
        path = self.path / name
        if not path.is_file():
            raise UserError(f"{self.path} has no {name}: the run did not come to its end")
        try:
            return json.loads(read_text(path))
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {error.lineno}: damaged, {error.msg.lower()}") from None

    def write_summary(self, summary: Summary) -> None:
        """Write ``summary.json``, which makes the run a finished one.

        Raises:
            UserError: the disk is full, or the folder cannot be written.
        """
        values = values_of(self.settings)
        head = {
            "paper": self.paper,
            "method": values.get("method"),
            "reading": values.get("reading"),
            "data": values.get("data.name"),
            "seed": values.get("seed"),
        }
        code = {"versions": versions(), "git": commits()}
        write_json(self.path / "summary.json", {**head, **vars(summary), **code})


def versions() -> dict[str, str]:
    """List the versions of Python and of the packages that make the numbers.

    Numba is among them if this process has used compiled loops.
    """
    found = {"python": python_version()}
    for package in (*_PACKAGES, *["numba"] * switch.loaded()):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def default_name(paper: Paper, settings: Any) -> str:
    """Name a run by data set, method, what else chooses the variant, and seed.

    A file of the user's own, or a data set on the hub, is named by its stem.
    """
    values = values_of(settings)
    others = [values.get(key) for key in paper.named_by(str(values.get("method")))]
    data = stem(str(values.get("data.name")))
    parts = [data, values.get("method"), *others, f"seed{values.get('seed')}"]
    return "-".join(str(part) for part in parts if part is not None)


def resumable(paper: Paper, settings: Any, again: Callable[[Path], Any] | None = None) -> Path:
    """Find the folder to resume: the one that is named, else the newest one that fits.

    A run fits that has the same settings but for `MAY_CHANGE`, and is unfinished or gets more
    rounds. Settings are as resolved, since folders are named by what the reading filled in;
    ``again`` gives those that a run would go on with, None stands for the same.

    Raises:
        UserError: there is none.
    """
    parent = settings.run.folder / paper.name
    if settings.run.name:
        path = parent / settings.run.name
        paper_of(path)
        return path
    name = default_name(paper, settings)
    for path in reversed(_taken(parent, name)):
        if (path / "config.yaml").is_file() and _goes_on(path, settings, again):
            return path
    if growing := _growing(parent, settings, again):
        if len(growing) == 1:
            return growing[0]
        raise UserError(
            f"{len(growing)} runs could go on with the rows of {values_of(settings)['data.name']}: "
            f"name one by --run.name, as {growing[0].name}"
        )
    raise UserError(
        f"no unfinished run {parent / name} with these settings: leave --resume out to start one, "
        "name another by --run.name, or give a finished one of a single block more --rounds"
    )


def stored_settings(path: Path) -> Source:
    """Read ``config.yaml`` of a run as a source of settings for the run that goes on.

    Raises:
        UserError: there is no such run, or its config.yaml is damaged.
    """
    paper = paper_of(path)
    source = read_config(path / "config.yaml", load(paper.settings), paper.name)
    here = {"run.out": str(path.parent.parent), "run.name": path.name}
    return replace(source, values={**source.values, **here})


def paper_of(path: Path) -> Paper:
    """Find the paper of a run by its ``config.yaml``.

    Raises:
        UserError: it is no folder of a run.
    """
    if not path.is_dir():
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        runs = [folder.name for folder in beside if (folder / "config.yaml").is_file()]
        hint = nearest(path.name, runs) if runs else "check the path"
        raise UserError(f"there is no run {path}: {hint}")
    config = path / "config.yaml"
    if not config.is_file():
        raise UserError(f"{path} is not the folder of a run: it has no config.yaml")
    name = read_yaml(str(config), read_text(config)).get("paper")
    if not isinstance(name, str):
        raise UserError(f"{config} does not name its paper, as 'paper: f3crec'")
    return find_paper(name)


def _config(paper: Paper, settings: Any) -> str:
    own = located(settings)
    return to_yaml(replace(own, run=replace(own.run, resume=False)), paper.name)


def _make(path: Path, config: str) -> bool:
    """Make the folder under a temporary name, then rename it; False if another was faster.

    Raises:
        UserError: it cannot be written; nothing is left behind.
    """
    new = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
            try:
                os.chmod(temporary, 0o755)
                write_text(temporary / "config.yaml", config)
                os.rename(temporary, path)
                return True
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return False
            finally:  # renamed where all went well
                shutil.rmtree(temporary, ignore_errors=True)
    except BaseException:
        for folder in new:
            with suppress(OSError):  # not empty: someone else uses it by now
                folder.rmdir()
        raise


def _numbered(name: str) -> Iterator[str]:
    return chain([name], (f"{name}-{number}" for number in count(2)))


def _taken(parent: Path, name: str) -> list[Path]:
    """List the folders that `RunFolder.create` has named so, the oldest first."""
    return list(takewhile(Path.exists, (parent / numbered for numbered in _numbered(name))))


def _goes_on(path: Path, settings: Any, again: Callable[[Path], Any] | None) -> bool:
    """Whether a run has the same settings, and rounds to go."""
    folder = RunFolder.open(path)
    try:
        wanted = settings if again is None else again(path)
    except UserError:  # what is asked for does not go with the settings of this run
        return False
    stored = folder.settings
    if _differing(stored, wanted) is not None:
        return False
    then, now = values_of(stored), values_of(wanted)
    return not folder.finished or now["rounds"] > then["rounds"] or has_more(then, now)


def further(path: Path, wanted: Any) -> Any:
    """Settings with which a run goes on: data that are wanted and are not its own are more rows.

    Args:
        path: folder of the run.
        wanted: its settings, with what a call gives over them.

    Raises:
        UserError: the data are others, and none can be added to those of the run.
    """
    stored = RunFolder.open(path).settings
    found = grown(wanted, stored)
    if values_of(located(found))["data.name"] != values_of(stored)["data.name"]:
        raise _another(path, "data.name", stored, wanted)
    return found


def _growing(parent: Path, settings: Any, again: Callable[[Path], Any] | None) -> list[Path]:
    """List the runs for which the data that are asked for are more rows, by name."""
    if again is None or MORE not in values_of(settings) or not parent.is_dir():
        return []
    named = str(values_of(located(settings))["data.name"])
    if not Path(named).expanduser().exists() and not is_hub_name(named):
        return []

    def grows(path: Path) -> bool:
        if not (path / "config.yaml").is_file():
            return False
        try:
            return _goes_on(path, settings, again) and named in values_of(again(path))[MORE]
        except UserError:  # a damaged run is not meant
            return False

    return sorted(filter(grows, parent.iterdir()))


def _refusal(path: Path) -> UserError:
    if (path / "summary.json").is_file():
        return UserError(f"{path} holds a finished run: choose another name by --run.name")
    who = holder(path)
    if who is not None:
        return in_use(path, who)
    if (path / "config.yaml").is_file():
        return UserError(
            f"{path} holds an unfinished run: go on by --resume, or choose another --run.name"
        )
    return UserError(f"{path} is there already: choose another name by --run.name")


def _check_compatible(path: Path, stored: Any, wanted: Any) -> None:
    key = _differing(stored, located(wanted))
    if key is not None:
        raise _another(path, key, stored, wanted)


def _another(path: Path, key: str, stored: Any, wanted: Any) -> UserError:
    old, new = values_of(stored)[key], values_of(wanted)[key]
    return UserError(
        f"cannot resume {path} with another '{key}': it has {_shown(old)}, not {_shown(new)}; "
        "leave the flag out, or start a new run without --resume"
    )


def _differing(stored: Any, wanted: Any) -> str | None:
    return differing(values_of(stored), values_of(located(wanted)))


def _shown(value: Any) -> str:
    return "null" if value is None else f"'{value}'"
