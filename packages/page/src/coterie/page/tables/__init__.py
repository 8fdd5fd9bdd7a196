"""The paper's tables and figures, reproduced beside its own numbers."""

from coterie.core.tables.catalogue import Catalogue

CATALOGUE = Catalogue(
    "page",
    "coterie.page.tables.study:Study",
    tables={
        1: "coterie.page.tables.main_table:main_table",
        2: "coterie.page.tables.convergence:convergence_table",
        3: "coterie.page.tables.skew:skew_table",
        4: "coterie.page.tables.properties:property_table",
        5: "coterie.page.tables.times:time_table",
        6: "coterie.page.tables.properties:dial_table",
    },
    figures={
        2: "coterie.page.tables.figures:reward_figure",
        3: "coterie.page.tables.figures:ablation_figure",
    },
    seeds=(0, 1, 2),
)
make_table = CATALOGUE.make_table
