"""The paper's tables and figures, reproduced beside its own numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.core.errors import UserError

if TYPE_CHECKING:
    from coterie.core.configuration import Configuration
    from coterie.core.report import Report
    from coterie.llm.tables.study import Study

TABLES, FIGURES = (1, 2, 3), (1, 3, 4, 5, 6)
SEEDS = tuple(range(5))


def make_table(
    configuration: Configuration,
    *,
    table: int | None = None,
    figure: int | None = None,
    seeds: Sequence[int] | None = None,
    workers: int | None = None,
) -> Report:
    """Run what a table or figure needs and lay it out.

    Runs are kept in ``<out>/pplr/tables/cache``, so a table that was interrupted goes on.

    Args:
        configuration: data set, backbone and all else; a backbone that is given by a flag limits
            tables and figures to it; Figures 1, 3, 5 and 6 show the first otherwise.
        table: number of the table in the paper, 1 to 3.
        figure: number of the figure: 1, 3, 4, 5 or 6.
        seeds: of the runs; default 0 to 4.
        workers: processes; default two; 0 = this one.

    Raises:
        UserError: the paper has no such table or figure, or a setting is bad.
    """
    _check(table, figure)
    from coterie.core.tables.jobs import worker_count
    from coterie.llm.tables.study import Study

    chosen = tuple(SEEDS if seeds is None else dict.fromkeys(seeds))
    study = Study(configuration, chosen, worker_count() if workers is None else workers)
    if table is not None:
        return _table(study, table)
    assert figure is not None
    return _figure(study, figure)


def _check(table: int | None, figure: int | None) -> None:
    if (table is None) == (figure is None):
        raise UserError("name a table or a figure, as --table 1")
    if table is not None and table not in TABLES:
        raise UserError(f"pplr has no table {table}: choose 1, 2 or 3")
    if figure is not None and figure not in FIGURES:
        raise UserError(f"figure {figure} of pplr shows no results: choose 1, 3, 4, 5 or 6")


def _table(study: Study, table: int) -> Report:
    from coterie.llm.tables.client_table import client_table
    from coterie.llm.tables.costs import cost_table
    from coterie.llm.tables.main_table import main_table

    return {1: main_table, 2: cost_table, 3: client_table}[table](study)


def _figure(study: Study, figure: int) -> Report:
    from coterie.llm.tables.ablations import ablation_figure
    from coterie.llm.tables.convergence import imbalance_figure
    from coterie.llm.tables.costs import trade_off_figure
    from coterie.llm.tables.sweeps import client_number_figure, warm_up_figure

    made = {
        1: imbalance_figure,
        3: trade_off_figure,
        4: ablation_figure,
        5: client_number_figure,
        6: warm_up_figure,
    }
    return made[figure](study)
