"""What core knows of the F³CRec paper, and what its runs measure. Torch-free."""

from typing import get_args

from coterie.continual.settings import Method
from coterie.core.registry.keys import MetricKey, Panel
from coterie.core.registry.papers import Paper

KEYS = (
    MetricKey("eval/ndcg@20", "1", "validation NDCG@20, mean over clients", "max"),
    MetricKey("eval/ndcg@20_worst10", "1", "the same, mean over the worst tenth of clients", "max"),
    MetricKey("eval/recall@20", "1", "validation recall@20, mean over clients", "max"),
    MetricKey("test/block*/ndcg@20", "1", "test NDCG@20 of a block, in its last round"),
    MetricKey("test/block*/recall@20", "1", "test recall@20 of a block, in its last round"),
    MetricKey("test/block*/ndcg@20_unseen", "1", "test NDCG@20, items of earlier blocks left out"),
    MetricKey(
        "test/block*/recall@20_unseen", "1", "test recall@20, items of earlier blocks left out"
    ),
    MetricKey("valid/block*/ndcg@20", "1", "validation NDCG@20 of what is tested"),
    MetricKey("valid/block*/recall@20", "1", "validation recall@20 of what is tested"),
    MetricKey("test/block*/best_round", "rounds", "round of the block that was tested"),
    MetricKey("test/block*/last_round", "rounds", "the same, where none was measured"),
    MetricKey("f3crec/replay_size", "items", "items replayed by a client, mean over clients"),
)
PANELS = (
    Panel(
        "NDCG@20: mean and worst tenth",
        ("eval/ndcg@20", "eval/ndcg@20_worst10"),
        names=("mean", "worst tenth"),
    ),
    Panel("Recall@20", ("eval/recall@20",)),
    Panel("NDCG@20 against bytes sent", ("eval/ndcg@20",), x="cost/up_bytes_total"),
    Panel("Items replayed by a client", ("f3crec/replay_size",)),
)
CLIENT_COLUMNS = ("eval/ndcg@20", "test/ndcg@20", "test/recall@20")


# What core knows of the F³CRec paper. Torch-free.

PAPER = Paper(
    name="f3crec",
    label="F³CRec",
    package="continual",
    title="Federated Continual Recommendation",
    reference="Lim, Kweon, Kim, Kim, Choi, Kim and Yu, CIKM 2025",
    methods=get_args(Method),
    settings="coterie.continual.settings:Settings",
    experiment="coterie.continual.experiment:Experiment",
    client="coterie.continual.client:ContinualClient",
    client_half="coterie.continual.client:make_client",
    server_half="coterie.continual.algorithm:make_server",
    tables="coterie.continual.tables:make_table",
    bench="benchmarks.continual.measure:bench",
    central="ft",
    local="ft",
    networks=("mf",),
    variant_keys=("data.name", "model.name"),
    keys=KEYS,
    panels=PANELS,
)
