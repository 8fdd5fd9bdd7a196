"""The paper's tables and figures, reproduced beside the numbers of the authors' slides.

Table 1 has two readings and six columns, Table 3 and the figures one reading and four settings of
organisations. A reading, feedback, alignment or partition that is given by a flag limits them to
it. With side information (``--data.side true``) Table 1 has the methods that use it.
"""

from __future__ import annotations

from collections.abc import Sequence

from coterie.core.settings.configuration import Configuration
from coterie.core.tables.catalogue import Catalogue
from coterie.core.tables.report import Report

_FIGURE = "coterie.assisted.tables.ablations:figure"
CATALOGUE = Catalogue(
    "mtal",
    "coterie.assisted.tables.study:Study",
    tables={
        1: "coterie.assisted.tables.main_table:main_table",
        3: "coterie.assisted.tables.ablations:ablation_table",
    },
    # The same panels, of MovieLens 1M, 10M and 100K.
    figures={4: f"{_FIGURE}_4", 5: f"{_FIGURE}_5", 6: f"{_FIGURE}_6"},
    elsewhere={
        5: "table 5 describes the autoencoder, see coterie train mtal --help",
        6: "table 6 lists settings, say: coterie train mtal --print_config",
        7: "table 7 is of the data, say: coterie data ml-100k",
    },
    variants={"best": "coterie.assisted.tables.main_table:main_table"},
    seeds=(0, 1, 2),
)


def make_table(
    configuration: Configuration,
    *,
    table: int | None = None,
    figure: int | None = None,
    seeds: Sequence[int] | None = None,
    workers: int | None = None,
) -> Report:
    """Run what a table or figure needs and lay it out, as `Catalogue.make_table`.

    With side information there is one seed, where the user names none.
    """
    if seeds is None and configuration.settings.data.side:
        seeds = (0,)
    return CATALOGUE.make_table(
        configuration, table=table, figure=figure, seeds=seeds, workers=workers
    )
