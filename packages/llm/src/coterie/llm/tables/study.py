"""What the tables share: methods, backbones, how a run is made, read and compared."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, get_args

import numpy as np
import torch

from coterie.core.data.interactions.canonical import data_digest
from coterie.core.data.sources.catalogue import load_all
from coterie.core.metrics.clients import imbalance
from coterie.core.run.driver import FederatedRun
from coterie.core.tables.following import follow
from coterie.core.tables.jobs import Job
from coterie.core.tables.paired import Contrast, contrasts
from coterie.core.tables.result import NAN, RunResult, column, known
from coterie.core.tables.sheet import cell
from coterie.core.tables.study import BackboneStudy, Results
from coterie.llm.backbone_settings import BackboneName, ExpertSettings
from coterie.llm.backbones import minilm
from coterie.llm.client import Organisation
from coterie.llm.data.catalogue import Catalogue
from coterie.llm.experiment import Experiment
from coterie.llm.paper import PAPER
from coterie.llm.quality import MEASURES
from coterie.llm.readings import resolve
from coterie.llm.rules import has_words
from coterie.llm.settings import FederatedDataSettings, MixingSettings, Settings
from coterie.llm.tables.references import REFERENCES, start_run

COURSE = (
    "fed/loss",
    "start/recall@10",
    "eval/recall@10",
    "pplr/similarity",
    "pplr/difficulty",
    "pplr/warmup",
)
# Steps that measure, or make ready to measure; a round's traffic is without them.
_MEASURING = {"evaluate", "weigh", "fold_in", "keep_best", "remember"}


def imbalances(results: Sequence[RunResult], split: str = "test") -> list[float]:
    """Imbalance degree of the clients' Recall@10 (section 4.4.2), one value a seed.

    It is infinite where only the worst client finds nothing, NaN where none finds anything.
    """
    found = (torch.tensor(r.clients[f"{split}/recall@10"], dtype=torch.float64) for r in results)
    return [imbalance(values) for values in found]


def evenness(results: Sequence[RunResult]) -> list[float]:
    """Recall@10 of the worst client over that of the best, 1 / (1 + imbalance), one a seed."""
    return [1.0 / (1.0 + unequal) for unequal in imbalances(results)]


def worst(results: Sequence[RunResult]) -> list[float]:
    """Recall@10 of the worst client, one value a seed; NaN without any."""
    return [min(known(result.clients["test/recall@10"]), default=NAN) for result in results]


def of_client(results: Sequence[RunResult], client: int) -> list[float]:
    """Recall@10 of a client on the test, one value a seed."""
    return [result.clients["test/recall@10"][client] for result in results]


def summary(results: Sequence[RunResult], split: str = "test") -> dict[str, str]:
    """Recall@10 and imbalance of the runs of one variant, for people."""
    recall = cell(column(results, f"{split}/recall@10"))
    return {f"{split} R@10": recall, **inequality(imbalances(results, split))}


def inequality(unequal: Sequence[float], paper: float | None = None) -> dict[str, str]:
    """Median imbalance of one value a seed, the paper's beside it, and how many are infinite.

    It is unknown of seeds in which no client finds anything, which are left out.

    Example:
        >>> inequality([0.5, float("inf"), 0.7, float("nan")], 4.5)
        {'imbalance': '0.70 (4.50)', 'infinite': '1 of 3'}
    """
    unequal = known(unequal)
    printed = f" ({paper:.2f})" if paper is not None and paper == paper else ""
    return {
        "imbalance": f"{np.median(unequal):.2f}{printed}" if unequal else f"unknown{printed}",
        "infinite": f"{int(np.isinf(unequal).sum())} of {len(unequal)}",
    }


def train(settings: Settings) -> RunResult:
    """Run a federation to its end; its clients are organisations, or users of organisations.

    Metrics are over all users, as ``test/recall@10``, and of the best round on validation, as
    ``valid/recall@10``; ``rounds``, ``best_round``, ``seconds``, ``trained`` (numbers that a client
    trains), ``up`` and ``down`` (bytes a client and round). Clients' numbers are K values each, NaN
    without a user to measure; the course is by the names of `COURSE`, NaN for clients that did not
    take part.
    """
    experiment = Experiment(settings)
    began = time.perf_counter()
    module = FederatedRun(experiment.federation())
    result = follow(module, _MEASURING, lambda result: _note_round(result, module, experiment))
    result.metrics["seconds"] = time.perf_counter() - began
    result.metrics["trained"] = _trained(module, settings)
    _note_end(result, module)
    for name, values in experiment.of_clients(module).items():
        result.clients[f"test/{name}"] = values.tolist()
    best = int(result.metrics["best_round"])
    course = result.course.get("eval/recall@10" if best else "start/recall@10")
    if course:
        result.clients["valid/recall@10"] = course[max(best - 1, 0)]
    return result


def _note_round(result: RunResult, module: FederatedRun, experiment: Experiment) -> None:
    for name in COURSE:
        if name not in module.journal.clients:
            continue
        found = experiment.means_of_clients(*module.journal.clients[name])
        result.course.setdefault(name, []).append(found.tolist())


def _note_end(result: RunResult, module: FederatedRun) -> None:
    """Note the overall metrics, the rounds and the traffic of a run that is finished."""
    best = int(module.results["test/best_round"])
    result.metrics |= {"rounds": module.round, "best_round": best}
    chosen, where = module.history[max(best - 1, 0)], "eval" if best else "start"
    for name in MEASURES:
        result.metrics[f"test/{name}"] = module.results[f"test/{name}"]
        if f"{where}/{name}" in chosen:
            result.metrics[f"valid/{name}"] = chosen[f"{where}/{name}"]
    trainings = result.total("fed/clients")
    for way in ("up", "down"):
        size = result.total(f"cost/{way}_bytes")
        result.metrics[way] = size / trainings if trainings else NAN


def _trained(module: FederatedRun, settings: Settings) -> int:
    """Count the numbers that a client trains: an adapter; or public parts and its own vector."""
    state = module.server_state
    if hasattr(state, "rows"):
        client, halves = module.federation.client, getattr(module.federation.server, "halves", None)
        assert isinstance(client, Organisation)
        return client.adapter.size + (0 if halves is None else halves.size)
    if settings.method == "lightfr":  # bits, packed into bytes in the public part
        return settings.lightfr.bits * (state.public["codes"].shape[0] + 1)
    own = settings.fedmf.dim if settings.method == "fedmf" else settings.fedpergnn.dim
    return own + sum(v.numel() for v in state.public.values() if v.is_floating_point())


# What the tables share: methods, backbones, how each is run, and what it reads of the settings.

NAMES = {
    "popularity": "popularity",
    "own-popularity": "own popularity",
    "titles-alone": "titles",
    "titles": "titles + popularity",
    "titles-all": "titles + all counts",
    "titles-own": "titles + own counts",
    "mf": "MF",
    "lightgcn": "LightGCN",
    "fedmf": "FedMF",
    "lightfr": "LightFR",
    "fedpergnn": "FedPerGNN",
    "fedpergnn-clear": "FedPerGNN without noise",
    "untrained-alone": "untrained, without words and counts",
    "untrained": "untrained",
    "central": "central",
    "fedavg": "+FedAvg",
    "fedprox": "+FedProx",
    "fedavg-tuned": "+FedAvg, tuned locally",
    "fedavg-head": "+FedAvg, local head",
    "fedamp": "+FedAMP",
    "local": "+local only",
    "pplr": "+PPLR",
    "pplr-attention": "+attention only",
    "pplr-heating": "+warm-up only",
}
# The rows of Table 1 without a language model, in its order.
WORDLESS = ("popularity", "own-popularity")
RULES = (*WORDLESS, "titles-alone", "titles", "titles-all", "titles-own")
WITHOUT_BACKBONE = (*RULES, "mf", "lightgcn", "fedmf", "lightfr", "fedpergnn")
BACKBONES = ("tiny-item", "tiny-text", "recformer", "encoder")
_ATTENTION = {"similarity", "similarity_on", "size_weighted"}
_HEATING = {"alpha", "beta", "tau", "exponent", "size_weighted"}
# What of the section mixing a method reads.
_READS: dict[str, set[str]] = {
    "pplr": _ATTENTION | _HEATING,
    "pplr-attention": _ATTENTION,
    "pplr-heating": _HEATING,
}
_SECTIONS = WITHOUT_BACKBONE[len(RULES) :]  # all that these methods read, beside the data
_OWN = {"fedavg-tuned": "tuning", "fedamp": "fedamp"}  # sections that one method alone reads
_COMMON = ("seed", "data", "engine", "privacy", "logger", "run")


def essential(settings: Settings) -> Settings:
    """Fill the reading's choices, and set what the method does not read to one value.

    Example:
        >>> essential(Settings(method="fedavg", mixing=MixingSettings(alpha=0.1))).mixing.alpha
        0.7
    """
    settings = replace(settings, data=_read_data(settings.data))
    if settings.method in _SECTIONS:
        return resolve(replace(plain(settings, settings.method), method=settings.method))
    filled = resolve(settings)
    reads = _READS.get(filled.method, set())
    kept: dict[str, Any] = {name: getattr(filled.mixing, name) for name in reads}
    of_others = [name for method, name in _OWN.items() if method != filled.method]
    unread: dict[str, Any] = {name: getattr(Settings(), name) for name in (*_SECTIONS, *of_others)}
    if filled.model.expert == "none":
        unread["expert"] = _read_expert(filled)
    less = replace(filled, reading="recommended", mixing=MixingSettings(**kept), **unread)
    if filled.method != "fedprox":
        less = replace(less, train=replace(less.train, mu=0.0))
    return resolve(less)


def _read_expert(settings: Settings) -> ExpertSettings:
    """Keep what a backbone reads of an expert that is not there: the items' words."""
    model, expert = settings.model, settings.expert
    if model.name == "encoder":
        return ExpertSettings(words=expert.words)
    if model.items == "words":
        return ExpertSettings(words=expert.words, min_items=expert.min_items)
    return ExpertSettings()


def _read_data(data: FederatedDataSettings) -> FederatedDataSettings:
    """Set what the partition does not read to one value."""
    return data if data.partition == "shops" else replace(data, skew=FederatedDataSettings().skew)


def plain(settings: Settings, section: str) -> Settings:
    """Keep the data, the seed and one section, if there is such a section."""
    sections = (*_COMMON, section) if section in _SECTIONS else _COMMON
    kept: dict[str, Any] = {name: getattr(settings, name) for name in sections}
    return resolve(Settings(**kept | {"data": _read_data(settings.data)}))


class Study(BackboneStudy[Settings]):
    """The runs behind a table or figure."""

    paper, names = PAPER, NAMES
    backbone_names: ClassVar = {name: name for name in BACKBONES if name in get_args(BackboneName)}
    train, essential = train, essential
    references = REFERENCES

    def bare(self, name: str, settings: Settings) -> Settings:
        """Keep what references read: data, seed, and a section of their own if there is one."""
        return plain(settings, name)

    def file(self, which: str) -> str:
        """Name of the file of "table1" or "figure2", with the clients that the user asks for."""
        data = self.settings.data
        skew = f"-{data.skew:g}" if data.partition == "shops" else ""
        clients = "" if data.partition == "k-means" else f"-{data.partition}{skew}"
        return f"{super().file(which)}{clients}"

    def stem(self, settings: Settings) -> str:
        """Begin the names of files of a run: method, and backbone if it has one."""
        backbone = "" if settings.method in WITHOUT_BACKBONE else f"{settings.model.name}-"
        return f"{backbone}{settings.method}"

    @property
    def backbones(self) -> tuple[str, ...]:
        """The backbone that the user names, or all that need no download."""
        found = super().backbones
        return found if len(found) == 1 or minilm.installed() else found[:-1]

    def untrained(self, title: str, backbone: str) -> Results:
        """Rank by a backbone as it is before the first round; also without what is beside it."""
        tuned = self.tuned(backbone)
        chosen = {"untrained": tuned}
        if resolve(tuned).model.expert != "none":
            words = ExpertSettings(words=tuned.expert.words, min_items=tuned.expert.min_items)
            alone = replace(tuned, model=replace(tuned.model, expert="none"), expert=words)
            chosen = {"untrained-alone": alone, **chosen}

        def job(name: str, seed: int) -> Job:
            own = essential(replace(chosen[name], method="fedavg", seed=seed))
            path = self.path(f"{backbone}-untrained", own)
            return self.kept(path, start_run, own, own)

        return self._results(title, tuple(chosen), job)

    @property
    def without_backbone(self) -> tuple[str, ...]:
        """Name the rows without a language model; the titles' only where items have words."""
        return (*self.rules, *_SECTIONS)

    @property
    def rules(self) -> tuple[str, ...]:
        """Name those of them that are not trained."""
        return RULES if has_words(Catalogue.of(load_all(self.settings.data))) else WORDLESS

    @cached_property
    def digest(self) -> str:
        """Hash of the data set."""
        return data_digest(load_all(self.settings.data))


OWN = "pplr"
Found = Mapping[str, Mapping[str, Contrast]]
"""Measure -> other method -> PPLR minus it."""
_EVERY_CLIENT = "R@10 of each client"


def over_others(results: Results, others: Sequence[str]) -> Found:
    """Compare PPLR with other methods in Recall@10, NDCG@10, imbalance and the worst client.

    The imbalance is infinite where the worst client finds nothing. If that happens in any run, its
    monotone image worst / best = 1 / (1 + imbalance), which is always finite, is tested instead.
    """
    runs = {name: results[name] for name in (OWN, *others)}
    unequal = {name: imbalances(part) for name, part in runs.items()}
    inequality = "imbalance"
    if not np.isfinite(list(unequal.values())).all():
        inequality = "worst / best client (imbalance is not finite)"
        unequal = {name: evenness(part) for name, part in runs.items()}
    values = {
        "R@10": {name: column(part, "test/recall@10") for name, part in runs.items()},
        "N@10": {name: column(part, "test/ndcg@10") for name, part in runs.items()},
        inequality: unequal,
        "R@10 of the worst client": {name: worst(part) for name, part in runs.items()},
        _EVERY_CLIENT: {name: _every_client(part) for name, part in runs.items()},
    }
    return {
        measure: contrasts(group, OWN, higher=measure != "imbalance")
        for measure, group in values.items()
    }


def comparison_notes(where: str, results: Results, others: Sequence[str]) -> list[str]:
    """Say plainly where PPLR is not better, then write out the comparisons, a line a measure."""
    found, notes = over_others(results, others), []
    for measure, group in found.items():
        printed = [replace(c, other=_plain(c.other)) for c in group.values()]
        said = [f"{c.text()}, {_verdict(c)}" for c in printed]
        pairs = "clients and seeds (not independent)" if measure == _EVERY_CLIENT else "seeds"
        n = next(iter(group.values())).found.n
        notes.append(
            f"{where}, {measure}, PPLR minus: {'; '.join(said)}. "
            f"Paired t-test over {n} {pairs}, 95 % interval."
        )
    return [verdict_note(where, found), *notes]


def verdict_note(where: str, found: Found) -> str:
    """Say plainly where PPLR is not better."""
    lost: dict[str, list[str]] = {}
    for measure, group in found.items():
        for contrast in group.values():
            if contrast.verdict != "better":
                lost.setdefault(contrast.other, []).append(measure)
    if not lost:
        return f"{where}: PPLR is better in everything tested."
    text = "; ".join(f"than {_plain(name)} in {', '.join(what)}" for name, what in lost.items())
    return f"{where}: PPLR is NOT better {text}."


def _every_client(results: Sequence[RunResult]) -> list[float]:
    return [value for result in results for value in result.clients["test/recall@10"]]


def _verdict(found: Contrast) -> str:
    return found.verdict if found.verdict in ("better", "worse") else "not better, within noise"


def _plain(method: str) -> str:
    return NAMES[method].lstrip("+")
