"""What PAGE and the methods it is compared with measure and show. Torch-free."""

from coterie.core.registry.keys import MetricKey, Panel

_ACCURACIES = ("eval/server_accuracy", "eval/global_accuracy", "eval/personal_accuracy")

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
    Panel("Validation accuracy", ("eval/accuracy", *_ACCURACIES)),
    Panel("Test accuracy", tuple(key.replace("eval/", "test/") for key in _ACCURACIES)),
    Panel("Accuracy against local steps", _ACCURACIES, x="cost/local_steps_total"),
    Panel("Utilities of server and clients", ("page/reward_server", "page/reward_clients")),
    Panel("Learning rate of a client", ("page/lr", "fed/lr")),
    Panel("Local epochs of a client", ("page/epochs", "fed/epochs")),
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
