"""What the tables share: readings and cells, how a run is made, what its numbers depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from coterie.assisted.experiment import Experiment
from coterie.assisted.paper import PAPER
from coterie.assisted.published import departures, has_cell, printed
from coterie.assisted.readings import resolve, unread
from coterie.assisted.settings import EXCHANGING, ModelSettings, ProtectSettings, Settings
from coterie.core.data.interactions.canonical import data_digest
from coterie.core.errors import UserError
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import LAYERS, arranged
from coterie.core.settings.schema import changed, values_of
from coterie.core.tables import study
from coterie.core.tables.following import follow
from coterie.core.tables.result import RunResult

_SHORT = {"explicit": "RMSE", "implicit": "MAP@10"}
_PARTITIONS: tuple[tuple[str, str], ...] = (
    ("user", "uniform"),
    ("user", "genre"),
    ("item", "uniform"),
)
_OWN: tuple[tuple[str, str], ...] = (("user", "source"),)


@dataclass(frozen=True)
class Cell:
    """One kind of feedback between one kind of organisations.

    Attributes:
        feedback: "explicit" or "implicit".
        align: what they have in common, "user" or "item".
        domains: the partition.
    """

    feedback: str
    align: str
    domains: str

    @property
    def values(self) -> dict[str, str]:
        """The settings that make it, by dotted key."""
        return {
            "data.feedback": self.feedback,
            "data.align": self.align,
            "data.domains": self.domains,
        }

    @property
    def names(self) -> dict[str, Any]:
        """The same for the rows of a table."""
        return {key.removeprefix("data."): value for key, value in self.values.items()}

    @property
    def is_shown(self) -> bool:
        """Whether the slides have numbers of such organisations."""
        return has_cell(self.align, self.domains)

    @property
    def metric(self) -> str:
        """What is compared, on the test."""
        return "test/rmse" if self.feedback == "explicit" else "test/map@10"

    @property
    def higher(self) -> bool:
        """Whether more of it is better."""
        return self.feedback == "implicit"

    @property
    def organisations(self) -> str:
        """Who holds what, for people."""
        return f"{self.align} {self.domains.capitalize()}"

    @property
    def short(self) -> str:
        """What is compared, for people."""
        return _SHORT[self.feedback]

    @property
    def label(self) -> str:
        """The heading of the column."""
        return f"{self.short}, {self.organisations}"

    @property
    def untrained(self) -> str:
        """The model without training that takes the least for granted; both need no peer."""
        return "bias" if self.feedback == "explicit" else "rate"

    def printed(self, data: str, method: str, model: str) -> float | None:
        """Give the number of the slides."""
        if not self.is_shown:
            return None
        return printed(data, self.feedback, self.align, method, model)


def cells(own: bool, given: Mapping[str, Any], *, shown: bool = False) -> list[Cell]:
    """List the cells of a table.

    Args:
        own: whether the data come with organisations of their own.
        given: settings by dotted key, which limit them.
        shown: only what the slides show, where nothing is said of partition and alignment.
    """
    partitions = _OWN if own else _PARTITIONS
    if "data.domains" in given:
        partitions = (*_PARTITIONS, *_OWN)
    shown = shown and not given.keys() & {"data.domains", "data.align"}
    found = [Cell(feedback, *partition) for feedback in _SHORT for partition in partitions]
    return [
        cell
        for cell in found
        if all(given.get(key, value) == value for key, value in cell.values.items())
        and (cell.is_shown or not shown)
    ]


# Which settings a run reads: runs that differ in others only are one.


def essential(settings: Settings) -> Settings:
    """Fill the reading's choices, and set what a run does not read to one value.

    Rankings are of all organisations, as the paper's, and nothing is drawn.

    Example:
        >>> one = essential(Settings(method="joint"))
        >>> one.data.domains, one.evaluation
        ('uniform', 'pooled')
    """
    settings = replace(settings, evaluation="pooled", compare=None)
    if settings.model.name == "rate":  # a column is nobody else's: alone ties only differ
        settings = replace(settings, method="joint")
    settings = resolve(settings)
    own, usual = values_of(settings), values_of(resolve(Settings()))
    vain = tuple(unread(settings) + _unread_by_tables(settings))
    found = {name: usual[name] for name in own if name.startswith(vain)}
    if settings.reading == "released":  # whose averages are by batches
        found.pop("train.batch_rows", None)
    if settings.method == "joint":
        found["data.domains"] = "uniform"  # goes with both alignments
    return changed(settings, found)


def _unread_by_tables(settings: Settings) -> list[str]:
    """What has no effect on the numbers of a run, beside what no run of the method reads."""
    found = []
    if settings.method not in EXCHANGING:
        found.append("privacy.")  # nothing that it covers is sent
    if "lbfgs" not in (settings.assist.eta_rule, settings.assist.weights):
        found.append("assist.lbfgs_lr")
    if settings.reading == "released":
        found.append("data.valid")
    return found


def can_sum(settings: Settings) -> bool:
    """Whether organisations of these settings can have one model that is moved by sums.

    That needs rows that all know, samples that each has to itself, and no protection of residuals,
    as none leave. Organisations that the data name know rows of their own.

    Example:
        >>> from coterie.assisted.settings import DomainSettings
        >>> can_sum(Settings()), can_sum(Settings(data=DomainSettings(common=0.5)))
        (True, False)
    """
    data = settings.data
    all_know_all = data.common == 1 and data.domains != "source"
    protects = settings.protect != ProtectSettings()
    return all_know_all and all(settings.samples_are_columns.values()) and not protects


# One run of a table, and how its numbers are called.

_MEASURING = ("measure", "query", "answer")


def train(settings: Settings) -> RunResult:
    """Run to the end; the tests of the best round are metrics, the rounds' validation curves."""
    run = FederatedRun(Experiment(settings).federation())
    result = follow(run, _MEASURING)
    result.metrics |= run.results
    return result


READINGS = ("recommended", "released")
_LIMITS = ("reading", "data.feedback", "data.align", "data.domains")


class Study(study.Study[Settings]):
    """The runs behind a table or figure."""

    paper = PAPER
    train, essential = train, essential

    @cached_property
    def settings(self) -> Settings:
        """As the user gave them.

        Raises:
            UserError: the user named a method, a model, or a variant that is another method.
        """
        for name in ("method", "model.name"):
            if name in self.given:
                raise UserError(
                    "the tables and figures of mtal say themselves which methods and models they "
                    f"run: leave out --{name}, or train one by coterie train mtal --{name} NAME"
                )
        settings: Settings = self.configuration.settings
        variant = self.configuration.given.variant
        if settings.method != "mtal" and variant not in (None, *LAYERS):
            raise UserError(
                f"variant '{variant}' is another method than that of the tables and figures of "
                f"mtal: leave it out, or train it by coterie train mtal --variant {variant}"
            )
        return settings

    @property
    def given(self) -> Mapping[str, Any]:
        """Settings that the user gave by flags."""
        return self.configuration.given.flags

    @property
    def readings(self) -> tuple[str, ...]:
        """The reading that the user names, or two; with ``--variant best`` one."""
        if "reading" in self.given:
            return (self.settings.reading,)
        return READINGS[:1] if self.configuration.given.variant == "best" else READINGS

    def cells(self, *, shown: bool = False) -> list[Cell]:
        """The columns; ``shown``: those of the slides only, if the user does not say."""
        return cells(self._data.domains is not None, self.given, shown=shown)

    def tuned(self, cell: Cell, reading: str) -> Settings:
        """Settings of MTAL in a cell: the tuned configuration if there is one, then the user's."""
        given = self.configuration.given.variant
        return replace(
            self._arranged(cell, reading, None if given in LAYERS else given), method="mtal"
        )

    def variants(self, cell: Cell, reading: str) -> dict[str, Settings]:
        """Settings of ``--variant best`` in a cell, and of ``sums``, where the user asks for these.

        There are none in the reading released, which has no cells to choose by but those of the
        test. Sums are of ratings, where organisations can have one model, see `can_sum`.
        """
        if self.configuration.given.variant != "best" or reading == "released":
            return {}
        best = self.best(cell, reading)
        samples = self.given.get("model.samples", ModelSettings.samples)
        if cell.higher or not can_sum(changed(best, {"model.samples": samples})):
            return {"best": best}
        return {"best": best, "sums": self._arranged(cell, reading, "sums")}

    def best(self, cell: Cell, reading: str) -> Settings:
        """Settings of ``--variant best`` in a cell."""
        return self._arranged(cell, reading, "best")

    def _arranged(self, cell: Cell, reading: str, variant: str | None) -> Settings:
        flags = {**self.given, **cell.values, "reading": reading}
        given = replace(self.configuration.given, variant=variant, flags=flags)
        found: Settings = arranged(self.paper, given).settings
        return found

    def setup(self, some: Settings) -> str:
        """Say what is trained, and in what it is not as in the slides."""
        train, rounds = some.train, some.rounds
        text = f"MTAL: {rounds} rounds of {train.epochs} epochs; the others {rounds * train.epochs}"
        text += " epochs. In brackets the number of the authors' slides (users in common: 18 "
        text += "genres, items in common: 8 parts)"
        others = departures(some)
        if others:
            text += f". Not as in the slides (theirs in brackets): {', '.join(others)}; so their "
            text += "numbers stand beside ours for the order of the rows alone"
        return f"{text}."

    def file(self, which: str) -> str:
        """Name of the file of "table1" or "figure6", with the choices that limit it."""
        words = [super().file(which)]
        words += [str(self.given[name]) for name in _LIMITS if name in self.given]
        return "-".join([*words, *(["side"] if self.settings.data.side else [])])

    def stem(self, settings: Settings) -> str:
        """Begin the names of files of a run: method and cell."""
        data = settings.data
        model = [settings.model.name] if settings.method != "mtal" else []
        held = [] if settings.method == "joint" else [data.domains]
        words = [settings.method, *model, data.feedback, data.align, *held, settings.reading]
        return "-".join(words)

    @cached_property
    def digest(self) -> str:
        """Hash of the data set."""
        return data_digest(self._data)

    @cached_property
    def _data(self) -> Any:
        return Experiment(self.settings).interactions
