"""What core knows of the PAGE paper, and what its runs measure. Torch-free."""

from typing import get_args

from coterie.core.registry.keys import MetricKey, Panel
from coterie.core.registry.papers import Paper
from coterie.page.settings import Method
from coterie.page.tasks import TASKS

_ACCURACIES = ("eval/server_accuracy", "eval/global_accuracy", "eval/personal_accuracy")
_WHOSE = ("server", "global", "personal")

KEYS = (
    MetricKey("fed/lr", "1", "learning rate, mean over clients, where they choose it"),
    MetricKey("fed/epochs", "epochs", "local epochs, mean over clients, where they choose them"),
    MetricKey("fed/alpha", "1", "FedAMP's α_k in force"),
    MetricKey("fed/sigma", "1", "FedAMP's σ in force"),
    MetricKey("fed/distance", "1", "median squared distance between two clients' models (FedAMP)"),
    MetricKey("fed/own_weight", "1", "FedAMP's ξ_ii, mean over clients"),
    MetricKey("eval/accuracy", "1", "what a round is chosen by: mean of the next two", "max"),
    MetricKey("eval/server_accuracy", "1", "global model on the server's validation", "max"),
    MetricKey("eval/personal_accuracy", "1", "own models on their clients' validation", "max"),
    MetricKey("eval/global_accuracy", "1", "global model on the clients' validation", "max"),
    MetricKey("eval/*_loss", "1", "loss of the same, with server, personal or global for the star"),
    MetricKey("test/*_accuracy", "1", "accuracies on test samples; nothing is chosen by them"),
    MetricKey("test/*_loss", "1", "losses on test samples; nothing is chosen by them"),
    MetricKey("page/reward_server", "1", "utility u_CS of the server"),
    MetricKey("page/reward_clients", "1", "utility u_i of a client, mean over clients"),
    MetricKey("page/lr", "1", "learning rate η_i, mean over clients"),
    MetricKey("page/epochs", "epochs", "local epochs α_i, mean over clients"),
    MetricKey("page/branch_share", "1", "share a_i of a client's branch, mean over clients"),
    MetricKey("page/branch_lr", "1", "learning rate of a branch, 0 if of the model sent; mean"),
    MetricKey("page/weights_entropy", "nats", "entropy of the server's weights p"),
)
PANELS = (
    Panel("Validation accuracy", ("eval/accuracy", *_ACCURACIES), names=("mean", *_WHOSE)),
    Panel(
        "Test accuracy", tuple(key.replace("eval/", "test/") for key in _ACCURACIES), names=_WHOSE
    ),
    Panel("Accuracy against local steps", _ACCURACIES, x="cost/local_steps_total", names=_WHOSE),
    Panel(
        "Utilities of server and clients",
        ("page/reward_server", "page/reward_clients"),
        names=("server", "clients"),
    ),
    Panel("Learning rate of a client", ("page/lr", "fed/lr"), names=("PAGE", "others")),
    Panel("Local epochs of a client", ("page/epochs", "fed/epochs"), names=("PAGE", "others")),
    Panel("Entropy of the server's weights", ("page/weights_entropy",)),
)
CLIENT_COLUMNS = (
    "eval/personal_accuracy",
    "test/personal_accuracy",
    "test/global_accuracy",
    "page/lr",
    "page/epochs",
    "page/reward_clients",
    "page/branch_share",
    "page/branch_lr",
)


# What core knows of the PAGE paper. Torch-free.

PAPER = Paper(
    name="page",
    label="PAGE",
    package="page",
    title="PAGE: Equilibrate Personalization and Generalization in Federated Learning",
    reference="Chen et al., The Web Conference 2024",
    methods=get_args(Method),
    settings="coterie.page.settings:Settings",
    experiment="coterie.page.experiment:Experiment",
    client="coterie.page.client:PageClient",
    client_half="coterie.page.methods:make_client",
    server_half="coterie.page.experiment:make_server",
    central="central",
    local="local",
    tables="coterie.page.tables:make_table",
    bench="benchmarks.page.measure:bench",
    variant_keys=("data.name", "model.name"),
    keys=KEYS,
    panels=PANELS,
    looking="coterie.page.looking:reports",
    data_sets=TASKS,
    commands={"certify": "Test how near a trained run is to an equilibrium"},
)
