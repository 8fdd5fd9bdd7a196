"""What core knows of the PF-MSMTrec paper. Torch-free."""

from typing import get_args

from coterie.core.registry.papers import Paper
from coterie.msmt.keys import KEYS, PANELS
from coterie.msmt.settings.data_sets import DATA_SETS
from coterie.msmt.settings.run import Method

PAPER = Paper(
    name="pf-msmtrec",
    package="msmt",
    title="Towards Personalized Federated Multi-Scenario Multi-Task Recommendation",
    reference="Ding et al., arXiv 2406.18938, 2024",
    methods=get_args(Method),
    settings="coterie.msmt.settings.run:Settings",
    experiment="coterie.msmt.experiment:Experiment",
    client="coterie.msmt.client:PFClient",
    client_half="coterie.msmt.methods:make_client",
    server_half="coterie.msmt.halves:make_server",
    central="central",
    local="local",
    tables="coterie.msmt.tables:make_table",
    bench="benchmarks.msmt.measure:bench",
    variant_keys=("data.name", "model.name"),
    keys=KEYS,
    panels=PANELS,
    data_sets=DATA_SETS,
    commands={"attack": "Tell training rows from what the scenarios of a run upload"},
)
