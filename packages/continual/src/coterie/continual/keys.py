"""What F³CRec measures and shows. Torch-free."""

from coterie.core.registry.keys import MetricKey, Panel

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
    Panel("NDCG@20: mean and worst tenth", ("eval/ndcg@20", "eval/ndcg@20_worst10")),
    Panel("Recall@20", ("eval/recall@20",)),
    Panel("NDCG@20 against bytes sent", ("eval/ndcg@20",), x="cost/up_bytes_total"),
    Panel("Items replayed by a client", ("f3crec/replay_size",)),
)
CLIENT_COLUMNS = ("eval/ndcg@20", "test/ndcg@20", "test/recall@20")
