"""The paper's tables and figures, reproduced beside its own numbers.

The paper has each of Tables 2, 3, 6 and 7 twice, for AliExpress, and as Tables 4, 5, 8 and 9 for
Tenrec; they differ in the paper's numbers that stand beside ours. Of generated data
(``--data world``) there are several worlds, unless a flag of the section ``data`` says which.
"""

from coterie.core.tables.catalogue import Catalogue

CATALOGUE = Catalogue(
    "pf-msmtrec",
    "coterie.msmt.tables.study:Study",
    tables={
        2: "coterie.msmt.tables.main_table:table_2",
        3: "coterie.msmt.tables.main_table:table_3",
        4: "coterie.msmt.tables.main_table:table_4",
        5: "coterie.msmt.tables.main_table:table_5",
        6: "coterie.msmt.tables.ablations:table_6",
        7: "coterie.msmt.tables.ablations:table_7",
        8: "coterie.msmt.tables.ablations:table_8",
        9: "coterie.msmt.tables.ablations:table_9",
    },
    figures={3: "coterie.msmt.tables.main_table:convergence_figure"},
    variants={"best": "coterie.msmt.tables.best:best_table"},
    elsewhere={1: "table 1 describes the data sets, say: coterie data world"},
)
make_table = CATALOGUE.make_table
