"""Figure 4 and Table 8: F³CRec over its hyper-parameters, and over the noise on its uploads."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch

from coterie.continual.experiment import Experiment
from coterie.continual.messages import ItemTable
from coterie.continual.published import METRICS, TABLES
from coterie.continual.settings import Settings
from coterie.continual.tables.study import (
    CONSUMED,
    NAMES,
    PROTOCOLS,
    Study,
    averages,
    label_of,
    paired,
    validations,
)
from coterie.core.privacy.attack import SCORERS, attack_curve
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.schema import changed, values_of
from coterie.core.settings.sections import PrivacySettings
from coterie.core.style import Roles
from coterie.core.tables.paired import spread
from coterie.core.tables.plots import SHARE, Lines
from coterie.core.tables.report import Report
from coterie.core.tables.sheet import Sheet, cell
from coterie.core.tensors.keys import Key

# The paper's scale of ε for each data set (section 5.1).
_EPSILON_SCALE = {"ml-latest-small": 1e-5, "lastfm-2k": 1e-4}
_AXES = {"epsilon": "ε", "lambda_kd": "λ_KD", "beta": "β"}
_KEYS = {"epsilon": "replay.epsilon", "lambda_kd": "replay.lambda_kd", "beta": "temporal_mean.beta"}


def grids(data: str) -> dict[str, list[float]]:
    """List the values of every hyper-parameter: the paper's ranges, ε and β in double steps.

    Example:
        >>> grids("lastfm-2k")["epsilon"]
        [0.0001, 0.0003, 0.0005, 0.0007, 0.0009]
    """
    scale = _EPSILON_SCALE.get(data, 1e-3)
    return {
        "epsilon": [round(k * scale, 9) for k in (1, 3, 5, 7, 9)],
        "lambda_kd": [1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0],
        "beta": [round(0.1 * k, 1) for k in range(11)],
    }


def sweep_figure(study: Study) -> Report:
    """Draw Figure 4."""
    settings, top_k = replace(study.settings, method="f3crec"), study.settings.top_k
    points = {
        (name, value): changed(settings, {_KEYS[name]: value})
        for name, values in grids(study.data).items()
        for value in values
    }
    results = study.run_all("Figure 4", points)
    sheet, plots, usual = Sheet(study, *_NOTES), [], values_of(settings)
    for name, values in grids(study.data).items():
        runs, current = [results[name, value] for value in values], usual[_KEYS[name]]
        found = {
            "valid": [validations(part, f"ndcg@{top_k}") for part in runs],
            "test": [averages(part, f"ndcg@{top_k}") for part in runs],
        }
        for place, value in enumerate(values):
            line = sheet.line(parameter=_AXES[name], value=f"{value:g}")
            for split, numbers in found.items():
                key, at = f"{split}/average/ndcg@{top_k}", numbers[place]
                sheet.cell(line, split, "f3crec", key, at, parameter=name, value=value)
        labels = {"validation": "valid", "test": "test"}
        lines = {label: list(map(spread, found[split])) for label, split in labels.items()}
        y_label, log = f"N@{top_k}, mean of D1 to D3", name == "lambda_kd"
        drawn = Lines(
            _AXES[name],
            values,
            lines,
            log,
            current,
            y_label,
            roles=Roles(better="higher"),
            bounds=SHARE,
        )
        plots.append(drawn)
        best = int(np.argmax([np.mean(v) for v in found["valid"]]))
        sheet.notes.append(
            f"{_AXES[name]}: best on validation at {values[best]:g}, where the test gives "
            f"{cell(found['test'][best])}; in use: {current:g}."
        )
    return sheet.report("Figure 4", f"N@{top_k} of F³CRec", plots)


_NOTES = (
    "One hyper-parameter at a time, the others as configured (dotted line in the figure). "
    "Validation is the best round's; choose on it, never on the test. The paper prints no numbers.",
)


# Table 8: Laplace noise on the uploads, and what an attacker still learns from one.

NOISES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
_CLIENTS = 100  # enough for a mean; whole tables with noise are slow


class Attack:
    """Guess the positive items of users of D1 from one upload, behind the run's own noise."""

    def __init__(self) -> None:
        self.auc: dict[str, float] = {}

    def after_round(self, experiment: Experiment, module: FederatedRun) -> None:
        """Attack the uploads that follow the first round of D1."""
        if module.block != 1 or module.block_round != 1:
            return
        block = experiment.blocks[1]
        data = block.take(torch.arange(min(_CLIENTS, block.ids.numel())))
        key = Key.from_seed(experiment.settings.seed).fold("attack").fold(data.ids)
        down = ItemTable(module.server_state.items, module.server_state.old, 1)
        up, _ = experiment.client().update(down, module.store.take(data.ids), data, key)
        scale = experiment.settings.privacy.scale
        curve = attack_curve(up.items, down.items, data.train, [scale], key)
        means = curve[scale].means()
        self.auc = {name: means[f"{name}/auc"] for name in SCORERS}

    def found(self) -> dict[str, Any]:
        """Give the mean AUC of every scorer."""
        return {"auc": self.auc}


def noise_table(study: Study) -> Report:
    """Reproduce Table 8, with the AUC of the best attack."""
    settings, sheet = study.settings, Sheet(study, *_NOISE_NOTES)
    variants = {scale: _with_noise(settings, scale) for scale in NOISES}
    results = study.probing(Attack).run_all("Table 8", variants)
    in_paper = (settings.model.name, settings.method, settings.top_k) == ("fedmf", "f3crec", 20)
    published = TABLES["table8"].get(study.data) if in_paper else None
    for metric, protocol in product(METRICS, PROTOCOLS):
        name = f"{metric}@{settings.top_k}{protocol}"
        line = sheet.line(**{"": label_of(name)})
        values = {scale: averages(runs, name) for scale, runs in results.items()}
        for place, (scale, numbers) in enumerate(values.items()):
            paper = published[metric][place] if published and not protocol else None
            key = f"test/average/{name}"
            sheet.cell(line, f"λ = {scale}", settings.method, key, numbers, paper, scale=scale)
            if scale:
                label = f"{name}, λ = {scale} minus λ = 0:"
                sheet.notes.append(paired(label, numbers, values[NOISES[0]]))
    line = sheet.line(**{"": "AUC of the attack"})
    for scale, runs in results.items():
        auc = [max(run.found["auc"].values()) for run in runs]
        sheet.cell(line, f"λ = {scale}", settings.method, "attack/auc", auc, scale=scale)
    return sheet.report("Table 8", f"{NAMES[settings.method]}, Laplace noise on uploads")


_NOISE_NOTES = (
    "Mean ± standard deviation over seeds (the paper's number), averaged over D1 to D3. Noise is "
    "added to all rows of every upload, the base block's too. Nothing bounds an upload (no "
    "privacy.clip), so the noise hides but guarantees nothing.",
    f"Attack: from one upload after the first round of D1, the best of {len(SCORERS)} scorers "
    f"({', '.join(SCORERS)}) ranks the items for {_CLIENTS} users; AUC 0.5 is chance, 1 finds all "
    "positive items.",
    CONSUMED,
)


def _with_noise(settings: Settings, scale: float) -> Settings:
    privacy = PrivacySettings()
    if scale:
        privacy = PrivacySettings(noise="laplace", scale=scale, uploads="dense")
    return replace(settings, privacy=privacy)
