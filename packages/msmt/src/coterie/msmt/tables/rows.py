"""The rows of the tables: methods and networks, and which of them a task admits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.core.errors import UserError
from coterie.core.settings.schema import changed
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tensors.keys import Key
from coterie.msmt.data.task import Task
from coterie.msmt.models.make import make_model
from coterie.msmt.settings import Settings

ALONE, POOLED, FEDERATED = "each alone", "pooled", "federated"
_QUIET = {"privacy": PrivacySettings()}  # nothing is sent that noise could cover


@dataclass(frozen=True)
class Row:
    """A method of the tables.

    Attributes:
        label: for people.
        models: who trains on what.
        values: settings that make it.
        paper: its name in the paper's tables; None = it is not there.
        of: the row whose runs it is another measure of.
        whose: by whose models it is judged then.
        last: rounds that it has beside those of all, in which nobody sends anything.
    """

    label: str
    models: str
    values: Mapping[str, Any] = field(default_factory=dict)
    paper: str | None = None
    of: str | None = None
    whose: str = "personal"
    last: int = 0

    def settings(self, some: Settings) -> Settings:
        """The settings of the row, from those of PF-MSMTrec."""
        return changed(some, {**self.values, "rounds": some.rounds + self.last})


def _alone(label: str, network: str, paper: str | None = None) -> Row:
    values = {"method": "local", "model.name": network, **_QUIET}
    return Row(label, ALONE, values, paper or network)


def _pooled(label: str, network: str, paper: str | None = None) -> Row:
    values = {"method": "central", "model.name": network, **_QUIET}
    return Row(label, POOLED, values, paper or network)


def _federated(label: str, method: str, paper: str | None = None, **values: Any) -> Row:
    changes = {name.replace("__", "."): value for name, value in values.items()}
    return Row(label, FEDERATED, {"method": method, **changes}, paper)


OWN = "pf-msmtrec"
LOCAL, FEDAVG, ENSEMBLE, TUNED = "local", "fedavg", "ensemble", "fine-tuned"
ROWS: Mapping[str, Row] = {
    "single-task": _alone("Single-task", "single-task"),
    "mmoe": _alone("MMoE", "mmoe"),
    "ple": _alone("PLE", "ple"),
    "esmm": _alone("ESMM", "esmm"),
    "aitm": _alone("AITM", "aitm"),
    "star": _pooled("STAR", "star"),
    "aesm2": _pooled("AESM²", "aesm2"),
    "pepnet": _pooled("PEPNet", "pepnet"),
    LOCAL: _alone("PF-MSMTrec (Local)", "template", "local"),
    "pooled": _pooled("PF-MSMTrec (Local), one model", "template", "local"),
    FEDAVG: _federated("FedAvg", "fedavg", "fedavg"),
    "fedavg-own": Row("FedAvg, own epoch (ours)", FEDERATED, of=FEDAVG),
    "fedavg-esmm": _federated("FedAvg, ESMM (ours)", "fedavg", model__name="esmm"),
    "fedavg-esmm-own": Row("FedAvg, ESMM, own epoch (ours)", FEDERATED, of="fedavg-esmm"),
    "fedavg-mmoe": _federated("FedAvg, MMoE (ours)", "fedavg", model__name="mmoe"),
    "fedavg-mmoe-own": Row("FedAvg, MMoE, own epoch (ours)", FEDERATED, of="fedavg-mmoe"),
    TUNED: Row("FedAvg, fine-tuned (ours)", FEDERATED, of=ENSEMBLE, whose="tuned"),
    ENSEMBLE: Row("Local and fine-tuned, mixed (ours)", FEDERATED, {"method": "ensemble"}, last=1),
    "fedprox": _federated("FedProx", "fedprox", "fedprox"),
    "ditto": _federated("Ditto", "ditto", "ditto"),
    "fedamp": _federated("FedAMP, σ relative", "fedamp", "fedamp", fedamp__relative=True),
    "fedamp-absolute": _federated("FedAMP, σ absolute", "fedamp", fedamp__relative=False),
    OWN: _federated("PF-MSMTrec (Fed)", "pf-msmtrec", "pf-msmtrec"),
    "pf-literal": _federated("PF-MSMTrec (Fed), literal", "pf-msmtrec", reading="literal"),
    "pf-embeddings": _federated(
        "PF-MSMTrec (Fed), + embeddings (ours)", "pf-msmtrec", pf__share=("embeddings",)
    ),
    "pf-server-lr": _federated(
        "PF-MSMTrec (Fed), server step 10 (ours)", "pf-msmtrec", pf__server_lr=10.0
    ),
}
"""By name, in the order of the table. All federated methods, and PF-MSMTrec (Local), have the
template's network, where no other is named: only how parameters are aggregated differs."""
FEDERATED_ROWS = ("single-task", LOCAL, *(n for n, row in ROWS.items() if row.models == FEDERATED))
"""Of Tables 3 and 5."""


def refused(row: Row, settings: Settings, task: Task) -> str | None:
    """Say why a row cannot be trained on a task; None if it can."""
    found = row.settings(settings)
    if reason := task.lacks(found.method):
        return reason
    try:
        with Key.from_seed(0).torch_rng():
            make_model(found, task.schema)
    except UserError as error:
        return str(error)
    return None
