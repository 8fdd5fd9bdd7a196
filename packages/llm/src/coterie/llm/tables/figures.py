"""Figures 1, 4, 5 and 6: convergence, ablations, numbers of clients, warm-up factors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from coterie.core.style import Roles
from coterie.core.tables.grids import Heat
from coterie.core.tables.means import dots
from coterie.core.tables.paired import Spread, spread
from coterie.core.tables.plots import SHARE, Lines, Panel
from coterie.core.tables.report import Report
from coterie.core.tables.result import RunResult, column
from coterie.core.tables.sheet import Sheet, cell
from coterie.core.tables.study import Results
from coterie.llm.settings import Method
from coterie.llm.tables.main_table import PARTS, add_mechanism, extents
from coterie.llm.tables.study import (
    NAMES,
    Study,
    comparison_notes,
    evenness,
    imbalances,
    of_client,
    summary,
)

_NEARLY = 0.95
_SPEED_NOTE = (
    "Clients are numbered by size, the largest first. A curve is the best validation Recall@10 so "
    "far, mean over clients, as a share of the run's best; a run that has stopped stays where it "
    "was. Imbalance is the median over seeds."
)


def imbalance_figure(study: Study) -> Report:
    """Draw Figure 1 for the first backbone."""
    backbone, sheet = study.backbones[0], Sheet(study, _SPEED_NOTE)
    trained = study.methods("Figure 1", study.tuned(backbone), ("fedavg", "central"))
    runs: Results = {
        f"{backbone}, FedAvg": trained["fedavg"],
        f"{backbone}, central": trained["central"],
        "FedMF": study.rows_without("Figure 1: FedMF", ("fedmf",))["fedmf"],
    }
    clients = range(study.settings.data.clients)
    for name, part in runs.items():
        for client in clients:
            sheet.row(name, "test/recall@10", of_client(part, client), client=client)
        reached = [rounds_to(shares(run), _NEARLY) for run in part]
        line = sheet.line(method=name, **summary(part))
        line[f"rounds to {_NEARLY:.0%} of the best"] = cell(reached)
    groups = {
        f"client {client + 1}": {name: of_client(part, client) for name, part in runs.items()}
        for client in clients
    }
    panels: list[Panel] = [
        dots("Recall@10", groups, roles=Roles(better="higher"), bounds=SHARE),
        _curves(runs),
    ]
    return sheet.report("Figure 1", "clients and convergence", panels)


def shares(result: RunResult) -> list[float]:
    """Best validation Recall@10 so far over the best of the run, one value a round."""
    means = [np.nanmean(clients) for clients in result.course["eval/recall@10"]]
    best = np.maximum.accumulate(means)
    found: list[float] = (best / best[-1]).tolist() if best[-1] else [1.0] * len(means)
    return found


def rounds_to(course: Sequence[float], share: float) -> int:
    """Count the rounds until a share is reached.

    Example:
        >>> rounds_to([0.5, 0.96, 1.0], 0.95)
        2
    """
    return 1 + next(place for place, value in enumerate(course) if value >= share)


def _curves(runs: Results) -> Lines:
    courses = {name: [shares(result) for result in part] for name, part in runs.items()}
    longest = max(len(course) for part in courses.values() for course in part)
    lines: dict[str, list[Spread]] = {
        name: [spread([c[min(place, len(c) - 1)] for c in part]) for place in range(longest)]
        for name, part in courses.items()
    }
    rounds = list(range(1, longest + 1))
    y_label = "share of the best Recall@10 of a run"
    return Lines("round", rounds, lines, longest > 50, y_label=y_label, bounds=SHARE)


# Figure 4: PPLR, each of its halves alone, and FedAvg; and how strong the halves are.

HALVES = ("fedavg", "pplr-attention", "pplr-heating", "pplr")
_HALVES_NOTE = (
    "Bars are means over seeds with one standard deviation; seeds with an infinite imbalance, "
    "where the worst client finds nothing, are not in the bars of imbalance but in the medians of "
    "the table. The last plot shows s, p and w of PPLR, means over clients and seeds."
)


def ablation_figure(study: Study) -> Report:
    """Draw Figure 4 for all backbones, or the one that is named."""
    sheet, runs = Sheet(study, _HALVES_NOTE), study.by_backbone("Figure 4", HALVES)
    for backbone, results in runs.items():
        for method, part in results.items():
            sheet.line(backbone=backbone, method=NAMES[method], **summary(part))
            for name, values in {
                "test/recall@10": column(part, "test/recall@10"),
                "valid/recall@10": column(part, "valid/recall@10"),
                "test/evenness": evenness(part),
                "test/imbalance_median": [float(np.nanmedian(imbalances(part)))],
            }.items():
                sheet.row(method, name, values, backbone=backbone)
        sheet.notes += comparison_notes(backbone, results, HALVES[:-1])
        add_mechanism(sheet, backbone, results["pplr"])
    drawn: dict[str, Callable[[Sequence[RunResult]], list[float]]] = {
        "Recall@10": lambda part: column(part, "test/recall@10"),
        "imbalance": lambda part: [value for value in imbalances(part) if np.isfinite(value)],
    }
    panels = [
        dots(
            label,
            {b: {NAMES[m]: of(part) for m, part in by.items()} for b, by in runs.items()},
            roles=Roles(NAMES["pplr"], better="lower" if label == "imbalance" else "higher"),
            bounds=(0.0, None),
        )
        for label, of in drawn.items()
    ]
    lines = [_mechanism(backbone, results["pplr"]) for backbone, results in runs.items()]
    return sheet.report("Figure 4", "ablations", [*panels, *lines])


def _mechanism(backbone: str, results: Sequence[RunResult]) -> Lines:
    found = {label: extents(results, name) for name, label in PARTS.items()}
    lines = {
        label: [Spread(extent.mean, float("nan"), 1) for extent in line]
        for label, line in found.items()
    }
    rounds = list(range(1, 1 + max(map(len, lines.values()))))
    return Lines("round", rounds, lines, y_label="s, p and w of PPLR", title=backbone)


# Figure 5, PPLR and FedAvg over the number of clients; Figure 6, PPLR over α and β.

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
            roles=Roles(NAMES["pplr"], better="higher"),
            bounds=SHARE,
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
    noise = {"validation Recall@10": float(np.mean([spread(v).sd for v in recall.values()]))}
    panels = [_heat(name, part, chosen, noise.get(name, 0.0)) for name, part in cells.items()]
    return sheet.report("Figure 6", "warm-up factors", panels)


def _heat(
    label: str,
    values: dict[tuple[float, float], float],
    chosen: tuple[float, float],
    noise: float,
) -> Heat:
    cells = [[values[a, b] for a in ALPHAS] for b in BETAS]
    better = Roles(better="lower" if "imbalance" in label else "higher")
    return Heat(label, "α", ALPHAS, "β", BETAS, cells, chosen, noise, roles=better)


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
