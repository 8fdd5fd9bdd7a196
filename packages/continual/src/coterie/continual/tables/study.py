"""What the tables share: methods, how each is run, what its numbers depend on, how they compare."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coterie.continual.experiment import Experiment
from coterie.continual.paper import PAPER
from coterie.continual.settings import ModelSettings, ReplaySettings, Settings, resolve
from coterie.continual.tables.references import REFERENCES
from coterie.core.data.interactions.canonical import data_digest
from coterie.core.files import writing
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.schema import changed
from coterie.core.style import Roles
from coterie.core.tables.dots import Differences
from coterie.core.tables.following import follow
from coterie.core.tables.jobs import Job
from coterie.core.tables.paired import FEWEST, Comparison, Contrast, compare, contrasts, p_text
from coterie.core.tables.result import RunResult, column
from coterie.core.tables.study import BackboneStudy, Results
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


# What the tables share: methods and backbones, how each is run, what its numbers depend on.

NAMES = {
    "ft": "FT",
    "reg": "Reg",
    "kd": "KD",
    "rlp2": "RLP2",
    "spp": "SPP",
    "f3crec": "F³CRec",
    "f3crec-wo-cc": "w/o c.c",
    "f3crec-wo-arm": "w/o a.r.m",
    "f3crec-wo-sc": "w/o s.c",
    "f3crec-wo-itm": "w/o i.t.m",
    "popularity": "popularity, all blocks so far",
    "popularity-block": "popularity, this block",
    "central": "centralised MF, all blocks so far",
    "central-stream": "centralised MF, block by block",
}
BACKBONE_NAMES = {"fedmf": "FedMF", "fedncf": "FedNCF", "pfedrec": "PFedRec"}
METRIC_NAMES = {"ndcg": "N", "recall": "R"}
CONSUMED = (
    "Consumed items left out: the same runs and rounds, in a test that neither ranks nor seeks "
    "what a user had in earlier blocks; the paper ranks it with the rest."
)
# The sections of the settings that a method reads.
_READS: dict[str, set[str]] = {
    "ft": set(),
    "reg": {"reg"},
    "kd": {"replay", "kd"},
    "rlp2": {"rlp2"},
    "spp": {"spp"},
    "f3crec": {"replay", "temporal_mean"},
    "f3crec-wo-cc": {"temporal_mean"},
    "f3crec-wo-arm": {"replay", "temporal_mean"},
    "f3crec-wo-sc": {"replay"},
    "f3crec-wo-itm": {"replay", "temporal_mean"},
}

_SECTIONS = set().union(*_READS.values())
# top_n is checked against the number of items even where nothing is replayed.
_UNREAD_REPLAY = ReplaySettings(top_n=1)


def essential(settings: Settings) -> Settings:
    """Set what the method does not read to its default, and fill the reading's choices.

    Example:
        >>> essential(Settings(method="ft", replay=ReplaySettings(epsilon=0.5))).replay.epsilon
        0.006
    """
    defaults = replace(Settings(), replay=_UNREAD_REPLAY)
    unread: dict[str, Any] = {
        name: getattr(defaults, name) for name in _SECTIONS - _READS[settings.method]
    }
    filled = resolve(settings)
    if "replay" in unread:
        use, listed = filled.replay.use, filled.replay.leave_out_n
        unread["replay"] = replace(_UNREAD_REPLAY, use=use, leave_out_n=listed)
    if not filled.leaves_out:
        listed = Settings().replay.leave_out_n
        kept = unread.get("replay", filled.replay)
        unread["replay"] = replace(kept, use="distil", leave_out_n=listed)
    return resolve(replace(filled, **unread))


def base_settings(settings: Settings) -> Settings:
    """Give the settings of the base block alone, in which every method is fine-tuning."""
    plain = {"method": "ft", "reading": "recommended", "carry": "best", "restart_private": False}
    plain |= {"replay.use": "distil", "server_lr": 1.0}
    order = {"data.block_order": "chronological", "data.ties": "random"}
    return essential(changed(resolve(settings), plain | order))


@dataclass(frozen=True)
class Study(BackboneStudy[Settings]):
    """The runs behind a table or figure.

    Attributes:
        probe: what is measured during the runs.
    """

    paper, names, backbone_names = PAPER, NAMES, BACKBONE_NAMES
    train, essential = train_run, essential
    references = REFERENCES

    probe: type[Probe] | None = None

    def probing(self, probe: type[Probe]) -> Study:
        """Give the study whose runs are measured by a probe."""
        return replace(self, probe=probe)

    def bare(self, name: str, settings: Settings) -> Settings:
        """Keep what references read: data, splits, length of vectors and lists, seed."""
        filled = resolve(settings)
        model = ModelSettings(dim=filled.model.dim)
        plain = Settings(seed=filled.seed, top_k=filled.top_k, data=filled.data, model=model)
        return essential(replace(plain, method="ft"))

    def stem(self, settings: Settings) -> str:
        """Begin the names of files of a run: backbone and method."""
        return f"{settings.model.name}-{settings.method}"

    def job(self, settings: Settings) -> Job:
        """Make a run that starts from the base block, which all methods share."""
        settings, start = essential(settings), base_settings(settings)
        path = self.path(f"{settings.model.name}-base", start, suffix="pt")
        label = f"base block, {settings.model.name}, seed {settings.seed}"
        base = Job(path, train_base, start, label)
        probed = [] if self.probe is None else [inspect.getsource(self.probe)]
        path = self.path(self.stem(settings), settings, *probed)
        return self.kept(path, train_run, Plan(settings, base.path, self.probe), settings, base)

    @cached_property
    def digest(self) -> str:
        """Hash of the data set."""
        return data_digest(Experiment(self.settings).interactions)


def label_of(metric: str) -> str:
    """Write a metric as papers do, with the protocol if it is not theirs.

    Example:
        >>> label_of("ndcg@20"), label_of("recall@20_unseen")
        ('N@20', 'R@20, consumed items left out')
    """
    name, _, rest = metric.partition("@")
    length, _, unseen = rest.partition("_")
    return f"{METRIC_NAMES[name]}@{length}" + (PROTOCOLS["_unseen"] if unseen else "")


def averages(results: Sequence[RunResult], metric: str) -> list[float]:
    """Mean over the blocks after the first, one value a seed; ``metric`` as "ndcg@20"."""
    return column(results, f"test/average/{metric}")


def validations(results: Sequence[RunResult], metric: str) -> list[float]:
    """The same on validation, of what is tested."""
    return column(results, f"valid/average/{metric}")


def improvements(values: Sequence[float], bases: Sequence[float]) -> list[float]:
    """Per cent over a base, one value a seed; NaN over nothing."""
    pairs = zip(values, bases, strict=True)
    return [100 * (value / base - 1) if base else float("nan") for value, base in pairs]


# How F³CRec compares with another method: paired over seeds, and over users.

OWN = "f3crec"


def over_others(results: Results, metric: str) -> dict[str, Contrast]:
    """Compare F³CRec with each of the other methods on the test; the metric as "ndcg@20"."""
    return contrasts({name: averages(runs, metric) for name, runs in results.items()}, OWN)


def over_users(results: Results, other: str, metric: str) -> Comparison:
    """Compare F³CRec with another method over (block, user), by the user's mean over seeds."""
    return compare(user_means(results[OWN], metric), user_means(results[other], metric))


def in_short(found: Contrast) -> str:
    """Write a difference, its p and the verdict."""
    return f"{found.found.difference:+.4f}, p {p_text(found.p)}: {found.verdict}"


def sentence(found: Contrast, metric: str, users: Comparison | None = None) -> str:
    """Say in full how F³CRec compares; ``users`` from `over_users`, where they were tested."""
    s = found.found
    over = f", over {users.n} users p {p_text(users.p)}" if users else ""
    return (
        f"{metric}: {NAMES[OWN]} - {NAMES[found.other]} = {s.difference:+.4f} "
        f"(95 % interval {s.low:+.4f} to {s.high:+.4f}), paired t-test over {s.n} seeds "
        f"p {p_text(s.p)} (Holm {p_text(found.p)}){over}: {found.verdict}."
    )


def paired(label: str, first: Sequence[float], second: Sequence[float]) -> str:
    """Say how two groups of runs differ, without an adjustment."""
    found = compare(first, second)
    return f"{label} {found.difference:+.4f}, paired over seeds p = {found.p:.3g}."


def differences(series: Mapping[str, Mapping[str, Contrast]], metric: str) -> Differences:
    """Draw what F³CRec has over each method, by its printed name; one colour a series."""
    named = {
        label: {NAMES[method]: contrast.found for method, contrast in found.items()}
        for label, found in series.items()
    }
    return Differences(f"F³CRec minus it, {metric}", named, roles=Roles(better="higher"))


def user_means(results: Sequence[RunResult], metric: str) -> NDArray[np.float64]:
    """Mean over seeds for every user of every block after the first, NaN without a test item."""
    name, blocks = re.sub(r"@\d+", "", metric), later_blocks(results[0])
    seeds = [np.concatenate([r.clients[f"{block}/{name}"] for block in blocks]) for r in results]
    # A user has a test item in all seeds or, with random splits too, in none.
    return np.mean(seeds, axis=0)


def best_of(results: Results, metric: str) -> str:
    """Name the method with the highest mean."""
    return max(results, key=lambda name: np.mean(averages(results[name], metric)))


def noise_note(found: Mapping[str, Contrast], metric: str) -> str:
    """Name the methods from which F³CRec cannot be told apart."""
    if any(c.verdict == "not tested" for c in found.values()):
        return f"{metric}: fewer than {FEWEST} seeds tell no difference from noise."
    within = [NAMES[name] for name, c in found.items() if c.verdict == "within noise"]
    return f"{metric}: within noise of F³CRec: {', '.join(within) or 'none'}."
