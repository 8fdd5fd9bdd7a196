"""Table 2 and Figure 3: what splitting the model costs a client, and what it gives away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coterie.core.tables.paired import Spread
from coterie.core.tables.report import Report
from coterie.core.tables.sheet import Sheet
from coterie.core.tensors.keys import Key
from coterie.llm.attack import Attacker, attack, known_embeddings, panel, rows, victims
from coterie.llm.cost.formulas import MEGA, Cost, costs, spread_of_splits, verdict
from coterie.llm.cost.inputs import measured, of_experiment
from coterie.llm.cost.measuring import step_panels
from coterie.llm.experiment import Experiment
from coterie.llm.tables.study import Study

ATTACKER = Attacker()
_EXAMPLES, _REPEATS = 1000, 5
_LEFT_OUT = ("on server", "share", "x FedAvg", "query kB")  # of the columns of the command
_LEAST_LAYERS = 3  # the first, the last, and one for the server
_MORE = "More choices (a Hugging Face model, other k): coterie llm {}."


def cost_table(study: Study) -> Report:
    """Fill the formulas of Table 2 with the numbers of the study's backbones."""
    sheet = Sheet(study)
    for backbone in study.backbones:
        inputs = of_experiment(Experiment(replace(study.tuned(backbone), method="pplr")))
        table = costs(inputs.size, inputs.usage, spread_of_splits(inputs.size))
        for cost in table:
            sheet.rows.append({"backbone": backbone, **cost.plain()})
            sheet.line(**_cost_line(backbone, cost, table[0]))
        sheet.notes += [f"{backbone}: {note}" for note in (*inputs.notes, verdict(table))]
    sheet.notes.append(_MORE.format("cost"))
    what = "storage, inference and communication of a client"
    return sheet.report("Table 2", what, seeds=False)


def trade_off_figure(study: Study) -> Report:
    """Draw Figure 3 for the first backbone that can be split: attack, time and memory over k."""
    settings, n_seeds = _deep_enough(study), len(study.seeds)
    experiment = Experiment(settings)
    attacked = _attacked(study, experiment)
    steps = measured(experiment, None, _REPEATS)
    sheet = Sheet(
        study,
        f"{settings.model.name} of {settings.model.layers} layers before the first round. A "
        "network rebuilds the input embedding from h_l, of users it has not seen; the server of a "
        "split model sees h_k to h_(N-1).",
        _MORE.format("attack, coterie llm cost --measure"),
    )
    sheet.rows += [{"part": "attack", **row} for row in attacked]
    sheet.rows += [{"part": "cost", **step.plain()} for step in steps]
    for row in attacked:
        line = sheet.line(layer=row["layer"])
        for label, name in {"cosine": "cosine", "tokens found": "recovery"}.items():
            line[label] = str(Spread(row[name], row[f"{name}_sd"], n_seeds))
        line["without h_l"] = f"{row['trivial_recovery']:.4f}"
    lines = {"attack": "", "without h_l": "trivial_"}
    found = panel(attacked, n_seeds, "share of tokens found", "recovery", lines)
    panels = [found, *step_panels(steps, "FedAvg")]
    return sheet.report("Figure 3", "attack and cost over k", panels)


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
    return rows(reports)


def _cost_line(backbone: str, cost: Cost, whole: Cost) -> dict[str, Any]:
    shown = {name: value for name, value in cost.shown(whole).items() if name not in _LEFT_OUT}
    of_query = {"query MB": cost.query / MEGA, "break-even tokens": shown.pop("break-even tokens")}
    return {"backbone": backbone, **shown, **of_query}
