"""One run without Lightning's files and loggers, and how its numbers are called."""

from __future__ import annotations

from coterie.core.run.driver import FederatedRun
from coterie.core.tables.following import follow
from coterie.core.tables.result import RunResult
from coterie.page.certificate.of_run import before_learning, certify_run
from coterie.page.experiment import Experiment
from coterie.page.settings.run import Settings

CHOSEN_BY = "eval/accuracy"
GLOBAL, LOCAL, OTHERS = "server_accuracy", "personal_accuracy", "global_accuracy"
"""The two columns of the paper's tables, and the global model on each client's samples."""
COLUMNS = {"global": f"test/{GLOBAL}", "local": f"test/{LOCAL}"}
"""The columns of the paper's tables, and what is measured for them in the best round."""


def train(settings: Settings) -> RunResult:
    """Run a federation to its end.

    What is found beside the curves: ``settled``, whether the run ended before the last round, as
    the game had come to rest; ``certificate``, what the certificate says of the run's end, and
    ``certificate_before``, of the run before anything was learnt, where they are asked for.
    """
    module = FederatedRun(Experiment(settings).federation())
    result = follow(module)
    result.found["settled"] = module.round < settings.rounds
    if settings.method == "page" and settings.certify:
        for name, run in (("certificate_before", before_learning(module)), ("certificate", module)):
            found = certify_run(run, settings.certificate, progress=False)
            result.found[name] = found.to_dict()
    return result
