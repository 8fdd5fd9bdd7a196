"""What MTAL and the methods it is compared with measure and show. Torch-free."""

from coterie.core.registry.keys import MetricKey, Panel

KEYS = (
    MetricKey("eval/rmse", "ratings", "RMSE over all validation cells", "min"),
    MetricKey("eval/map@10", "1", "MAP@10 over rows, among their validation cells", "max"),
    MetricKey("eval/ndcg@10", "1", "NDCG@10 over rows, among their validation cells", "max"),
    MetricKey("eval/accuracy", "1", "share of validation cells whose sign is right", "max"),
    MetricKey("test/rmse", "ratings", "RMSE over all test cells"),
    MetricKey("test/map@10", "1", "MAP@10 over rows, among their test cells"),
    MetricKey("test/ndcg@10", "1", "NDCG@10 over rows, among their test cells"),
    MetricKey("test/accuracy", "1", "share of test cells whose sign is right"),
    MetricKey("mtal/eta", "1", "rate η, mean over organisations"),
    MetricKey("mtal/weights", "1", "weights w that organisations give to each other's outputs"),
    MetricKey("mtal/own_weight", "1", "weight that an organisation gives to its own output"),
    MetricKey("mtal/dropped", "1", "whether the sums of the round's outputs were of no use"),
    MetricKey("mtal/residual_norm", "ratings", "root mean square of the residuals of all cells"),
)
PANELS = (
    Panel("Validation RMSE", ("eval/rmse",)),
    Panel("Validation ranking", ("eval/map@10", "eval/ndcg@10")),
    Panel("Rate η", ("mtal/eta",)),
    Panel("Residuals", ("mtal/residual_norm",)),
)
CLIENT_COLUMNS = ("eval/rmse", "eval/map@10", "test/rmse", "test/map@10", "mtal/eta")
