"""What is no run: the AUC of the true probabilities."""

from __future__ import annotations

from coterie.core.tables.result import RunResult
from coterie.msmt.comparison import mean_known, oracle
from coterie.msmt.experiment import Experiment
from coterie.msmt.settings.run import Settings
from coterie.msmt.tables.runs import judged_by

ORACLE = "oracle"


def oracle_run(settings: Settings) -> RunResult:
    """Measure the true probabilities of a generated task, as a run of one round."""
    found = oracle(Experiment(settings).task)
    result = RunResult(course={f"test/global_auc_{n}": [list(v)] for n, v in found.items()})
    means = {f"auc_{n}": mean_known(values) for n, values in found.items()}
    means["auc"] = mean_known(list(means.values()))
    noted = {f"test/global_{name}": value for name, value in means.items()}
    result.note(noted | {"eval/global_auc": 0.0})  # there is nothing to choose
    return judged_by(result, "global")
