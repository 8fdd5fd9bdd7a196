"""Table 5: processor time of the main operations, in the halves that really run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core.methods import fedavg
from coterie.core.methods.kit import uploads
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.schema import changed
from coterie.core.tables.report import Report
from coterie.core.tables.sheet import Sheet, cell
from coterie.core.tables.stopwatch import Place, Stopwatch, one_thread
from coterie.page import algorithm
from coterie.page.experiment import Experiment
from coterie.page.published import printed
from coterie.page.settings import Settings
from coterie.page.tables.study import Study

TRAINING, AGGREGATION, EVALUATION = "local training", "aggregation", "evaluation"
CLIENT_AGENTS, SERVER_AGENT, BEST_RESPONSE = "client agents", "server agent", "best response"
MEASURING, REST = "measuring for the game", "the rest"
OPERATIONS = (
    TRAINING,
    AGGREGATION,
    CLIENT_AGENTS,
    SERVER_AGENT,
    BEST_RESPONSE,
    MEASURING,
    REST,
    EVALUATION,
)
_ROUNDS, _WARM_UP = 12, 2
_MOST = 5.0  # per cent of a round that agents may cost
Times = Mapping[str, float]

_NOTES = (
    "Processor time with one thread, mean ± standard deviation over seeds, of rounds in which the "
    "agents learn (after a warm-up of two). Shares are of a round without the evaluation, which "
    "need not be done in each. Every time is that of the methods themselves as they run.",
    "measuring for the game: players measure models on validation samples, for states and "
    "utilities. the rest: messages, checks for failures, the journal.",
    "The paper gives ms per byte without saying of what, so its numbers cannot be compared.",
)


def time_table(study: Study) -> Report:
    """Measure Table 5 for the study's task, in this process; it is not kept in the cache."""
    sheet = Sheet(study, *_NOTES)
    for label, settings in _variants(study).items():
        with one_thread():
            found = [measure(replace(settings, seed=seed)) for seed in study.seeds]
        for operation in OPERATIONS:
            times = [1000 * one.get(operation, 0.0) for one in found]
            if any(times):
                _add(sheet, label, operation, times, [share(operation, one) for one in found])
        if label != "FedAvg":
            sheet.notes.append(agents_note(label, found))
    return sheet.report("Table 5", f"computation of a round of {study.n_clients} clients")


def measure(settings: Settings) -> Times:
    """Seconds a round of each operation of FedAvg or PAGE, by label, in at most 12 rounds."""
    module = FederatedRun(Experiment(_short(settings)).federation())
    total = module.federation.rounds
    warm = min(_WARM_UP + 1, total - 1)
    for _ in range(warm):
        module.advance()
    watch, done = Stopwatch(), 0
    with watch.on([*_places(module), (module, "advance", REST)]):
        while not module.finished and done < total - warm:
            module.advance()
            done += 1
    return {label: seconds / done for label, seconds in watch.seconds.items()}


def share(operation: str, times: Times) -> float:
    """Per cent of a round without its evaluation."""
    whole = sum(seconds for label, seconds in times.items() if label != EVALUATION)
    return 100 * times.get(operation, 0.0) / whole


def agents_note(label: str, found: Sequence[Times]) -> str:
    """Say whether the agents cost more than 5 % of a round."""
    players = (CLIENT_AGENTS, SERVER_AGENT, BEST_RESPONSE)
    shares = [sum(share(player, one) for player in players) for one in found]
    said = "at most" if float(np.mean(shares)) <= _MOST else "MORE than"
    cost = f"agents and best response together cost {cell(shares, digits=2)} % of a round"
    return f"{label}: {cost}, {said} {_MOST:g} %."


def _variants(study: Study) -> dict[str, Settings]:
    own = study.variant()
    return {
        "FedAvg": study.variant("fedavg"),
        "PAGE, best response": changed(own, {"game.follower": "best-response"}),
        "PAGE, server agent": changed(own, {"game.follower": "ddpg"}),
    }


def _short(settings: Settings) -> Settings:
    """Few rounds, all in this process, where the watch is."""
    rounds = min(settings.rounds, _ROUNDS)
    agents = ("client_agent.warm_up", "server_agent.warm_up")
    warm = dict.fromkeys(agents, min(_WARM_UP, rounds - 1))
    return changed(settings, {"rounds": rounds, "engine.workers": 1} | warm)


def _places(module: FederatedRun) -> list[Place]:
    """Where the operations of a run are."""
    client: Any = module.federation.client
    server: Any = module.federation.server
    common: list[Place] = [
        (client.local, "batches", TRAINING),
        (client.local, "train", TRAINING),
        (uploads.Weighted, "of", AGGREGATION),
        (uploads.Weighted, "merge", AGGREGATION),
        (server, "evaluate_if_due", EVALUATION),
    ]
    if not isinstance(server, algorithm.PageServer):
        return [*common, (fedavg, "mean_added", AGGREGATION)]
    return [
        *common,
        (client, "learnt", CLIENT_AGENTS),
        (client, "chosen", CLIENT_AGENTS),
        (client, "measure", MEASURING),
        (server.agent, "choose", SERVER_AGENT),
        (server.agent, "rewarded", SERVER_AGENT),
        (algorithm, "best_response", BEST_RESPONSE),
        (algorithm, "aggregated", AGGREGATION),
        (algorithm, "mean_added", AGGREGATION),
        (server, "_accuracies", MEASURING),
        (server, "_server_utility", MEASURING),
    ]


def _add(
    sheet: Sheet[Study], label: str, operation: str, times: list[float], shares: list[float]
) -> None:
    line = sheet.line(method=label, operation=operation)
    per_client = [time / sheet.study.n_clients for time in times]
    for unit, values, digits in (
        ("ms a client", per_client, 3),
        ("ms a round", times, 1),
        ("% of a round", shares, 2),
    ):
        sheet.row(label, unit, values, operation=operation)
        line[unit] = cell(values, digits=digits)
    line["paper, ms a byte"] = None if label == "FedAvg" else printed("table5", operation)
