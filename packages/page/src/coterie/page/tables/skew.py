"""Table 3: PAGE and personalised methods where clients differ in size, labels or features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.core.errors import UserError
from coterie.core.style import Roles
from coterie.core.tables.paired import contrasts, rank, spread
from coterie.core.tables.plots import SHARE, Lines
from coterie.core.tables.report import Report
from coterie.core.tables.result import RunResult, at_best, known
from coterie.core.tables.sheet import Sheet
from coterie.core.tables.study import Results
from coterie.page.published import accuracies
from coterie.page.settings import Settings
from coterie.page.tables.layout import add_accuracies, column_values, ordinal, percent
from coterie.page.tables.study import COLUMNS, DECOUPLED, OWN, PERSONALISED, Study


@dataclass(frozen=True)
class Skew:
    """A way in which clients differ, and strengths to try."""

    name: str
    symbol: str
    values: tuple[float, ...]

    @property
    def setting(self) -> str:
        """The setting in the section ``data`` that has the strength."""
        return f"{self.name}_skew"

    def label(self, value: float) -> str:
        """Name a strength, as in the paper."""
        return f"{self.symbol}={value:g}"


QUANTITY = Skew("quantity", "σ", (0.1, 0.3, 0.5))
LABELS = Skew("label", "δ", (0.1, 0.5, 1.0))
FEATURES = Skew("feature", "β", (0.5, 1.0, 2.0))
_OF_TASK = {
    "synthetic": (QUANTITY, FEATURES),
    "synthetic-fedprox": (FEATURES,),
    "cifar-100": (QUANTITY, LABELS),
    "tiny-imagenet-200": (QUANTITY, LABELS),
}
_OF = {"quantity": "numbers of samples", "label": "labels", "feature": "features"}
_ABOUT = {
    "quantity": "σ: standard deviation of the logarithm of a client's number of samples (the "
    "generator's theta).",
    "label": "δ: concentration of the clients' class ratios, smaller is more skewed.",
    "feature": "β: standard deviation of what a client adds to all its features; in a synthetic "
    "task the labels follow from these, so it takes the place of the paper's label skew.",
}


def skew_table(study: Study) -> Report:
    """Reproduce Table 3 for the study's task, or its column of a skew that the user names.

    Raises:
        UserError: the task's clients are what they are.
    """
    skews = _skews(study)
    papers_own = [OWN, *study.present(PERSONALISED)]
    methods = [*papers_own, *study.beside]
    variants = {
        (method, skew.name, value): _variant(study, method, skew, value)
        for skew in skews
        for value in skew.values
        for method in methods
    }
    found = study.run_all("Table 3", variants)
    sheet = Sheet(
        study,
        *study.setup,
        "Test accuracy in % of the round that is best on validation data, the paper's beside.",
        *(_ABOUT[skew.name] for skew in skews),
        "Significant: paired t-test over the seeds, p below .05 after Holm's adjustment.",
    )
    lines = {method: sheet.line(method=study.name_of(method)) for method in methods}
    for skew in skews:
        for value in skew.values:
            label = skew.label(value)
            results = {method: found[method, skew.name, value] for method in methods}
            for method, part in results.items():
                papers = accuracies("table3", study.data, label, method)
                add_accuracies(sheet, method, part, papers, skew=skew.name, value=value)
                for (column, metric), paper in zip(COLUMNS.items(), papers, strict=True):
                    lines[method][f"{label} {column}"] = percent(at_best(part, metric), paper)
            sheet.notes += _standing(label, {name: results[name] for name in papers_own})
            if DECOUPLED in results:
                sheet.notes += _standing(label, results, DECOUPLED)
        sheet.notes += _steadiness(skew, found, methods)
    panels = _panels(skews, found, methods)
    return sheet.report("Table 3", "clients that differ", panels, columns=2)


def _skews(study: Study) -> tuple[Skew, ...]:
    if study.data not in _OF_TASK:
        tasks = ", ".join(_OF_TASK)
        raise UserError(f"the clients of '{study.data}' cannot be made to differ: choose {tasks}")
    settings, known = study.settings.data, _OF_TASK[study.data]
    named = [skew for skew in known if f"data.{skew.setting}" in study.configuration.given.flags]
    return tuple(replace(s, values=(getattr(settings, s.setting),)) for s in named) or known


def _variant(study: Study, method: str, skew: Skew, value: float) -> Settings:
    changes: dict[str, Any] = {skew.setting: value}
    if skew is not FEATURES and study.data != "synthetic":
        changes["partition"] = "dirichlet"
    return study.variant(method, **changes)


def _standing(label: str, results: Results, method: str = OWN) -> list[str]:
    """Say where PAGE stands among the methods, and which differences are more than noise."""
    own, notes = Study.name_of(method), []
    for column, metric in COLUMNS.items():
        values = column_values(results, metric)
        found = rank(values, own)
        if found is None or found.of < 2:
            continue
        tested = contrasts(values, own).values()
        said = {
            word: ", ".join(c.other for c in tested if c.verdict == verdict) or "none"
            for word, verdict in (("above", "better"), ("below", "worse"))
        }
        notes.append(
            f"{label}, {column}: {own} is {ordinal(found.place)} of {found.of} by the means; "
            f"significantly above {said['above']}, below {said['below']}."
        )
    return notes


def _steadiness(skew: Skew, found: Mapping[Any, list[RunResult]], methods: list[str]) -> list[str]:
    """Say how far the global accuracy moves from the first strength to the last."""
    first, last = skew.values[0], skew.values[-1]
    if first == last:
        return []
    moves = []
    for method in methods:
        ends = (at_best(found[method, skew.name, v], COLUMNS["global"]) for v in (first, last))
        change = [100 * (b - a) for a, b in zip(*ends, strict=True)]
        if not np.isnan(change).all():
            moves.append(f"{Study.name_of(method)} {np.nanmean(change):+.2f}")
    words = f"from {skew.label(first)} to {skew.label(last)}"
    return [f"Global accuracy {words}, in points: {', '.join(moves)}."] if moves else []


def _panels(
    skews: tuple[Skew, ...], found: Mapping[Any, list[RunResult]], methods: list[str]
) -> list[Lines]:
    return [
        Lines(
            f"{skew.symbol}, skew of {_OF[skew.name]}",
            list(skew.values),
            {
                Study.name_of(m): [
                    spread(known(at_best(found[m, skew.name, value], metric)))
                    for value in skew.values
                ]
                for m in methods
            },
            y_label=f"{column} test accuracy",
            roles=Roles(Study.name_of(OWN), better="higher"),
            bounds=SHARE,
        )
        for skew in skews
        for column, metric in COLUMNS.items()
    ]
