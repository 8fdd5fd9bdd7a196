"""The paper's tables and figures, reproduced beside its own numbers; Tables 9 and 10 are ours.

A backbone that is given by a flag limits Tables 2, 3, 6, 9 and 10 and Figure 3 to it.
"""

from coterie.core.tables.catalogue import Catalogue

CATALOGUE = Catalogue(
    "f3crec",
    "coterie.continual.tables.study:Study",
    tables={
        2: "coterie.continual.tables.main_table:main_table",
        3: "coterie.continual.tables.main_table:client_side_table",
        4: "coterie.continual.tables.shifts:degradation_table",
        5: "coterie.continual.tables.shifts:after_table",
        6: "coterie.continual.tables.main_table:server_side_table",
        7: "coterie.continual.tables.shifts:item_table",
        8: "coterie.continual.tables.sweeps:noise_table",
        9: "coterie.continual.tables.variants:memory_table",
        10: "coterie.continual.tables.variants:step_table",
    },
    figures={
        3: "coterie.continual.tables.main_table:improvement_figure",
        4: "coterie.continual.tables.sweeps:sweep_figure",
    },
    elsewhere={1: "table 1 is of the data, say: coterie data ml-100k"},
)
make_table = CATALOGUE.make_table
