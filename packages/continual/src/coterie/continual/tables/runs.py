"""One run without Lightning's files and loggers; runs of one seed share the base block."""

from __future__ import annotations

import warnings
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from coterie.continual.experiment import Experiment
from coterie.continual.settings import Settings
from coterie.core.files import writing
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.schema import changed
from coterie.core.tables.following import follow
from coterie.core.tables.result import RunResult
from coterie.core.tensors.saved import load, save

Base = dict[str, Any]


PROTOCOLS = {"": "", "_unseen": ", consumed items left out"}
"""The paper's protocol and the second one: ends of the names of metrics, and their words."""


class Probe(Protocol):
    """Measures something during a run. A class of a module's top level, made without arguments."""

    def after_round(self, experiment: Experiment, module: FederatedRun) -> None:
        """Look at a round that has just ended."""
        ...

    def found(self) -> dict[str, Any]:
        """Give plain values, for JSON."""
        ...


@dataclass(frozen=True)
class Plan:
    """A run to be made by a worker; without the file that `train_base` wrote, from the start."""

    settings: Settings
    base: Path | None = None
    probe: type[Probe] | None = None


def train_base(settings: Settings, path: Path) -> None:
    """Train the base block and keep the run as it was before its last round.

    The last round also closes the block, which each method does in its own way.
    """
    module = _module(Experiment(settings))
    base = deepcopy(module.to_plain())
    module.advance()
    while module.block_open:
        base = deepcopy(module.to_plain())
        module.advance()
    with writing(path):
        save(base, path)


def train_run(plan: Plan) -> RunResult:
    """Make a run, from the base block if there is one."""
    base = None if plan.base is None else load(plan.base)
    return train(plan.settings, base, plan.probe)[1]


def train(
    settings: Settings, base: Base | None = None, probe: type[Probe] | None = None
) -> tuple[FederatedRun, RunResult]:
    """Run a federation to its end; bit-equal with and without ``base``.

    The result has the final metrics, and of every client of a block ``block1/ids``,
    ``block1/ndcg``, ``block1/ndcg_unseen`` and the same of recall, NaN without an item to find.
    The tensors of ``base``, which `train_base` kept, are used up.
    """
    if probe is not None:  # it looks at the users' data, which are on the CPU
        settings = changed(settings, {"engine.device": "cpu"})
    experiment = Experiment(settings)
    module = _module(experiment)
    if base is not None:
        _start_from(module, base)
    measured = None if probe is None else probe()

    def after_round(result: RunResult) -> None:
        if not module.block_open:
            _note_block(result, module, experiment.settings.top_k)
        if measured is not None:
            measured.after_round(experiment, module)

    result = follow(module, after_round=after_round)
    result.metrics |= experiment.final_metrics(module)
    result.found = {} if measured is None else measured.found()
    return module, result


def _module(experiment: Experiment) -> FederatedRun:
    with warnings.catch_warnings():
        # Table 8 says so itself, once.
        warnings.filterwarnings("ignore", message=".*gives no privacy guarantee")
        return FederatedRun(experiment.federation())


def _start_from(module: FederatedRun, base: Base) -> None:
    """Put a run where the base block has one round to go, with what its own method remembers."""
    if base["block"] < 0:  # the base block has a single round
        return
    module.advance()  # enrols the users
    enrolled = module.store.to_plain()["rows"]
    own = {name: enrolled[name] for name in ("memory", "left_out")}
    rows = base["store"]["rows"] | own
    store = base["store"] | {"rows": rows}
    # Found by a fingerprint of data and settings; other readings cut later blocks otherwise.
    module.load_plain(base | {"store": store, "bound": module.bound})


def _note_block(result: RunResult, module: FederatedRun, top_k: int) -> None:
    """Note the length and the test by user of a block that has just ended."""
    block, history = module.block, module.block_history
    result.metrics[f"rounds/block{block}"] = module.block_round
    replayed = [h.get("f3crec/replay_size", 0.0) for h in history]
    result.metrics[f"replay_size/block{block}"] = sum(replayed) / len(replayed)
    for name in ("ndcg", "recall"):
        for protocol in PROTOCOLS:
            ids, values = module.journal.clients[f"test/{name}@{top_k}{protocol}"]
            result.clients[f"block{block}/ids"] = ids.tolist()
            result.clients[f"block{block}/{name}{protocol}"] = values.tolist()


def later_blocks(result: RunResult) -> list[str]:
    """Name the blocks after the first, as in the names of clients' numbers: ``block1``, ..."""
    blocks = (name.partition("/")[0] for name in result.clients if name.endswith("/ndcg"))
    return [block for block in blocks if block != "block0"]
