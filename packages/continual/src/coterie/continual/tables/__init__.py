"""The paper's tables and figures, reproduced beside its own numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.core.errors import UserError

if TYPE_CHECKING:
    from coterie.continual.tables.study import Study
    from coterie.core.configuration import Configuration
    from coterie.core.report import Report

TABLES, FIGURES = (2, 3, 4, 5, 6, 7, 8), (3, 4)
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

    Runs are kept in ``<out>/f3crec/tables/cache``, so a table that was interrupted goes on.

    Args:
        configuration: data set, backbone and all else; a backbone that is given by a flag limits
            Tables 2, 3 and 6 and Figure 3 to it.
        table: number of the table in the paper, 2 to 8.
        figure: number of the figure, 3 or 4.
        seeds: of the runs; default 0 to 4.
        workers: processes; default two; 0 = this one.

    Raises:
        UserError: the paper has no such table or figure, or a setting is bad.
    """
    _check(table, figure)
    from coterie.continual.tables.study import Study
    from coterie.core.tables.jobs import worker_count

    chosen = tuple(SEEDS if seeds is None else dict.fromkeys(seeds))
    study = Study(configuration, chosen, worker_count() if workers is None else workers)
    return _made(study, table, figure)


def _check(table: int | None, figure: int | None) -> None:
    if table is not None and table not in TABLES:
        if table == 1:
            raise UserError("table 1 is of the data, say: coterie data ml-100k")
        raise UserError(f"f3crec has no table {table}: choose one of {', '.join(map(str, TABLES))}")
    if figure is not None and figure not in FIGURES:
        raise UserError(f"figure {figure} of f3crec shows no results: choose 3 or 4")
    if (table is None) == (figure is None):
        raise UserError("name a table or a figure, as --table 2")


def _made(study: Study, table: int | None, figure: int | None) -> Report:
    from coterie.continual.tables.ablations import ablation_table
    from coterie.continual.tables.items import item_table
    from coterie.continual.tables.main_table import improvement_figure, main_table
    from coterie.continual.tables.noise import noise_table
    from coterie.continual.tables.sweeps import sweep_figure
    from coterie.continual.tables.users import user_table

    if figure is not None:
        return improvement_figure(study) if figure == 3 else sweep_figure(study)
    match table:
        case 3 | 6:
            return ablation_table(study, table)
        case 4 | 5:
            return user_table(study, table)
        case 7:
            return item_table(study)
        case 8:
            return noise_table(study)
        case _:
            return main_table(study)
