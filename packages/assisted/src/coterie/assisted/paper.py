"""What core knows of the MTAL paper. Torch-free."""

from typing import get_args

from coterie.assisted.keys import KEYS, PANELS
from coterie.assisted.settings.run import Method
from coterie.core.registry.papers import Paper

PAPER = Paper(
    name="mtal",
    package="assisted",
    title="Privacy-Preserving Multi-Target Multi-Domain Recommender Systems with Assisted "
    "AutoEncoders",
    reference="Diao, Tarokh and Ding, arXiv 2110.13340",
    methods=get_args(Method),
    settings="coterie.assisted.settings.run:Settings",
    experiment="coterie.assisted.experiment:Experiment",
    client="coterie.assisted.client:Organisation",
    client_half="coterie.assisted.methods:make_client",
    server_half="coterie.assisted.halves:make_server",
    central="joint",
    local="alone",
    tables="coterie.assisted.tables:make_table",
    bench="benchmarks.assisted.measure:bench",
    variant_keys=("data.name", "data.feedback", "data.align"),
    keys=KEYS,
    panels=PANELS,
    commands={"attack": "Read ratings off what the organisations of a run exchange"},
)
