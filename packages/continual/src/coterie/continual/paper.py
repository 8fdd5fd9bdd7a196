"""What core knows of the F³CRec paper. Torch-free."""

from typing import get_args

from coterie.continual.keys import KEYS, PANELS
from coterie.continual.settings import Method
from coterie.core.registry.papers import Paper

PAPER = Paper(
    name="f3crec",
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
