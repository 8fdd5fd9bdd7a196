"""Table 8: Laplace noise on the uploads, and what an attacker still learns from one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import torch

from coterie.continual.experiment import Experiment
from coterie.continual.messages import ItemTable
from coterie.continual.published import METRICS, TABLES
from coterie.continual.settings import Settings
from coterie.continual.tables.contrast import paired
from coterie.continual.tables.runs import PROTOCOLS
from coterie.continual.tables.study import CONSUMED, NAMES, Study, averages, label_of
from coterie.core.privacy.attack import attack_curve
from coterie.core.privacy.scorers import SCORERS
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tables.report import Report
from coterie.core.tables.sheet import Sheet
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
