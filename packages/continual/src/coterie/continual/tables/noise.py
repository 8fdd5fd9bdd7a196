"""Table 8: Laplace noise on the uploads, and what an attacker still learns from one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from coterie.continual.experiment import Experiment
from coterie.continual.messages import ItemTable
from coterie.continual.published import TABLES
from coterie.continual.settings import Settings
from coterie.continual.tables.study import METRIC_NAMES, NAMES, Study, averages
from coterie.core.privacy.attack import attack_curve
from coterie.core.privacy.scorers import SCORERS
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tables.paired import compare, spread
from coterie.core.tables.report import Report
from coterie.core.tensors.keys import Key

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
    variants = {scale: _with_noise(study.settings, scale) for scale in NOISES}
    results = study.probing(Attack).run_all("Table 8", variants)
    settings = study.settings
    in_paper = settings.model.name == "fedmf" and settings.method == "f3crec"
    rows, view, notes = [], [], list(_NOTES)
    for metric in ("ndcg", "recall"):
        name = f"{metric}@{settings.top_k}"
        line = {"": f"{METRIC_NAMES[metric]}@{settings.top_k}"}
        for place, scale in enumerate(NOISES):
            values = averages(results[scale], name)
            printed = (
                TABLES["table8"].get(study.data) if in_paper and settings.top_k == 20 else None
            )
            paper = printed[metric][place] if printed else None
            rows.append(
                study.row(settings.method, f"test/average/{name}", values, paper, scale=scale)
            )
            text = str(spread(values))
            line[f"λ = {scale}"] = text if paper is None else f"{text} ({paper:.4f})"
            if scale:
                found = compare(values, averages(results[NOISES[0]], name))
                notes.append(
                    f"{name}, λ = {scale} minus λ = 0: {found.difference:+.4f}, paired over seeds "
                    f"p = {found.p:.3g}."
                )
        view.append(line)
    line = {"": "AUC of the attack"}
    for scale in NOISES:
        values = [max(run.found["auc"].values()) for run in results[scale]]
        rows.append(study.row(settings.method, "attack/auc", values, None, scale=scale))
        line[f"λ = {scale}"] = str(spread(values))
    view.append(line)
    name = NAMES[settings.method]
    title = f"Table 8, {study.data}: {name}, Laplace noise on uploads, {study.n_seeds}"
    return Report(study.file("table8"), title, rows, view, notes)


_NOTES = (
    "Mean ± standard deviation over seeds (the paper's number), averaged over D1 to D3. Noise is "
    "added to all rows of every upload, the base block's too. Nothing bounds an upload (no "
    "privacy.clip), so the noise hides but guarantees nothing.",
    f"Attack: from one upload after the first round of D1, the best of {len(SCORERS)} scorers "
    f"({', '.join(SCORERS)}) ranks the items for {_CLIENTS} users; AUC 0.5 is chance, 1 finds all "
    "positive items.",
)


def _with_noise(settings: Settings, scale: float) -> Settings:
    privacy = PrivacySettings()
    if scale:
        privacy = PrivacySettings(noise="laplace", scale=scale, uploads="dense")
    return replace(settings, privacy=privacy)
