"""Table 2 and Figure 3: what splitting the model costs a client, and what it gives away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coterie.core.tables.figures import figure_report
from coterie.core.tables.paired import Spread
from coterie.core.tables.report import Report
from coterie.core.tensors.keys import Key
from coterie.llm.attack.figure import panel
from coterie.llm.attack.inversion import Attacker, attack
from coterie.llm.attack.inversion import rows as attack_rows
from coterie.llm.attack.states import known_embeddings, victims
from coterie.llm.cost.figure import panels as step_panels
from coterie.llm.cost.figure import plain_rows
from coterie.llm.cost.formulas import MEGA, Cost, costs, spread_of_splits, verdict
from coterie.llm.cost.inputs import measured, of_experiment
from coterie.llm.experiment import Experiment
from coterie.llm.tables.study import Study

ATTACKER = Attacker()
_EXAMPLES, _REPEATS = 1000, 5
_LEFT_OUT = ("on server", "share", "x FedAvg", "query kB")  # of the columns of the command
_LEAST_LAYERS = 3  # the first, the last, and one for the server
_MORE = "More choices (a Hugging Face model, other k): coterie llm {}."


def cost_table(study: Study) -> Report:
    """Fill the formulas of Table 2 with the numbers of the study's backbones."""
    rows: list[dict[str, Any]] = []
    view: list[dict[str, Any]] = []
    notes: list[str] = []
    for backbone in study.backbones:
        inputs = of_experiment(Experiment(replace(study.tuned(backbone), method="pplr")))
        table = costs(inputs.size, inputs.usage, spread_of_splits(inputs.size))
        rows += [{"backbone": backbone, **cost.plain()} for cost in table]
        view += [_cost_line(backbone, cost, table[0]) for cost in table]
        notes += [f"{backbone}: {note}" for note in (*inputs.notes, verdict(table))]
    notes.append(_MORE.format("cost"))
    title = f"Table 2, {study.data}: storage, inference and communication of a client"
    return Report(study.file("table2"), title, rows, view, notes)


def trade_off_figure(study: Study) -> Report:
    """Draw Figure 3 for the first backbone that can be split: attack, time and memory over k."""
    settings = _deep_enough(study)
    experiment = Experiment(settings)
    attacked = _attacked(study, experiment)
    steps = measured(experiment, None, _REPEATS)
    rows = [
        *({"part": "attack", **row} for row in attacked),
        *({"part": "cost", **row} for row in plain_rows(steps)),
    ]
    view = [
        {
            "layer": row["layer"],
            "cosine": str(Spread(row["cosine"], row["cosine_sd"], len(study.seeds))),
            "tokens found": str(Spread(row["recovery"], row["recovery_sd"], len(study.seeds))),
            "without h_l": f"{row['trivial_recovery']:.4f}",
        }
        for row in attacked
    ]
    notes = [
        f"{settings.model.name} of {settings.model.layers} layers before the first round. A "
        "network rebuilds the input embedding from h_l, of users it has not seen; the server of a "
        "split model sees h_k to h_(N-1).",
        _MORE.format("attack, coterie llm cost --measure"),
    ]
    lines = {"attack": "", "without h_l": "trivial_"}
    panels = [panel(attacked, len(study.seeds), "recovery", lines), *step_panels(steps)]
    title = f"Figure 3, {study.data}: attack and cost over k"
    return figure_report(study, "figure3", title, (rows, view), notes, panels)


def _deep_enough(study: Study) -> Any:
    """Give the settings of the first backbone, with as many layers as a split needs."""
    settings = study.tuned(study.backbones[0])
    layers = max(settings.model.layers, _LEAST_LAYERS)
    return replace(settings, method="pplr", model=replace(settings.model, layers=layers))


def _attacked(study: Study, experiment: Experiment) -> list[dict[str, Any]]:
    backbone, data = experiment.backbone, experiment.settings.data
    reports = []
    for seed in study.seeds:
        key = Key.from_seed(seed)
        clients, longest = range(data.clients), data.max_history
        found = victims(experiment.data, lambda _: backbone, clients, longest, _EXAMPLES, key)
        reports.append(attack(*found, known_embeddings(backbone), ATTACKER, key.fold("attack")))
    return attack_rows(reports)


def _cost_line(backbone: str, cost: Cost, whole: Cost) -> dict[str, Any]:
    shown = {name: value for name, value in cost.shown(whole).items() if name not in _LEFT_OUT}
    of_query = {"query MB": cost.query / MEGA, "break-even tokens": shown.pop("break-even tokens")}
    return {"backbone": backbone, **shown, **of_query}
