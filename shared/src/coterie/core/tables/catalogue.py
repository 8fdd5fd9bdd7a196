"""The tables and figures that a paper reproduces, by number. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coterie.core.errors import UserError
from coterie.core.registry.papers import load
from coterie.core.tables.jobs import worker_count

if TYPE_CHECKING:
    from coterie.core.settings.configuration import Configuration
    from coterie.core.tables.report import Report

_MOST_NAMED = 3


@dataclass(frozen=True)
class Catalogue:
    """What a paper reproduces; code is named as ``module:attribute`` and imported when needed.

    Attributes:
        paper: its name.
        study: subclass of `coterie.core.tables.study.Study`.
        tables: number in the paper -> function that makes a
            `coterie.core.tables.report.Report` of the study.
        figures: the same for figures.
        elsewhere: number of a table that is made in another way -> what to tell the user.
        variants: name of a variant with a table of its own -> what makes that, as no number of the
            paper is named.
        seeds: of the runs, where the user names none.
    """

    paper: str
    study: str
    tables: Mapping[int, str] = field(default_factory=dict)
    figures: Mapping[int, str] = field(default_factory=dict)
    elsewhere: Mapping[int, str] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    seeds: Sequence[int] = tuple(range(5))

    def make_table(
        self,
        configuration: Configuration,
        *,
        table: int | None = None,
        figure: int | None = None,
        seeds: Sequence[int] | None = None,
        workers: int | None = None,
    ) -> Report:
        """Run what a table or figure needs and lay it out.

        Runs are kept in ``<out>/<paper>/tables/cache``, so a table that was interrupted goes on.

        Of a seed that is named twice there is one run. Two processes are used, where the number of
        ``workers`` is not said; 0 is this one.

        Raises:
            UserError: the paper has no such table or figure, no seed, or a setting is bad.
        """
        named = self._of_variant(configuration.given.variant, table, figure)
        named = named or self._named(table, figure)
        chosen = tuple(self.seeds if seeds is None else dict.fromkeys(seeds))
        if not chosen:
            raise UserError("a table needs a seed: give --seeds a number above 0")
        workers = worker_count() if workers is None else workers
        report: Report = load(named)(load(self.study)(configuration, chosen, workers))
        return report

    def _of_variant(self, variant: str | None, table: int | None, figure: int | None) -> str | None:
        """What makes the table of a variant; None where it has none."""
        if variant is None or variant not in self.variants:
            return None
        if table is None and figure is None:
            return self.variants[variant]
        kind, number = ("figure", figure) if table is None else ("table", table)
        raise UserError(
            f"{kind} {number} of {self.paper} is of the paper's methods, and variant '{variant}' "
            f"is none of them: leave out --{kind} for a table of the variant, or --variant"
        )

    def _named(self, table: int | None, figure: int | None) -> str:
        if (table is None) == (figure is None):
            example = [f"--table {number}" for number in self.tables]
            example += [f"--figure {number}" for number in self.figures]
            raise UserError(f"name a table or a figure, as {example[0]}")
        number, made = (figure, self.figures) if table is None else (table, self.tables)
        assert number is not None
        if number in made:
            return made[number]
        choose = f"choose {listed(made)}"
        if table is None:
            raise UserError(f"figure {number} of {self.paper} shows no results: {choose}")
        told = self.elsewhere.get(number, f"{self.paper} has no table {number}: {choose}")
        raise UserError(told)


def listed(numbers: Iterable[int]) -> str:
    """Write numbers to choose from.

    Example:
        >>> listed([1, 2, 3, 4, 5]), listed([1, 3, 4, 5, 6]), listed([2, 3]), listed([])
        ('1 to 5', '1, 3, 4, 5 or 6', '2 or 3', 'another')
    """
    found = sorted(numbers)
    if not found:
        return "another"
    if len(found) > _MOST_NAMED and found[-1] - found[0] == len(found) - 1:
        return f"{found[0]} to {found[-1]}"
    return " or ".join(filter(None, [", ".join(map(str, found[:-1])), str(found[-1])]))
