"""What Table 3 and the figures vary in a cell."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.assisted.baselines import MODELS, baseline
from coterie.assisted.settings.run import Settings
from coterie.assisted.tables.cells import Cell
from coterie.assisted.tables.rows import as_printed, rated
from coterie.assisted.tables.study import Study
from coterie.core.settings.schema import changed

BASE, WEIGHTS, HALF = "base model", "w optimised", "half in common"


@dataclass(frozen=True)
class Ablation:
    """What is varied in a cell.

    Attributes:
        cell: which.
        reference: name of the variant that optimised weights and half in common differ from.
        variants: name -> settings of MTAL.
        base: settings of the base model, round 0.
        lines: name -> settings of models that are joint or apart.
    """

    cell: Cell
    reference: str
    variants: dict[str, Settings]
    base: Settings
    lines: dict[str, Settings]

    @property
    def all(self) -> dict[str, Settings]:
        """Everything by name."""
        return {BASE: self.base, **self.variants, **self.lines}


def ablations(study: Study) -> list[Ablation]:
    """List what is varied in each cell of a study."""
    reading = study.settings.reading
    return [ablation(cell, study.tuned(cell, reading)) for cell in study.cells(shown=True)]


def ablation(cell: Cell, settings: Settings) -> Ablation:
    """Vary the settings of MTAL as the public code does.

    Weights and alignment are varied at η = 0.1 in the reading released, else at the η of the
    settings, both held constant.
    """
    released = settings.reading == "released"
    plain = changed(as_printed(settings), {"assist.weights": "constant", "data.common": 1.0})
    rule, eta = ("lbfgs", 0.1) if released else ("optimal", settings.assist.eta)
    reference = rated(plain, "constant", eta)
    variants = {f"η {rate:g}": rated(plain, "constant", rate) for rate in sorted({0.1, 0.3, eta})}
    variants |= {
        "η optimised": rated(plain, rule, 0.1),
        WEIGHTS: changed(reference, {"assist.weights": rule}),
        HALF: changed(reference, {"data.common": 0.5}),
    }
    untrained = cell.untrained
    lines = {
        "Joint AAE": baseline(plain, "joint", "aae"),
        "Alone AAE": baseline(plain, "alone", "aae"),
        f"Alone {MODELS[untrained]}": baseline(plain, "alone", untrained),
    }
    return Ablation(cell, f"η {eta:g}", variants, baseline(plain, "alone", "base"), lines)
