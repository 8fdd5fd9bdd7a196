"""The paper's tables and figures, reproduced beside its own numbers.

A backbone that is given by a flag limits them to it; Figures 1, 3, 5 and 6 show the first
otherwise. Table 4 is not the paper's; a partition that is given by a flag limits it to that.
"""

from coterie.core.tables.catalogue import Catalogue

CATALOGUE = Catalogue(
    "pplr",
    "coterie.llm.tables.study:Study",
    tables={
        1: "coterie.llm.tables.main_table:main_table",
        2: "coterie.llm.tables.costs:cost_table",
        3: "coterie.llm.tables.main_table:client_table",
        4: "coterie.llm.tables.partitions:partition_table",
    },
    figures={
        1: "coterie.llm.tables.figures:imbalance_figure",
        3: "coterie.llm.tables.costs:trade_off_figure",
        4: "coterie.llm.tables.figures:ablation_figure",
        5: "coterie.llm.tables.figures:client_number_figure",
        6: "coterie.llm.tables.figures:warm_up_figure",
    },
)
make_table = CATALOGUE.make_table
