"""Figure 3: convergence of PF-MSMTrec beside FedAvg."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.core.tables.curves import mean_curve
from coterie.core.tables.plots import Curves
from coterie.core.tables.report import Report
from coterie.core.tables.result import NAN, RunResult, known
from coterie.core.tables.sheet import Sheet, cell
from coterie.core.tables.study import Results
from coterie.msmt.tables.layout import AUC
from coterie.msmt.tables.main_table import results
from coterie.msmt.tables.rows import FEDAVG, LOCAL, OWN, ROWS
from coterie.msmt.tables.runs import WHOSE
from coterie.msmt.tables.study import Study

SHOWN = (OWN, FEDAVG, "fedavg-own", "pf-embeddings", "pf-server-lr", LOCAL)
NEAR = 0.005
_ABOUT_FIGURE = (
    "Validation AUC, mean over tasks and scenarios, after each round; mean over seeds, bands of "
    "one standard deviation. The paper draws its method and FedAvg on the test, without numbers. "
    f"near: the first round within {100 * NEAR:g} points of the method's own best."
)


def convergence_figure(study: Study) -> Report:
    """Draw Figure 3 for the study's worlds."""
    found = results(study, "Figure 3", SHOWN)
    sheet = Sheet(study, study.setup, _ABOUT_FIGURE)
    for name in SHOWN:
        line = sheet.line(method=ROWS[name].label)
        for world, rows in found.items():
            runs = rows[ROWS[name].label]
            near = [float(reached(run, max(known(curve(run))) - NEAR)) for run in runs]
            best = [max(known(curve(run))) for run in runs]
            sheet.row(name, f"eval/{AUC}", best, world=world)
            sheet.row(name, "round_near_best", near, world=world)
            line[f"{world}: best"], line[f"{world}: near"] = cell(best), cell(near, digits=1)
    last = list(found)[-1]  # its legend is that of all
    panels = [_panel(world, rows, legend=world == last) for world, rows in found.items()]
    return sheet.report("Figure 3", "convergence", panels, columns=3)


def curve(run: RunResult) -> Sequence[float]:
    """Validation AUC round by round, of the models that the method is judged by."""
    return run.curve(f"eval/{run.found[WHOSE]}_{AUC}")


def reached(run: RunResult, target: float) -> float:
    """The first round whose validation AUC is the target or more; NaN if none is."""
    found = (number for number, value in enumerate(curve(run), 1) if value >= target)
    return next(found, NAN)


def _panel(world: str, rows: Results, legend: bool) -> Curves:
    drawn = {label: mean_curve(runs, curve) for label, runs in rows.items()}
    return Curves("round", f"{world}: validation AUC", drawn, legend)
