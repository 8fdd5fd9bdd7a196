"""What core knows of the PF-MSMTrec paper, and what its runs measure. Torch-free."""

from __future__ import annotations

from typing import get_args

from coterie.core.registry.keys import MetricKey, Panel
from coterie.core.registry.papers import Paper
from coterie.msmt.data_sets import DATA_SETS
from coterie.msmt.settings import Method

KEYS = (
    MetricKey(
        "eval/auc",
        "1",
        "validation AUC, mean over tasks and scenarios: rounds are chosen by it",
        "max",
    ),
    MetricKey("eval/auc_*", "1", "validation AUC of a task, mean over scenarios", "max"),
    MetricKey("eval/loss", "1", "validation cross-entropy, mean over scenarios", "min"),
    MetricKey("test/auc", "1", "test AUC, mean over tasks and scenarios"),
    MetricKey("test/auc_*", "1", "test AUC of a task, mean over scenarios"),
    MetricKey("test/loss", "1", "test cross-entropy, mean over scenarios"),
    MetricKey("eval/global_*", "1", "of one model for all scenarios, on validation samples"),
    MetricKey("eval/personal_*", "1", "of the scenarios' own models, on validation samples"),
    MetricKey("test/global_*", "1", "of one model for all scenarios, on test samples"),
    MetricKey("test/personal_*", "1", "of the scenarios' own models, on test samples"),
    MetricKey(
        "eval/local_*", "1", "ensemble: of the scenarios' own networks, on validation samples"
    ),
    MetricKey("eval/tuned_*", "1", "ensemble: of their partners, on validation samples"),
    MetricKey("test/local_*", "1", "ensemble: of the scenarios' own networks, on test samples"),
    MetricKey("test/tuned_*", "1", "ensemble: of their partners, on test samples"),
    MetricKey("last/auc*", "1", "test AUC of the last round"),
    MetricKey("msmt/psi", "1", "ψ, mean over experts and scenarios"),
    MetricKey("msmt/psi_tower", "1", "ψ' of the towers, mean over tasks and scenarios"),
    MetricKey("msmt/distance", "1", "root mean square of W_s - its anchor, mean over scenarios"),
    MetricKey("msmt/conflict", "1", "mean cosine of two increments of scenario parameters"),
    MetricKey("msmt/opposed", "1", "share of pairs of increments with a cosine below 0"),
    MetricKey("msmt/dual_weights", "1", "largest weight w* of an increment; by scenario their sum"),
    MetricKey("msmt/dual_gap", "1", "how far U* may be from the best, over the mean's square"),
    MetricKey(
        "msmt/own_weight",
        "1",
        "ensemble: weight of the own network, mean over tasks and scenarios",
    ),
    MetricKey("fed/alpha", "1", "FedAMP's α_k in force"),
    MetricKey("fed/sigma", "1", "FedAMP's σ in force"),
    MetricKey("fed/distance", "1", "median squared distance of two scenarios' models (FedAMP)"),
    MetricKey("fed/own_weight", "1", "FedAMP's weight of a scenario's own model"),
)
PANELS = (
    Panel("Validation AUC", ("eval/auc",)),
    Panel("Test AUC by task", ("test/auc_ctr", "test/auc_ctcvr"), names=("ctr", "ctcvr")),
    Panel("ψ of experts and towers", ("msmt/psi", "msmt/psi_tower"), names=("experts", "towers")),
    Panel("Conflict of increments", ("msmt/conflict", "msmt/dual_weights")),
    Panel("Distance of a scenario from the average", ("msmt/distance",)),
)
MEASURES = ("auc", "loss")


# What core knows of the PF-MSMTrec paper. Torch-free.

PAPER = Paper(
    name="pf-msmtrec",
    label="PF-MSMTrec",
    package="msmt",
    title="Towards Personalized Federated Multi-Scenario Multi-Task Recommendation",
    reference="Ding et al., arXiv 2406.18938, 2024",
    methods=get_args(Method),
    settings="coterie.msmt.settings:Settings",
    experiment="coterie.msmt.experiment:Experiment",
    client="coterie.msmt.client:PFClient",
    client_half="coterie.msmt.methods:make_client",
    server_half="coterie.msmt.experiment:make_server",
    central="central",
    local="local",
    tables="coterie.msmt.tables:make_table",
    bench="benchmarks.msmt.measure:bench",
    variant_keys=("data.name", "model.name"),
    keys=KEYS,
    panels=PANELS,
    looking="coterie.msmt.looking:reports",
    data_sets=DATA_SETS,
    commands={"attack": "Tell training rows from what the scenarios of a run upload"},
)
