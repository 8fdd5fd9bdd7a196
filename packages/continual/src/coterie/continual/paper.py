"""What core knows of the F³CRec paper. Torch-free."""

from coterie.core.papers import Paper

PAPER = Paper(
    name="f3crec",
    package="continual",
    title="Federated Continual Recommendation",
    reference="Lim, Kweon, Kim, Kim, Choi, Kim and Yu, CIKM 2025",
    methods=(
        "ft",
        "reg",
        "kd",
        "rlp2",
        "spp",
        "f3crec",
        "f3crec-wo-cc",
        "f3crec-wo-arm",
        "f3crec-wo-sc",
        "f3crec-wo-itm",
    ),
    settings="coterie.continual.settings:Settings",
    experiment="coterie.continual.experiment:Experiment",
    client="coterie.continual.client:ContinualClient",
    tables="coterie.continual.tables:make_table",
    bench="coterie.continual.bench:bench",
    variant_keys=("data.name", "model.name"),
)
