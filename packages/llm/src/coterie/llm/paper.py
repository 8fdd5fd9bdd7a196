"""What core knows of the PPLR paper, and what its runs measure and show. Torch-free."""

from typing import get_args

from coterie.core.registry.keys import MetricKey, Panel
from coterie.core.registry.papers import Paper
from coterie.llm.settings import USER_METHODS, Method

KEYS = (
    MetricKey("fed/stage", "1", "stage of fine-tuning, where there are two"),
    MetricKey("eval/recall@10", "1", "validation recall@10, mean over users", "max"),
    MetricKey("eval/recall@20", "1", "validation recall@20, mean over users", "max"),
    MetricKey("eval/ndcg@10", "1", "validation NDCG@10, mean over users", "max"),
    MetricKey("eval/ndcg@20", "1", "validation NDCG@20, mean over users", "max"),
    MetricKey("eval/ndcg@20_worst10", "1", "the same, mean over the worst tenth of users", "max"),
    MetricKey("test/recall@*", "1", "recall on the test of the best round, logged in the last"),
    MetricKey("test/ndcg@*", "1", "NDCG on the test of the best round, logged in the last"),
    MetricKey("test/imbalance", "1", "(best - worst) / worst client by test recall@10"),
    MetricKey("pplr/imbalance", "1", "the same by validation recall@10", "min"),
    MetricKey("pplr/similarity", "1", "s of a client to its peers, mean over clients"),
    MetricKey("pplr/difficulty", "1", "p of a client's loss, mean over clients"),
    MetricKey("pplr/warmup", "1", "w of a client, mean over clients"),
    MetricKey("fed/alpha", "1", "FedAMP's α_k in force"),
    MetricKey("fed/sigma", "1", "FedAMP's σ in force"),
    MetricKey("fed/distance", "1", "median squared distance of two clients' adapters (FedAMP)"),
    MetricKey("fed/own_weight", "1", "FedAMP's ξ_cc, mean over clients"),
    MetricKey("fedpergnn/neighbours", "users", "neighbours that a user knows, mean over users"),
    MetricKey(
        "privacy/epsilon_per_*", "1", "ε of FedPerGNN's noise on an upload, or a number of it"
    ),
    MetricKey("cost/encryption_seconds", "s", "FedMF: time that clients spent on encryption"),
)
PANELS = (
    Panel("Recall on validation", ("eval/recall@10", "eval/recall@20")),
    Panel("NDCG on validation", ("eval/ndcg@10", "eval/ndcg@20")),
    Panel("Imbalance of clients: (best - worst) / worst", ("pplr/imbalance",)),
    Panel(
        "Mixing: similarity to peers s, warm-up w",
        ("pplr/similarity", "pplr/warmup"),
        names=("s", "w"),
    ),
)
CLIENT_COLUMNS = (
    "fed/loss",
    "eval/recall@10",
    "test/recall@10",
    "pplr/similarity",
    "pplr/difficulty",
    "pplr/warmup",
)
USER_COLUMNS = ("eval/recall@10", "test/recall@10")  # where every user is a client


PAPER = Paper(
    name="pplr",
    label="PPLR",
    package="llm",
    title="LLM-based Federated Recommendation",
    reference="Zhao, Wang, Xu, See-Kiong, Chua and Feng, arXiv 2402.09959",
    methods=get_args(Method),
    settings="coterie.llm.settings:Settings",
    experiment="coterie.llm.experiment:Experiment",
    client="coterie.llm.client:Organisation",
    client_half="coterie.llm.client:make_client",
    server_half="coterie.llm.algorithm:make_server",
    central="central",
    local="local",
    networks=("mf", "lightgcn"),
    tables="coterie.llm.tables:make_table",
    bench="benchmarks.llm.measure:bench",
    export="coterie.llm.exported:exported",
    formats=("peft",),
    variant_keys=("data.name", "model.name"),
    unread=dict.fromkeys(USER_METHODS, ("model.name",)),
    keys=KEYS,
    panels=PANELS,
    commands={
        "client": "Run one organisation, with its own folder and token only",
        "attack": "Reconstruct the input from what each layer sends, to choose k",
        "cost": "Compare storage, inference and communication of FedAvg and PPLR",
        "export": "Save a client's adapter, or the model with it merged in",
        "serve": "Hold the middle layers of a split model for clients elsewhere",
    },
)
