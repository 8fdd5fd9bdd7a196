"""One run without Lightning's files and loggers; runs of one seed share the base block."""

from __future__ import annotations

import warnings
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from coterie.continual.experiment import Experiment
from coterie.continual.settings import Settings
from coterie.core.files import writing
from coterie.core.run.driver import FederatedRun
from coterie.core.tables.result import Result
from coterie.core.tensors.saved import load, save

Base = dict[str, Any]


class Probe(Protocol):
    """Measures something during a run. A class of a module's top level, made without arguments."""

    def after_round(self, experiment: Experiment, module: FederatedRun) -> None:
        """Look at a round that has just ended."""
        ...

    def found(self) -> dict[str, Any]:
        """Give plain values, for JSON."""
        ...


@dataclass
class RunResult(Result):
    """What a table needs of a run.

    Attributes:
        metrics: ``test/block1/ndcg@20``, ``test/average/…``, ``valid/average/…`` and others.
        users: block -> ``ids``, ``ndcg`` and ``recall`` of its users in the test; NaN without an
            item to find.
        found: what the probe gave.
    """

    with_none = ("found",)

    metrics: dict[str, float] = field(default_factory=dict)
    users: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A run to be made by a worker.

    Attributes:
        settings: of the run.
        base: file that `train_base` wrote; None trains the base block too.
        probe: class of the probe.
    """

    settings: Settings
    base: Path | None = None
    probe: type[Probe] | None = None


def train_base(settings: Settings, path: Path) -> None:
    """Train the base block and keep the run as it was before its last round.

    The last round also closes the block, which each method does in its own way.

    Args:
        settings: from `essence.base_settings`.
        path: file to write.
    """
    module = _module(Experiment(settings))
    base = _snapshot(module)
    module.advance()
    while module.block_open:
        base = _snapshot(module)
        module.advance()
    with writing(path):
        save(base, path)


def train_run(plan: Plan, path: Path) -> None:
    """Make a run and write its `RunResult`."""
    base = None if plan.base is None else load(plan.base)
    train(plan.settings, base, plan.probe)[1].write(path)


def train(
    settings: Settings, base: Base | None = None, probe: type[Probe] | None = None
) -> tuple[FederatedRun, RunResult]:
    """Run a federation to its end; bit-equal with and without ``base``.

    Args:
        settings: of the run.
        base: what `train_base` kept; its tensors are used up.
        probe: what else to measure.
    """
    if probe is not None:  # it looks at the users' data, which are on the CPU
        settings = replace(settings, engine=replace(settings.engine, device="cpu"))
    experiment = Experiment(settings)
    module = _module(experiment)
    if base is not None:
        _start_from(module, base)
    result, measured = RunResult(), None if probe is None else probe()
    while not module.finished:
        module.advance()
        if not module.block_open:
            _note_block(result, module, experiment.settings.top_k)
        if measured is not None:
            measured.after_round(experiment, module)
    result.metrics |= experiment.final_metrics(module)
    valid = [result.metrics[f"valid/block{t}"] for t in range(1, module.block + 1)]
    result.metrics["valid/average"] = sum(valid) / len(valid)
    result.found = {} if measured is None else measured.found()
    return module, result


def _module(experiment: Experiment) -> FederatedRun:
    with warnings.catch_warnings():
        # Table 8 says so itself, once.
        warnings.filterwarnings("ignore", message=".*gives no privacy guarantee")
        return FederatedRun(experiment.federation())


def _start_from(module: FederatedRun, base: Base) -> None:
    """Put a run where the base block has one round to go."""
    if base["block"] < 0:  # the base block has a single round
        return
    module.advance()  # enrols the users, with the memory of this run's own method
    own = module.store.to_plain()["rows"]["memory"]
    rows = base["store"]["rows"] | {"memory": own}
    store = base["store"] | {"rows": rows}
    module.load_plain(base | {"store": store})


def _snapshot(module: FederatedRun) -> Base:
    return deepcopy(module.to_plain())


def _note_block(result: RunResult, module: FederatedRun, top_k: int) -> None:
    """Note validation, length and test by user of a block that has just ended."""
    block, history = module.block, module.history
    result.metrics[f"valid/block{block}"] = max(h[f"eval/ndcg@{top_k}"] for h in history)
    result.metrics[f"rounds/block{block}"] = module.block_round
    replayed = [h.get("f3crec/replay_size", 0.0) for h in history]
    result.metrics[f"replay_size/block{block}"] = sum(replayed) / len(replayed)
    columns: dict[str, list[float]] = {}
    for name in ("ndcg", "recall"):
        ids, values = module.journal.clients[f"test/{name}@{top_k}"]
        columns |= {"ids": ids.tolist(), name: values.tolist()}
    result.users[str(block)] = columns
