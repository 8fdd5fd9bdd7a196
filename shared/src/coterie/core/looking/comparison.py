"""Several runs beside each other: groups of seeds, what differs, tests, and what is not fair.

`coterie compare`, a report of several runs and the pages of `coterie ui` all show what is computed
here. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.looking.facts import Digested, RunFacts
from coterie.core.looking.measures import headline, higher_is_better
from coterie.core.tables.paired import FEWEST, Contrast, Spread, contrasts, spread
from coterie.core.tables.result import NAN, known

_DATA = ("data.name", "data.more", "data.columns", "data.min_rating", "data.min_interactions")
_EVALUATION = ("data.", "reading")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_IN_LABEL = 2  # settings that a label names


@dataclass(frozen=True)
class Group:
    """Runs of the same settings, one a seed.

    Attributes:
        label: short name, unlike those of the other groups.
        runs: by seed, in the order of the seeds.
    """

    label: str
    runs: tuple[RunFacts, ...]

    @property
    def seeds(self) -> list[Any]:
        """Of its runs."""
        return [run.seed for run in self.runs]

    @property
    def first(self) -> RunFacts:
        """One of its runs, which has the settings of all."""
        return self.runs[0]

    def of(self, seed: Any) -> RunFacts | None:
        """The run of a seed."""
        return next((run for run in self.runs if run.seed == seed), None)

    def values(self, metric: str, seeds: Sequence[Any]) -> list[float]:
        """A final number, one a seed; NaN where there is none."""
        runs = [self.of(seed) for seed in seeds]
        return [NAN if run is None else run.metrics.get(metric, NAN) for run in runs]

    def spread(self, numbers: Iterable[float]) -> Spread:
        """Mean and standard deviation of what is known."""
        return spread(known(list(numbers)))


@dataclass(frozen=True)
class Tested:
    """A measure, with the first group tested against each of the others.

    Attributes:
        metric: its name.
        higher: whether more is better; None where nobody says.
        contrasts: by the label of the other group; none where no test is fair.
    """

    metric: str
    higher: bool | None
    contrasts: dict[str, Contrast]


@dataclass(frozen=True)
class Comparison:
    """Runs of one paper beside each other.

    Attributes:
        groups: the first is compared with each of the others.
        left_out: what was given and is not among them, in a line each.
    """

    groups: tuple[Group, ...]
    left_out: tuple[str, ...] = ()

    @property
    def runs(self) -> list[RunFacts]:
        """All runs, group by group."""
        return [run for group in self.groups for run in group.runs]

    @cached_property
    def seeds(self) -> list[Any]:
        """Of all runs."""
        return sorted({run.seed for run in self.runs}, key=lambda seed: (str(type(seed)), seed))

    @cached_property
    def metrics(self) -> list[str]:
        """The measures that runs are judged by, and that at least one of them has."""
        return list(dict.fromkeys(name for run in self.runs for name in headline(run)))

    @cached_property
    def differing(self) -> dict[str, list[Any]]:
        """Settings that are not the same in all groups: key -> a value for each group."""
        settings = [group.first.settings for group in self.groups]
        keys = dict.fromkeys(key for one in settings for key in one)
        found = {key: [one.get(key) for one in settings] for key in keys}
        return {key: values for key, values in found.items() if not _same(values)}

    @cached_property
    def unfair(self) -> dict[str, str]:
        """Why a group cannot be tested against the first, by its label; empty if all can."""
        found = {group.label: self._why_unfair(group) for group in self.groups[1:]}
        return {label: why for label, why in found.items() if why}

    def _why_unfair(self, group: Group) -> str:
        own = self.groups[0]
        pair = f"{own.label} and {group.label}"
        for key in _DATA:
            first, second = own.first.settings.get(key), group.first.settings.get(key)
            if first != second:
                return f"{pair} have other data ({key}: {shown(first)} and {shown(second)})"
        if differ := self._other_digests(group, "data"):
            return f"{pair} have other data (digests differ, seed {differ})"
        differ = self._other_digests(group, "clients")
        if differ and not self._same_rows(group):
            return f"{pair} have clients that hold other data (digests differ, seed {differ})"
        return ""

    def _other_digests(self, group: Group, of: Digested) -> str:
        """The common seeds of which a digest differs; where one is not known, none."""
        pairs = ((seed, self.groups[0].of(seed), group.of(seed)) for seed in self.seeds)
        known = ((seed, a.digest(of), b.digest(of)) for seed, a, b in pairs if a and b)
        return ", ".join(str(s) for s, a, b in known if None not in (a, b) and a != b)

    def _same_rows(self, group: Group) -> bool:
        """Whether other digests of clients may be another form of the same rows.

        Methods hold them in forms of their own: as texts, as counts, or all in one place.
        """
        own = self.groups[0].first
        cut = [
            {key: value for key, value in run.settings.items() if key.startswith("data.")}
            for run in (own, group.first)
        ]
        return own.method != group.first.method and cut[0] == cut[1]

    @cached_property
    def warnings(self) -> list[str]:
        """What makes the comparison weaker than it looks, in a line each."""
        found = [*self.left_out]
        found += [f"{why}: their numbers are not tested" for why in self.unfair.values()]
        found += [
            f"clients of {self.groups[0].label} and {group.label} hold their data in other forms: "
            "that they are the same rows is not checked beyond settings and data set"
            for group in self.groups[1:]
            if group.label not in self.unfair and self._other_digests(group, "clients")
        ]
        evaluated = [key for key in self.differing if key.startswith(_EVALUATION)]
        evaluated = [key for key in evaluated if key not in _DATA]
        if evaluated:
            found.append(
                f"runs differ in how they are measured ({', '.join(evaluated)}): a difference "
                "between their numbers may come from that"
            )
        monitors = {run.monitor for run in self.runs if run.about}
        if len(monitors) > 1:
            names = ", ".join(sorted(str(name) for name in monitors))
            found.append(f"rounds are chosen by other measures ({names})")
        for group in self.groups:
            found += [
                f"{run.path} is {run.state} after {run.rounds} rounds: it has no final numbers"
                for run in group.runs
                if not run.finished
            ]
        found += self._few_seeds()
        without = [run.name for run in self.runs if run.digest("data") is None]
        if without and len(self.groups) > 1:
            found.append(
                f"{len(without)} of {len(self.runs)} runs do not say which data they had, as they "
                "are of an older version: that these were the same is not checked"
            )
        return found

    def _few_seeds(self) -> list[str]:
        if len(self.groups) < 2:
            return []
        found = []
        for group in self.groups[1:]:
            common = len(self._pairs(group))
            if common < FEWEST:
                word = "seed" if common == 1 else "seeds"
                found.append(
                    f"{self.groups[0].label} and {group.label} have {common} {word} in common: "
                    f"nothing is tested below {FEWEST}, train more by --seed"
                )
        return found

    def _pairs(self, group: Group) -> list[tuple[RunFacts, RunFacts]]:
        """Finished runs of the same seeds."""
        pairs = ((self.groups[0].of(seed), group.of(seed)) for seed in self.seeds)
        return [(a, b) for a, b in pairs if a and b and a.finished and b.finished]

    def spread(self, group: Group, metric: str) -> Spread:
        """Mean and standard deviation of a final number over the seeds of a group."""
        return group.spread(group.values(metric, group.seeds))

    @cached_property
    def tested(self) -> list[Tested]:
        """The first group against each of the others, paired over common seeds; Holm over groups.

        Groups that cannot be compared have no test.
        """
        own = self.groups[0].label
        fair = [group for group in self.groups if group.label not in self.unfair]
        found = []
        for metric in self.metrics:
            values = {group.label: group.values(metric, self.seeds) for group in fair}
            higher = higher_is_better(metric, self.groups[0].first)
            with_pairs = {
                label: numbers
                for label, numbers in values.items()
                if label == own or _common(values[own], numbers)
            }
            tests = contrasts(with_pairs, own, higher is not False)
            found.append(Tested(metric, higher, tests))
        return found

    def paper_number(self, metric: str) -> float | None:
        """The paper's own number for the first group."""
        return self.groups[0].first.reference.get(metric)


def compared(runs: Sequence[RunFacts]) -> Comparison:
    """Put runs of one paper beside each other, seeds of the same settings together.

    The group of the paper's own method leads, and is tested against the others; where there is
    none, that of the first run.

    Args:
        runs: at least one.

    Raises:
        UserError: they are of several papers.
    """
    papers = dict.fromkeys(run.config["paper"] for run in runs)
    if len(papers) > 1:
        raise UserError(
            f"runs of different papers ({', '.join(papers)}) measure different things: compare "
            "those of one paper"
        )
    found: list[tuple[dict[str, Any], dict[Any, RunFacts]]] = []
    left_out: list[str] = []
    for run in runs:
        settings = run.settings
        seeds = next((seeds for known, seeds in found if known == settings), None)
        if seeds is None:
            seeds = {}
            found.append((settings, seeds))
        other = seeds.setdefault(run.seed, run)
        if other is run:
            continue
        if other.path.resolve() == run.path.resolve():
            left_out.append(f"{run.path} was given more than once")
            continue
        kept, dropped = (run, other) if run.finished and not other.finished else (other, run)
        seeds[run.seed] = kept
        left_out.append(
            f"{dropped.path} is left out: it has the settings and the seed of {kept.path}"
        )
    found.sort(key=lambda one: one[0].get("method") != next(iter(papers)))
    labels = _labels([settings for settings, _ in found])
    groups = (
        Group(label, tuple(seeds[seed] for seed in sorted(seeds, key=str)))
        for label, (_, seeds) in zip(labels, found, strict=True)
    )
    return Comparison(tuple(groups), tuple(left_out))


def read_runs(paths: Iterable[Path]) -> list[RunFacts]:
    """Open the folders of runs.

    Raises:
        UserError: one is none, or damaged.
    """
    return [RunFacts(path.expanduser()) for path in paths]


def letters(groups: Sequence[Group]) -> dict[str, str]:
    """Short names of groups for the heads of columns, A, B, …, Z, A2, …, by their labels."""
    n = len(_LETTERS)
    return {
        group.label: _LETTERS[i % n] + (str(i // n + 1) if i >= n else "")
        for i, group in enumerate(groups)
    }


def shown(value: Any) -> str:
    """A setting as one types it."""
    if value is None or value == []:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _labels(settings: Sequence[dict[str, Any]]) -> list[str]:
    """Name groups by their methods, and where these repeat by what else differs."""
    methods = [str(one.get("method")) for one in settings]
    labels = []
    for one, method in zip(settings, methods, strict=True):
        peers = [other for other, name in zip(settings, methods, strict=True) if name == method]
        keys = [key for key in one if not _same([peer.get(key) for peer in peers])]
        said = [f"{key}={shown(one[key])}" for key in keys[:_IN_LABEL]]
        labels.append(" ".join([method, *said, *["…"] * (len(keys) > _IN_LABEL)]))
    taken = {label: labels.count(label) for label in labels}
    return [
        f"{label} ({labels[:i].count(label) + 1})" if taken[label] > 1 else label
        for i, label in enumerate(labels)
    ]


def _same(values: Sequence[Any]) -> bool:
    return all(value == values[0] for value in values)


def _common(first: Sequence[float], second: Sequence[float]) -> bool:
    return any(not math.isnan(a + b) for a, b in zip(first, second, strict=True))
