"""The fixed vocabulary of metric keys; every chart has ``round`` as its x axis."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

X_AXIS = "round"
NAMESPACES = ("fed", "eval", "test", "cost", "privacy", "clients")
CLIENT_TABLE = "clients/table"
CLIENT_MEASURES = ("eval/ndcg@20", "test/ndcg@20", "test/recall@20")


@dataclass(frozen=True)
class MetricKey:
    """One documented key.

    Attributes:
        name: as it stands in ``metrics.csv`` and in W&B; a star stands for a number or a word.
        unit: "1" for a pure number.
        meaning: one line for the documentation.
        summary: what W&B keeps of the curve besides the last value: "max", "min" or None.
    """

    name: str
    unit: str
    meaning: str
    summary: str | None = None


KEYS: tuple[MetricKey, ...] = (
    MetricKey("round", "rounds", "communication rounds so far over all blocks; the x axis"),
    MetricKey("block", "1", "data block of the round, from 0"),
    MetricKey("fed/loss", "1", "training loss, mean over the clients of the round", "min"),
    MetricKey("fed/clients", "clients", "clients whose update was accepted"),
    MetricKey("fed/refused", "answers", "answers left out in this round"),
    MetricKey("fed/stage", "1", "stage of fine-tuning, where there are two"),
    MetricKey("fed/lr", "1", "learning rate, mean over clients, where they choose it"),
    MetricKey("fed/epochs", "epochs", "local epochs, mean over clients, where they choose them"),
    MetricKey("fed/alpha", "1", "FedAMP's α_k in force"),
    MetricKey("fed/own_weight", "1", "FedAMP's ξ_ii, mean over clients"),
    MetricKey("eval/ndcg@20", "1", "validation NDCG@20, mean over clients", "max"),
    MetricKey("eval/ndcg@20_worst10", "1", "the same, mean over the worst tenth of clients", "max"),
    MetricKey("eval/ndcg@20_stream", "1", "mean over blocks of the best one, in the last round"),
    MetricKey("eval/recall@20", "1", "validation recall@20, mean over clients", "max"),
    MetricKey("eval/recall@10", "1", "validation recall@10, mean over users", "max"),
    MetricKey("eval/ndcg@10", "1", "validation NDCG@10, mean over users", "max"),
    MetricKey("eval/accuracy", "1", "what a round is chosen by: mean of the next two", "max"),
    MetricKey("eval/server_accuracy", "1", "global model on the server's validation", "max"),
    MetricKey("eval/personal_accuracy", "1", "own models on their clients' validation", "max"),
    MetricKey("eval/global_accuracy", "1", "global model on the clients' validation", "max"),
    MetricKey("eval/accuracy_stream", "1", "the best eval/accuracy of the run, in the last round"),
    MetricKey("eval/*_loss", "1", "loss of the same, with server, personal or global for the star"),
    MetricKey("test/*_accuracy", "1", "accuracies on test samples; nothing is chosen by them"),
    MetricKey("test/*_loss", "1", "losses on test samples; nothing is chosen by them"),
    MetricKey("test/recall@*", "1", "test recall of the best round, in the last round"),
    MetricKey("test/ndcg@*", "1", "test NDCG of the best round, in the last round"),
    MetricKey("test/imbalance", "1", "(best - worst) / worst client by test recall@10"),
    MetricKey("test/best_round", "rounds", "round that was tested"),
    MetricKey("test/block*/ndcg@20", "1", "test NDCG@20 of a block, in its last round"),
    MetricKey("test/block*/recall@20", "1", "test recall@20 of a block, in its last round"),
    MetricKey("test/block*/best_round", "rounds", "round of the block that was tested"),
    MetricKey("cost/up_bytes", "bytes", "sent by clients in this round"),
    MetricKey("cost/down_bytes", "bytes", "sent to clients in this round"),
    MetricKey("cost/seconds", "s", "wall time of this round"),
    MetricKey("cost/local_steps", "steps", "gradient steps of all clients in this round"),
    MetricKey("cost/up_bytes_total", "bytes", "sent by clients since the start"),
    MetricKey("cost/down_bytes_total", "bytes", "sent to clients since the start"),
    MetricKey("cost/local_steps_total", "steps", "gradient steps of all clients since the start"),
    MetricKey("cost/seconds_total", "s", "wall time of all rounds so far, without logging"),
    MetricKey("privacy/epsilon", "1", "ε of differential privacy spent so far"),
)


def documented(name: str) -> MetricKey | None:
    """Find the documented key; a star in it stands for a number.

    Example:
        >>> documented("test/block2/ndcg@20").unit, documented("eval/ndgc@20")
        ('1', None)
    """
    return next((key for key in KEYS if fnmatchcase(name, key.name)), None)
