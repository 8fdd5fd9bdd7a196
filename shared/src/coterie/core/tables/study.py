"""The runs behind a table or figure, from workers or from the cache, and what these depend on."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from coterie.core.registry.papers import Paper
from coterie.core.settings.base import BaseSettings
from coterie.core.settings.configuration import Configuration, configure
from coterie.core.settings.schema import values_of
from coterie.core.tables.jobs import Job, run_jobs
from coterie.core.tables.result import Make, RunResult

# Settings of speed, files and screens.
_OF_NO_EFFECT = (
    "run.",
    "logger.",
    "engine.chunk",
    "engine.threads",
    "engine.workers",
    "engine.kernels",
    "data.root",
)
# Code of screens, files and tables; all else may change a number.
_APART = {"cli", "callbacks", "tables", "engines", "commands", "bench"}
# Of the code of tables, what makes and keeps results.
_KEPT = {"result.py", "study.py", "references.py"}


def fingerprint(settings: Any, data: str, *more: str) -> str:
    """Hash the settings with effect, the data and the code into 16 hexadecimal digits.

    The code is that of core and of the package that has the settings' class.

    Args:
        settings: of a run, with what its method does not read set to one value.
        data: from `coterie.core.data.interactions.canonical.data_digest`.
        more: what else the result depends on.
    """
    package = ".".join(type(settings).__module__.split(".")[:2])
    code = code_version("coterie.core", package)
    values = {
        key: value
        for key, value in values_of(settings).items()
        if not key.startswith(_OF_NO_EFFECT)
    }
    text = json.dumps([values, code, data, *more], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def code_version(*packages: str) -> str:
    """Hash the source of everything that may change a number.

    Args:
        packages: as they are imported, ``coterie.core`` for example.
    """
    found = hashlib.sha256()
    for file in _sources(packages):
        found.update(file.read_bytes())
    return found.hexdigest()


def _sources(packages: Sequence[str]) -> Iterator[Path]:
    for name in packages:
        folder = Path(str(import_module(name).__file__)).parent
        for file in sorted(folder.rglob("*.py")):
            if file.name in _KEPT or not _APART & set(file.relative_to(folder).parts):
                yield file


# The runs behind a table or figure: which there are, from the cache or from workers.

S = TypeVar("S", bound=BaseSettings)
K = TypeVar("K")
Results = Mapping[str, Sequence[RunResult]]
"""Runs by method, one a seed."""


@dataclass(frozen=True)
class Study(ABC, Generic[S]):
    """The runs behind a table or figure; a paper says what they depend on and who makes them.

    Attributes:
        configuration: what the user asked for.
        seeds: of the runs.
        workers: processes; 0 = this one.
        paper: whose runs.
        names: methods and references as papers write them.
        train: makes the run of its settings.
        essential: fills the reading's choices, and sets what the method does not read to one value.
        references: what is no federated run, by name; makes a result of its settings.
    """

    configuration: Configuration
    seeds: Sequence[int]
    workers: int

    paper: ClassVar[Paper]
    names: ClassVar[Mapping[str, str]] = {}
    # Functions, to be called on the class: an instance would bind them.
    train: ClassVar[Make]
    essential: ClassVar[Callable[[Any], Any]]
    references: ClassVar[Mapping[str, Make]] = {}

    @property
    @abstractmethod
    def digest(self) -> str:
        """Hash of the data, as `coterie.core.data.interactions.canonical.data_digest` makes it."""

    def bare(self, name: str, settings: S) -> S:
        """Keep what a reference reads. Default: what the method of the settings reads."""
        found: S = type(self).essential(settings)
        return found

    @property
    def settings(self) -> S:
        """As the user gave them."""
        settings: S = self.configuration.settings
        return settings

    @property
    def data(self) -> str:
        """Name of the data."""
        return self.settings.data.name

    @property
    def slug(self) -> str:
        """The data in a file name."""
        name = Path(self.data).stem if "/" in self.data else self.data
        return re.sub(r"[^A-Za-z0-9.-]+", "-", name)

    @property
    def folder(self) -> Path:
        """Where tables, figures and the cache are."""
        return self.settings.run.folder / self.paper.name / "tables"

    @property
    def n_seeds(self) -> str:
        """How many seeds, in words."""
        return f"{len(self.seeds)} seed{'s' * (len(self.seeds) != 1)}"

    @classmethod
    def name_of(cls, method: str) -> str:
        """A method as papers write it."""
        return cls.names.get(method, method)

    def file(self, which: str) -> str:
        """Name of the file of "table1" or "figure2", with the variant that the user names."""
        variant = self.configuration.given.variant
        return "-".join([which, self.slug, *([variant] if variant else [])])

    def stem(self, settings: S) -> str:
        """Begin the names of files of a run: method and whatever else tells people what it is."""
        return settings.method

    def path(self, what: str, settings: S, *more: str, suffix: str = "json") -> Path:
        """File of a result in the cache.

        It is named by what it is, for people, and by all that it depends on: settings, with what is
        not read set to one value, and more.
        """
        mark = fingerprint(settings, self.digest, *more)
        name = f"{self.slug}-{what}-s{settings.seed}-{mark}.{suffix}"
        return self.folder / "cache" / name.replace(" ", "-")

    def job(self, settings: S) -> Job:
        """Make a run of any method."""
        settings = type(self).essential(settings)
        path = self.path(self.stem(settings), settings)
        return self.kept(path, type(self).train, settings, settings)

    def kept(
        self, path: Path, make: Make, argument: Any, settings: S, needs: Job | None = None
    ) -> Job:
        """Make a result in a worker and write it to its file; ``make`` may read that of a job."""
        label = f"{self.name_of(self.stem(settings))}, seed {settings.seed}"
        return Job(path, _write, (make, argument), label, needs)

    def methods(
        self, title: str, settings: S, methods: Iterable[str]
    ) -> dict[str, list[RunResult]]:
        """Run several methods with the same settings."""
        return self.run_all(title, {name: replace(settings, method=name) for name in methods})

    def run_all(self, title: str, variants: Mapping[K, S]) -> dict[K, list[RunResult]]:
        """Run every variant with every seed; results in the order of the seeds."""
        return self._results(
            title, variants, lambda name, seed: self.job(replace(variants[name], seed=seed))
        )

    def rows_without(self, title: str, names: Iterable[str]) -> dict[str, list[RunResult]]:
        """Make references by name, and runs of the settings' own by any other name."""
        return self.references_with(title, {name: (name, self.settings) for name in names})

    def references_with(
        self, title: str, variants: Mapping[K, tuple[str, S]]
    ) -> dict[K, list[RunResult]]:
        """Make references by name, each with the settings beside it; see `rows_without`."""
        return self._results(
            title, variants, lambda key, seed: self._reference(*variants[key], seed)
        )

    def _reference(self, name: str, settings: S, seed: int) -> Job:
        settings = replace(settings, seed=seed)
        if name not in self.references:
            return self.job(replace(settings, method=name))
        bare = self.bare(name, settings)
        return self.kept(self.path(name, bare), self.references[name], bare, bare)

    def _results(
        self, title: str, names: Iterable[K], job: Callable[[K, int], Job]
    ) -> dict[K, list[RunResult]]:
        jobs = {name: [job(name, seed) for seed in self.seeds] for name in names}
        every = [one for part in jobs.values() for one in part]
        run_jobs(every, self.workers, title, self.settings.run.progress)
        return {name: [RunResult.read(one.path) for one in part] for name, part in jobs.items()}


class BackboneStudy(Study[S]):
    """A study of all backbones, or of the one that the user names by ``--model.name``.

    Attributes:
        backbone_names: name -> as papers write it, in the order of the tables.
    """

    backbone_names: ClassVar[Mapping[str, str]]

    @property
    def backbones(self) -> tuple[str, ...]:
        """The backbone that the user names, or all."""
        if "model.name" in self.configuration.given.flags:
            return (self._backbone,)
        return tuple(self.backbone_names)

    def file(self, which: str) -> str:
        """Name of the file of "table1" or "figure2", with the backbone that the user names."""
        backbone = f"-{self.backbones[0]}" if len(self.backbones) == 1 else ""
        return f"{super().file(which)}{backbone}"

    def tuned(self, backbone: str) -> S:
        """Settings of a backbone: its tuned configuration if there is one, then the user's."""
        if backbone == self._backbone:
            return self.settings
        words = [*self.configuration.given.argv, "--model.name", backbone]
        found: S = configure(self.paper, words).settings
        return found

    def by_backbone(
        self, title: str, methods: Iterable[str]
    ) -> dict[str, dict[str, list[RunResult]]]:
        """Run several methods on every backbone; by the name of the backbone."""
        return {
            backbone: self.methods(f"{title}: {name}", self.tuned(backbone), methods)
            for backbone, name in self.backbone_names.items()
            if backbone in self.backbones
        }

    @property
    def _backbone(self) -> str:
        """The backbone of the settings as given."""
        return str(values_of(self.settings)["model.name"])


def _write(made: tuple[Make, Any], path: Path) -> None:
    make, argument = made
    make(argument).write(path)
