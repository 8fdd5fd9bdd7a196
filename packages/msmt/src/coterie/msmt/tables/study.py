"""What the tables share: worlds, how a run is made, what its numbers depend on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from coterie.core.data.samples.samples import SampleData
from coterie.core.errors import UserError
from coterie.core.methods.registry import METHODS
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.core.settings.schema import changed, values_of
from coterie.core.tables import study
from coterie.core.tables.jobs import Job
from coterie.core.tables.result import Make, RunResult
from coterie.msmt.comparison import followed, mean_known, oracle, who
from coterie.msmt.data.describe import one_class
from coterie.msmt.data.task import Task
from coterie.msmt.experiment import Experiment
from coterie.msmt.paper import PAPER
from coterie.msmt.published import data_of
from coterie.msmt.readings import resolve
from coterie.msmt.settings import Settings
from coterie.msmt.tables.rows import ENSEMBLE, OWN, ROWS

# One run of a table, and how its numbers are called.

WHOSE = "whose"
"""Of `RunResult.found`: ``global`` or ``personal``, what a method is judged by."""


def train(settings: Settings) -> RunResult:
    """Run to the end; ``course`` is what every scenario measured in every round."""
    experiment = Experiment(settings)
    run = FederatedRun(experiment.federation())
    result = followed(run, experiment.task.schema.n_scenarios)
    return judged_by(result, who(experiment))


def judged_by(result: RunResult, whose: str) -> RunResult:
    """Judge a run by the global or the personal models, whose best round is another."""
    found = {**result.found, WHOSE: whose}
    return replace(result, chosen_by=f"eval/{whose}_auc", found=found)


# What is no run: the AUC of the true probabilities.

ORACLE = "oracle"


def oracle_run(settings: Settings) -> RunResult:
    """Measure the true probabilities of a generated task, as a run of one round."""
    found = oracle(Experiment(settings).task)
    result = RunResult(course={f"test/global_auc_{n}": [list(v)] for n, v in found.items()})
    means = {f"auc_{n}": mean_known(values) for n, values in found.items()}
    means["auc"] = mean_known(list(means.values()))
    noted = {f"test/global_{name}": value for name, value in means.items()}
    result.note(noted | {"eval/global_auc": 0.0})  # there is nothing to choose
    return judged_by(result, "global")


# Which settings a run reads: runs that differ in others only are one.

_SHARING = ("fedavg", "fedprox", "ditto", "fedamp")
_ALIKE = {"fraction": "train.participation", "weighting": "train.weighting"}
_OF_NETWORK = "pf.generator"  # all that the template's network reads in another method


def essential(settings: Settings) -> Settings:
    """Fill the reading's choices, and set what a run does not read to one value.

    Example:
        >>> one = essential(Settings(method="local", reading="literal", compare=True))
        >>> one.reading, one.compare, one.pf == Settings().pf
        ('recommended', None, True)
    """
    settings = replace(settings, compare=None)
    if settings.method != "pf-msmtrec":
        settings = replace(settings, reading="recommended")
    usual: dict[str, Any] = values_of(Settings())
    vain = tuple(_unread(settings))
    own = values_of(settings)
    found = {name: usual[name] for name in own if name.startswith(vain)}
    if settings.model.name == "template" and settings.method != "pf-msmtrec":
        found.pop(_OF_NETWORK, None)
    settings = changed(settings, found)
    return resolve(settings) if settings.method == "pf-msmtrec" else settings


def bare(settings: Settings) -> Settings:
    """Keep what says which samples there are.

    Example:
        >>> bare(Settings(rounds=3, seed=1)) == bare(Settings(method="fedavg", seed=1))
        True
    """
    return Settings(method="local", seed=settings.seed, data=settings.data)


def _unread(settings: Settings) -> list[str]:
    """Beginnings of the names of settings that a method does not look at."""
    method = METHODS.get(settings.method)
    sections = {*(each.section for each in METHODS.values()), ENSEMBLE} - {None}
    own = method.section if method else settings.method
    known = {name.split(".")[0] for name in values_of(settings)}
    found = [f"{section}." for section in sections - {own} if section in known]
    if settings.method not in _SHARING:
        found.append("train.share")
    if settings.method == OWN:
        return [*found, "train.weighting"]
    if method is None:
        return [*found, "pf."]
    unread = [_ALIKE[name] for name in method.unread if name in _ALIKE]
    return [*found, "pf.", *unread]


# What the tables share: which worlds there are, how a run is made, what its numbers depend on.

K = TypeVar("K")

GENERATED = "world"
SHIFTS = (0.0, 0.3, 0.6, 0.9)
TEACHER = "teacher"
USUAL_SHIFT = 0.3
_PLACE = ("data.name", "data.root")
_NAMED = ("method", "model.name")


class Study(study.Study[Settings]):
    """The runs behind a table or figure."""

    paper = PAPER
    names: ClassVar[Mapping[str, str]] = {name: row.label for name, row in ROWS.items()}
    train, essential = train, essential
    references: ClassVar[Mapping[str, Make]] = {ORACLE: oracle_run}

    @cached_property
    def settings(self) -> Settings:
        """As the user gave them.

        Raises:
            UserError: the user named a method or a network, which would have no effect.
        """
        for name in _NAMED:
            if name in self.given:
                raise UserError(
                    "the tables and figures of pf-msmtrec say themselves which methods and "
                    f"networks they run: leave out --{name}, or train one by coterie train "
                    f"pf-msmtrec --{name} NAME"
                )
        settings: Settings = self.configuration.settings
        return changed(settings, {"method": "pf-msmtrec", "model.name": "template"})

    @property
    def given(self) -> Mapping[str, Any]:
        """Settings that the user gave by flags."""
        return self.configuration.given.flags

    @property
    def given_data(self) -> dict[str, Any]:
        """What flags say of the data, beside which and where they are."""
        return {
            name: value
            for name, value in self.given.items()
            if name.startswith("data.") and name not in _PLACE
        }

    @cached_property
    def worlds(self) -> dict[str, Settings]:
        """Settings by world, or those of the one data set."""
        if self.data != GENERATED:
            return {self.data: self.settings}
        if self.given_data:
            shift = self.settings.data.shift
            return {f"shift {USUAL_SHIFT if shift is None else shift:g}": self.settings}
        found = {
            f"shift {shift:g}": changed(self.settings, {"data.shift": shift}) for shift in SHIFTS
        }
        return found | {TEACHER: self.tuned(TEACHER)}

    @cached_property
    def few_worlds(self) -> dict[str, Settings]:
        """Where the method itself is varied: the usual world, and the teacher."""
        names = (f"shift {USUAL_SHIFT:g}", TEACHER)
        if not set(names) <= set(self.worlds):
            return self.worlds
        return {name: self.worlds[name] for name in names}

    def tuned(self, data: str) -> Settings:
        """Settings of other data: the tuned configuration, then the user's."""
        words = [*self.configuration.given.argv, "--data.name", data]
        found: Settings = configure(self.paper, words).settings
        return found

    @cached_property
    def task(self) -> Task:
        """Of the first world and seed: schema and notes are those of all."""
        return Experiment(next(iter(self.worlds.values()))).task

    def run_all(self, title: str, variants: Mapping[K, Settings]) -> dict[K, list[RunResult]]:
        """Run every variant with every seed; results in the order of the seeds.

        Raises:
            UserError: no validation part has both classes of a task.
        """
        task = self.task
        if bool(one_class(task.clients.valid, task.schema.n_tasks).all()):
            raise UserError(
                f"no scenario of {self.data} has validation samples of both classes of a task, by "
                "which the tables choose rounds: give it some"
            )
        return super().run_all(title, variants)

    @property
    def is_papers(self) -> bool:
        """Whether the scenarios are the paper's own, so that its numbers are of the same data."""
        return all(data_of(name) is not None for name in self.task.schema.scenarios)

    @property
    def setup(self) -> str:
        """Say what is trained."""
        some = self.settings
        model, steps = some.model, some.train
        layers = ", ".join(map(str, model.expert_layers))
        text = f"Embeddings of {model.embedding}, {model.experts} experts of {layers}"
        text += f", at most {some.rounds} rounds of {steps.epochs} local epoch"
        text += f"{'s' * (steps.epochs != 1)} with batches of {steps.batch_size}, lr {steps.lr:g}"
        if TEACHER in self.worlds and self.data != TEACHER:
            other = self.worlds[TEACHER]
            text += f" (teacher: {other.rounds} rounds, batches of {other.train.batch_size}"
            text += f", lr {other.train.lr:g})"
        return text + "; the same for all methods."

    def file(self, which: str) -> str:
        """Name of the file of "table2" or "figure3", with the choices that it depends on."""
        words = [super().file(which)]
        words += [f"{key.removeprefix('data.')}-{value}" for key, value in self.given_data.items()]
        if self.settings.reading != "recommended":
            words.append(self.settings.reading)
        return re.sub(r"[^A-Za-z0-9._]+", "-", "-".join(words)).strip("-")

    def stem(self, settings: Settings) -> str:
        """Begin the names of files of a run: method, network, and data that are not the study's."""
        control = "control" if settings.ensemble.partner == "local" else ""
        words = [settings.method, control, settings.model.name, settings.data.name]
        usual = ("", "", "template", self.data)
        return "-".join(
            word for word, is_usual in zip(words, usual, strict=True) if word != is_usual
        )

    def bare(self, name: str, settings: Settings) -> Settings:
        """Keep what references read: the samples."""
        return bare(settings)

    def references_of(self, title: str, name: str) -> dict[str, list[RunResult]]:
        """Make a reference in every world."""

        def job(world: str, seed: int) -> Job:
            settings = bare(replace(self.worlds[world], seed=seed))
            path = self.path(f"{name}-{self.stem(settings)}", settings)
            return self.kept(path, self.references[name], settings, settings)

        return self._results(title, self.worlds, job)

    @cached_property
    def digest(self) -> str:
        """Hash of what was read; what is drawn follows from settings."""
        return digest(self.task)


def digest(task: Task) -> str:
    """Hash the samples of a task that was read; "" of one that was drawn.

    Of samples that stay in files, it is names, sizes and times of the files.
    """
    if task.truth is not None:
        return ""
    found = hashlib.sha256()
    for part in (task.clients.train, task.clients.valid, task.clients.test):
        if isinstance(part, SampleData):
            for name in sorted(part.samples):
                found.update(part.samples[name].contiguous().numpy().tobytes())
            continue
        for piece in (piece for pieces in part.ranges for piece in pieces):
            state = piece.rows.path.stat()
            found.update(repr((piece, state.st_size, state.st_mtime_ns)).encode())
    return found.hexdigest()
