"""What the tables share: which methods and backbones there are, and how each is run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import cast, get_args

from coterie.core.tables.backbones import BackboneStudy
from coterie.core.tables.jobs import Job
from coterie.llm.paper import PAPER
from coterie.llm.settings.backbone import BackboneName
from coterie.llm.settings.run import Method, Settings
from coterie.llm.tables.essence import digest, essential, plain
from coterie.llm.tables.references import REFERENCES, ReferencePlan, reference_run
from coterie.llm.tables.runs import RunResult, train_run

Results = Mapping[str, Sequence[RunResult]]

NAMES = {
    "popularity": "popularity",
    "mf": "MF",
    "lightgcn": "LightGCN",
    "fedmf": "FedMF",
    "lightfr": "LightFR",
    "fedpergnn": "FedPerGNN",
    "central": "central",
    "fedavg": "+FedAvg",
    "fedprox": "+FedProx",
    "local": "+local only",
    "pplr": "+PPLR",
    "pplr-attention": "+attention only",
    "pplr-heating": "+warm-up only",
}
# The rows of Table 1 without a language model, in its order.
WITHOUT_BACKBONE = ("popularity", "mf", "lightgcn", "fedmf", "lightfr", "fedpergnn")
BACKBONES: tuple[BackboneName, ...] = tuple(
    name for name in ("tiny-item", "tiny-text", "recformer") if name in get_args(BackboneName)
)


class Study(BackboneStudy[Settings, RunResult]):
    """The runs behind a table or figure."""

    paper = PAPER
    result = RunResult
    all_backbones = BACKBONES

    def without_backbone(self, title: str, names: Iterable[str]) -> Results:
        """Run methods without a language model, as the tuned backbone's configuration has them."""
        return self.results(title, names, self._without_backbone)

    def job(self, settings: Settings) -> Job:
        """Make a run of a federated method."""
        settings = essential(settings)
        backbone = "" if settings.method in WITHOUT_BACKBONE else f"{settings.model.name}-"
        path = self.path(f"{backbone}{settings.method}-s{settings.seed}", settings)
        label = f"{backbone}{NAMES[settings.method].lstrip('+')}, seed {settings.seed}"
        return Job(path, train_run, settings, label)

    @cached_property
    def digest(self) -> str:
        """Hash of the data set."""
        return digest(self.settings)

    def _without_backbone(self, name: str, seed: int) -> Job:
        if name not in REFERENCES:
            return self.job(replace(self.settings, method=cast(Method, name), seed=seed))
        plan = ReferencePlan(name, plain(replace(self.settings, seed=seed), name))
        path = self.path(f"{name}-s{seed}", plan.settings, name)
        return Job(path, reference_run, plan, f"{NAMES[name]}, seed {seed}")


def column(results: Sequence[RunResult], metric: str) -> list[float]:
    """A metric over all users, one value a seed; NaN where a run has none."""
    return [result.metrics.get(metric, float("nan")) for result in results]


def imbalances(results: Sequence[RunResult], split: str = "test") -> list[float]:
    """Imbalance degree, one value a seed; infinite where only the worst client finds nothing."""
    return [result.imbalance(split) for result in results]


def of_client(results: Sequence[RunResult], client: int) -> list[float]:
    """Recall@10 of a client on the test, one value a seed."""
    return [result.clients["test/recall@10"][client] for result in results]
