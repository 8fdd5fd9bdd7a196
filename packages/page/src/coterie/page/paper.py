"""What core knows of the PAGE paper. Torch-free."""

from typing import get_args

from coterie.core.registry.papers import Paper
from coterie.page.keys import KEYS, PANELS
from coterie.page.settings.run import Method
from coterie.page.settings.tasks import TASKS

PAPER = Paper(
    name="page",
    package="page",
    title="PAGE: Equilibrate Personalization and Generalization in Federated Learning",
    reference="Chen et al., The Web Conference 2024",
    methods=get_args(Method),
    settings="coterie.page.settings.run:Settings",
    experiment="coterie.page.experiment:Experiment",
    client="coterie.page.client:PageClient",
    client_half="coterie.page.methods:make_client",
    server_half="coterie.page.halves:make_server",
    central="central",
    local="local",
    tables="coterie.page.tables:make_table",
    bench="benchmarks.page.measure:bench",
    variant_keys=("data.name", "model.name"),
    keys=KEYS,
    panels=PANELS,
    data_sets=TASKS,
    commands={"certify": "Test how near a trained run is to an equilibrium"},
)
