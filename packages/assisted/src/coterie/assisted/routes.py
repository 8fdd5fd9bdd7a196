"""Who has which rows in common, and so what of each organisation's values goes to whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from coterie.assisted.messages import (
    Fits,
    Outputs,
    Pattern,
    Peers,
    Places,
    PseudoTargets,
    Residuals,
)
from coterie.assisted.prediction_messages import Queries
from coterie.core.errors import UserError


@dataclass(frozen=True)
class Routes:
    """What the server knows of the organisations, by their numbers.

    Attributes:
        numbers: ``(c_k,)`` int32 numbers of the rows that each has in common with anybody.
        cells: ``(n_k,)`` int32 row numbers of the cells whose residuals it sends.
        queries: ``(q_k,)`` the same of other cells that it wants outputs for.
        columns: number of columns of each.
    """

    numbers: dict[str, Tensor]
    cells: dict[str, Tensor]
    queries: dict[str, Tensor]
    columns: dict[str, int]

    @staticmethod
    def of(
        numbers: Mapping[int, Tensor], patterns: Mapping[int, Pattern], columns: Mapping[int, int]
    ) -> Routes:
        """Read them off what the organisations said of themselves."""
        return Routes(
            {str(k): numbers[k][numbers[k] >= 0] for k in patterns},
            {str(k): up.cells.rows for k, up in patterns.items()},
            {str(k): up.queries.rows for k, up in patterns.items()},
            {str(k): columns[k] for k in patterns},
        )

    @property
    def ids(self) -> Tensor:
        """Numbers of the organisations, ``(K,)`` int64 ascending."""
        return torch.tensor([int(name) for name in self.columns])

    def peers(self, to: int, patterns: Mapping[int, Pattern]) -> Peers:
        """Introduce the others to an organisation, in the rows that it has in common with each."""
        found = {str(k): up for k, up in patterns.items() if k != to}
        return Peers(
            cells={k: self._places(k, to, up.cells) for k, up in found.items()},
            queries={k: self._places(k, to, up.queries) for k, up in found.items()},
            rows={k: self._passed(k, to, self.numbers[k], self.numbers[k]) for k in found},
            columns={k: self.columns[k] for k in found},
        )

    def pass_residuals(
        self, ups: Mapping[int, Residuals], round_: int, masked: bool = False
    ) -> dict[int, PseudoTargets]:
        """Pass the residuals of each on to all others, in common rows.

        Args:
            ups: of each.
            round_: t.
            masked: whether outputs are to come back behind masks.
        """
        roster = torch.tensor(list(ups)) if masked else None
        return {
            to: PseudoTargets(
                {
                    str(k): self._passed(str(k), to, self.cells[str(k)], up.values)
                    for k, up in ups.items()
                    if k != to
                },
                round_,
                {str(k): self.n_outputs(str(k), to) for k in ups if k != to},
                roster,
            )
            for to in ups
        }

    def pass_outputs(self, ups: Mapping[int, Fits], round_: int) -> dict[int, Outputs]:
        """Pass the outputs for each on to it."""
        sent = {k: up.values for k, up in ups.items() if up.values is not None}
        return {
            to: Outputs({str(k): each[str(to)] for k, each in sent.items() if k != to}, round_)
            for to in ups
        }

    def pass_queries(
        self, cells: Mapping[int, Places], round_: int, masked: bool = False, attempt: int = 0
    ) -> dict[int, Queries]:
        """Pass cells that some ask about on to all others, in common rows.

        Args:
            cells: of each.
            round_: t.
            masked: whether answers are to come back behind masks.
            attempt: how often this was asked before.
        """
        roster = torch.tensor(list(cells)) if masked else None
        found: dict[int, Queries] = {}
        for to in self.ids.tolist():
            asked = {str(k): self._places(str(k), to, one) for k, one in cells.items() if k != to}
            sizes = {k: len(places) for k, places in asked.items()}
            found[to] = Queries(asked, round_, sizes, roster, attempt)
        return found

    def n_cells(self, of: int) -> int:
        """Number of residuals that an organisation sends in a round."""
        return self.cells[str(of)].numel()

    def n_outputs(self, name: str, to: int) -> int:
        """Number of outputs that an organisation gets from another one in a round."""
        both = torch.cat([self.cells[name], self.queries[name]])
        return self._passed(name, to, both, both).numel()

    def _places(self, name: str, to: int, places: Places) -> Places:
        parts = (self._passed(name, to, places.rows, one) for one in (places.rows, places.columns))
        return Places(*parts)

    def _passed(self, name: str, to: int, rows: Tensor, values: Tensor) -> Tensor:
        """Of an organisation's values, one a row number, those whose row another one has too."""
        if self.all_in_common:
            return values
        return values[self._has[str(to)][rows.long()]]

    @cached_property
    def _has(self) -> dict[str, Tensor]:
        """Which numbers of common rows, ``(M,)`` bool, each organisation has."""
        size = max(int(rows.max()) + 1 for rows in self.numbers.values() if len(rows))
        return {
            name: torch.zeros(size, dtype=torch.bool).index_fill_(0, rows.long(), True)
            for name, rows in self.numbers.items()
        }

    @cached_property
    def all_in_common(self) -> bool:
        """Whether all organisations have the same rows."""
        first, *others = (rows.sort().values for rows in self.numbers.values())
        return all(torch.equal(first, rows) for rows in others)


def misplaced(up: Pattern | Places, numbers: Tensor, columns: int) -> str | None:
    """Say what is wrong with the cells that an organisation names, if anything is.

    Args:
        up: where it has ratings, or cells that it wants outputs for.
        numbers: ``(m_k,)`` of its rows.
        columns: number of its columns.

    Example:
        >>> cells = Places(torch.tensor([0, 4]).int(), torch.tensor([2, 0]).int())
        >>> misplaced(cells, torch.tensor([0, 4, -1]), columns=2)
        'it names a cell in column 2, and has 2 columns'
    """
    parts = [up] if isinstance(up, Places) else [up.cells, up.queries]
    for places in parts:
        if places.rows.shape != places.columns.shape:
            return "it names cells with more rows than columns, or fewer"
        if bool((places.rows < 0).any()) or not bool(torch.isin(places.rows, numbers).all()):
            return "it names a cell in a row that it has not in common with anybody"
        wrong = (places.columns < 0) | (places.columns >= columns)
        if bool(wrong.any()):
            found = int(places.columns[wrong][0])
            return f"it names a cell in column {found}, and has {columns} columns"
    return None


def align(rows: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Number the rows that at least two organisations have (Eq. 1 and 2).

    Args:
        rows: ``(m_k,)`` int64 keyed hashes of each.

    Returns:
        ``(m_k,)`` int32 numbers for each, -1 for a row that nobody else has.

    Example:
        >>> rows = {0: [7, 5, 9], 1: [5, 7], 2: [7]}
        >>> found = align({k: torch.tensor(names) for k, names in rows.items()})
        >>> [numbers.tolist() for numbers in found.values()]
        [[1, 0, -1], [0, 1], [1]]
    """
    names, count = torch.cat([each.unique() for each in rows.values()]).unique(return_counts=True)
    common = names[count > 1]
    return {k: _numbers(each, common) for k, each in rows.items()}


def check_common(rows: Mapping[int, Tensor]) -> None:
    """Refuse organisations of which no two have a row in common.

    Args:
        rows: ``(m_k,)`` int64 keyed hashes of each.

    Raises:
        UserError: there is none.
    """
    if not any(bool((numbers >= 0).any()) for numbers in align(rows).values()):
        raise UserError(
            "no two organisations have a user (or item) in common, so none can assist another: "
            "raise data.common, or train them by --method alone"
        )


def _numbers(rows: Tensor, common: Tensor) -> Tensor:
    if not common.numel():
        return torch.full(rows.shape, -1, dtype=torch.int32)
    place = torch.searchsorted(common, rows).clamp_max(common.numel() - 1)
    return torch.where(common[place] == rows, place, -1).int()
