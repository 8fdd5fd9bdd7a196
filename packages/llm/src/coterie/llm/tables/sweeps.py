"""Figure 5, PPLR and FedAvg over the number of clients; Figure 6, PPLR over α and β."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.core.tables.paired import spread
from coterie.core.tables.plots import Heat, Lines
from coterie.core.tables.report import Report
from coterie.core.tables.result import column
from coterie.core.tables.sheet import Sheet
from coterie.core.tables.study import Results
from coterie.llm.settings.run import Method
from coterie.llm.tables.contrast import comparison_notes
from coterie.llm.tables.runs import evenness, imbalances, summary
from coterie.llm.tables.study import NAMES, Study

CLIENTS = (5, 10, 20, 50, 100)
COMPARED: tuple[Method, ...] = ("fedavg", "pplr")
# The paper's search range is lost from its text; these are around its values.
ALPHAS = (0.3, 0.5, 0.7, 0.9, 1.1)
BETAS = (1.0, 3.0, 5.0, 7.0, 9.0)

_CLIENTS_NOTE = (
    "worst / best client is 1 / (1 + imbalance): among many clients the worst often finds nothing, "
    "and then the imbalance is infinite."
)


def client_number_figure(study: Study) -> Report:
    """Draw Figure 5 for the first backbone."""
    settings, sheet = study.tuned(study.backbones[0]), Sheet(study, _CLIENTS_NOTE)
    variants = {
        (method, n): replace(settings, method=method, data=replace(settings.data, clients=n))
        for n in CLIENTS
        for method in COMPARED
    }
    results = study.run_all("Figure 5", variants)
    recall = {key: column(part, "test/recall@10") for key, part in results.items()}
    even = {key: evenness(part) for key, part in results.items()}
    for name, values in (("test/recall@10", recall), ("test/evenness", even)):
        for method, n in results:
            sheet.row(method, name, values[method, n], clients=n)
    for (method, n), part in results.items():
        sheet.line(clients=n, method=NAMES[method], **summary(part))
    for n in CLIENTS:
        own: Results = {method: results[method, n] for method in COMPARED}
        sheet.notes += comparison_notes(f"{n} clients", own, ("fedavg",))
    panels = [
        Lines(
            "clients",
            CLIENTS,
            {NAMES[m]: [spread(values[m, n]) for n in CLIENTS] for m in COMPARED},
            log=True,
            y_label=label,
        )
        for label, values in (("Recall@10", recall), ("worst / best client", even))
    ]
    return sheet.report("Figure 5", "numbers of clients", panels)


def warm_up_figure(study: Study) -> Report:
    """Draw Figure 6 for the first backbone, on validation."""
    settings = replace(study.tuned(study.backbones[0]), method="pplr")
    variants = {
        (a, b): replace(settings, mixing=replace(settings.mixing, alpha=a, beta=b))
        for b in BETAS
        for a in ALPHAS
    }
    results = study.run_all("Figure 6", variants)
    recall = {key: column(part, "valid/recall@10") for key, part in results.items()}
    unequal = {key: float(np.median(imbalances(p, "valid"))) for key, p in results.items()}
    chosen = (settings.mixing.alpha, settings.mixing.beta)
    sheet = Sheet(study, _grid_note(recall, chosen))
    for (a, b), part in results.items():
        sheet.row("pplr", "valid/recall@10", recall[a, b], alpha=a, beta=b)
        sheet.row("pplr", "valid/imbalance_median", [unequal[a, b]], alpha=a, beta=b)
        sheet.line(α=a, β=b, **summary(part, "valid"))
    means = {key: float(np.mean(values)) for key, values in recall.items()}
    cells = {"validation Recall@10": means, "validation imbalance": unequal}
    panels = [_heat(label, values, chosen) for label, values in cells.items()]
    return sheet.report("Figure 6", "warm-up factors", panels)


def _heat(
    label: str, values: dict[tuple[float, float], float], chosen: tuple[float, float]
) -> Heat:
    cells = [[values[a, b] for a in ALPHAS] for b in BETAS]
    return Heat(label, "α", ALPHAS, "β", BETAS, cells, chosen)


def _grid_note(recall: dict[tuple[float, float], list[float]], chosen: tuple[float, float]) -> str:
    means = {key: float(np.mean(values)) for key, values in recall.items()}
    alpha, beta = max(means, key=lambda key: means[key])
    span = max(means.values()) - min(means.values())
    text = (
        f"Best on validation at α = {alpha:g}, β = {beta:g}; in use: α = {chosen[0]:g}, "
        f"β = {chosen[1]:g} (framed). All cells lie within {span:.4f}"
    )
    sds = [spread(values).sd for values in recall.values()]
    if sds[0] == sds[0]:
        text += f"; the standard deviation over seeds is {np.median(sds):.4f} (median)"
    return text + ". An infinite imbalance is blank. The grid is ours: the paper's is not known."
