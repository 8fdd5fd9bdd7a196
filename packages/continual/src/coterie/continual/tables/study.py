"""What the tables share: methods and backbones, how each is run, what its numbers depend on."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from coterie.continual.experiment import Experiment
from coterie.continual.paper import PAPER
from coterie.continual.readings import resolve
from coterie.continual.settings import ModelSettings, ReplaySettings, Settings
from coterie.continual.tables.references import REFERENCES
from coterie.continual.tables.runs import PROTOCOLS, Plan, Probe, train_base, train_run
from coterie.core.data.interactions.digest import data_digest
from coterie.core.settings.schema import changed
from coterie.core.tables.jobs import Job
from coterie.core.tables.result import RunResult, column
from coterie.core.tables.study import BackboneStudy

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
