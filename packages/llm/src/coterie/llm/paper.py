"""What core knows of the PPLR paper. Torch-free."""

from typing import get_args

from coterie.core.registry.papers import Paper
from coterie.llm.keys import KEYS, PANELS
from coterie.llm.settings.run import USER_METHODS, Method

PAPER = Paper(
    name="pplr",
    package="llm",
    title="LLM-based Federated Recommendation",
    reference="Zhao, Wang, Xu, See-Kiong, Chua and Feng, arXiv 2402.09959",
    methods=get_args(Method),
    settings="coterie.llm.settings.run:Settings",
    experiment="coterie.llm.experiment:Experiment",
    client="coterie.llm.client:Organisation",
    client_half="coterie.llm.client:make_client",
    server_half="coterie.llm.algorithm:make_server",
    central="central",
    local="local",
    networks=("mf", "lightgcn"),
    tables="coterie.llm.tables:make_table",
    bench="benchmarks.llm.measure:bench",
    variant_keys=("data.name", "model.name"),
    unread=dict.fromkeys(USER_METHODS, ("model.name",)),
    keys=KEYS,
    panels=PANELS,
    commands={
        "client": "Run one organisation, with its own folder and token only",
        "attack": "Reconstruct the input from what each layer sends, to choose k",
        "cost": "Compare storage, inference and communication of FedAvg and PPLR",
        "export": "Save a client's adapter, or the model with it merged in",
        "serve": "Hold the middle layers of a split model for clients elsewhere",
    },
)
