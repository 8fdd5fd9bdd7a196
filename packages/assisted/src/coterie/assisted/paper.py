"""What core knows of the MTAL paper, and what its runs measure and show. Torch-free."""

from typing import get_args

from coterie.assisted.settings import Method
from coterie.core.registry.keys import MetricKey, Panel
from coterie.core.registry.papers import Paper

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


PAPER = Paper(
    name="mtal",
    label="MTAL",
    package="assisted",
    title="Privacy-Preserving Multi-Target Multi-Domain Recommender Systems with Assisted "
    "AutoEncoders",
    reference="Diao, Tarokh and Ding, arXiv 2110.13340",
    methods=get_args(Method),
    settings="coterie.assisted.settings:Settings",
    experiment="coterie.assisted.experiment:Experiment",
    client="coterie.assisted.client:Organisation",
    clients={
        "residuals": "coterie.assisted.receiver:Receiver",
        "sums": "coterie.assisted.sums_client:Summing",
        "alone": "coterie.assisted.apart:Apart",
        "joint": "coterie.assisted.apart:Apart",
    },
    client_half="coterie.assisted.client_halves:make_client",
    server_half="coterie.assisted.server_halves:make_server",
    central="joint",
    local="alone",
    tables="coterie.assisted.tables:make_table",
    bench="benchmarks.assisted.measure:bench",
    variant_keys=("data.name", "data.feedback", "data.align"),
    keys=KEYS,
    panels=PANELS,
    looking="coterie.assisted.looking:reports",
    commands={"attack": "Read ratings off what the organisations of a run exchange"},
)
