"""How an organisation sees the cells of the others: in its own rows, beside its own columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property

import torch
from torch import Tensor

from coterie.assisted.aggregation import whole
from coterie.assisted.data.organisations import OwnDomain
from coterie.assisted.data.targets import Block, Matrices, Matrix
from coterie.assisted.state import OrganisationState, Peer, Places
from coterie.core.data.interactions.cells import Cells


class View:
    """The matrix of all organisations' cells, as one of them sees it.

    Args:
        mine: its state; the peers that it has met are in it.
        data: what it holds.
        matrices: those that were made before.
    """

    def __init__(self, mine: OrganisationState, data: OwnDomain, matrices: Matrices) -> None:
        self.mine, self.data, self._matrices = mine, data, matrices
        self.peers: dict[int, Peer] = {peer.id: peer for peer in mine.peers}
        self._targets: dict[tuple[int, ...], Matrix] = {}

    def is_of(self, mine: OrganisationState, data: OwnDomain) -> bool:
        """Whether it is how this organisation still sees its peers."""
        same = self.mine.shared is mine.shared and self.mine.peers.newest is mine.peers.newest
        return same and self.data is data

    @cached_property
    def widths(self) -> dict[int, int]:
        """Number of columns of every organisation."""
        widths = {peer.id: peer.columns for peer in self.peers.values()}
        return widths | {self.data.id: self.data.train.n_columns}

    @property
    def n_columns(self) -> int:
        """Number of columns of all organisations."""
        return sum(self.widths.values())

    @property
    def first_column(self) -> int:
        """Where the organisation's own columns begin among those of all."""
        return sum(width for id_, width in self.widths.items() if id_ < self.data.id)

    def targets(self, present: Collection[int]) -> Matrix:
        """Cells with a residual: of some organisations, itself perhaps among them."""
        there = tuple(sorted(present))
        if there not in self._targets:
            peers = {id_: [self.peers[id_].cells] for id_ in there if id_ != self.data.id}
            own = [self.data.train] if self.data.id in there else []
            self._targets = {there: self._matrix(own, peers)}  # who is away changes seldom
        return self._targets[there]

    @cached_property
    def wanted(self) -> Matrix:
        """Cells to answer for in every round: its own, and what the peers asked for."""
        peers = {id_: [peer.cells, peer.queries] for id_, peer in self.peers.items()}
        return self._matrix([self.data.train, self.data.valid], peers)

    def asked(self, cells: Mapping[int, Places]) -> Matrix:
        """Cells that peers ask about."""
        return self._matrix([], {id_: [places] for id_, places in cells.items()})

    def own(self, cells: Cells) -> Matrix:
        """Cells of its own."""
        return self._matrix([cells], {})

    def outputs(
        self, cells: list[Cells], own: Tensor, peers: Mapping[int, Tensor | None], use_own: bool
    ) -> tuple[Tensor, Tensor]:
        """Put the outputs of all models at the organisation's cells side by side.

        Args:
            cells: of its own, end to end n of them.
            own: ``(n,)`` outputs of its own model.
            peers: of each peer, at those cells whose row both have; None if it does not answer.
            use_own: whether its own model counts.

        Returns:
            Numbers of the organisations, ``(J,)`` int64, its own first, and ``(n, J)`` outputs.
            `coterie.assisted.aggregation.whole` fills in where a peer does not know a row, or
            does not answer.
        """
        ids = torch.tensor([self.data.id, *peers])
        counted = slice(0 if use_own or not peers else 1, None)
        full = [one for one in peers.values() if one is not None and one.numel() == own.numel()]
        if len(full) == len(peers) and (use_own or peers):
            return ids[counted], torch.stack([own, *full][counted]).T  # copies whole columns
        shared = torch.cat([self.mine.shared[part.rows] for part in cells])
        everywhere = torch.ones(own.shape, dtype=torch.bool)
        columns, known = [own], [everywhere if use_own else ~everywhere]
        for id_, values in peers.items():
            if values is None:
                columns.append(torch.zeros_like(own))
                known.append(~everywhere)
            elif values.numel() == own.numel():  # it knows all rows
                columns.append(values)
                known.append(everywhere)
            else:
                known.append(self._has[id_][shared.long()])
                columns.append(values.new_zeros(own.shape).masked_scatter_(known[-1], values))
        both = torch.stack(columns, 1)[:, counted], torch.stack(known, 1)[:, counted]
        return ids[counted], whole(*both)

    @cached_property
    def _has(self) -> dict[int, Tensor]:
        """Which common numbers, ``(M + 1,)`` bool, each peer has; the last, for -1, it has not."""
        size = int(self.mine.shared.max()) + 2 if len(self.mine.shared) else 1
        found = {}
        for id_, peer in self.peers.items():
            found[id_] = torch.zeros(size, dtype=torch.bool)
            found[id_][peer.rows.long()] = True
        return found

    def _matrix(self, own: list[Cells], peers: Mapping[int, list[Places]]) -> Matrix:
        blocks = [
            Block(
                id_,
                self._row_of[torch.cat([part.rows for part in places]).long()],
                torch.cat([part.columns for part in places]),
            )
            for id_, places in peers.items()
        ]
        if own:
            rows = torch.cat([part.rows for part in own])
            columns = torch.cat([part.columns.values for part in own])
            blocks.append(Block(self.data.id, rows, columns))
        blocks.sort(key=lambda block: block.id)
        return self._matrices.find(blocks, self.widths, self.data.train.n_rows)

    @cached_property
    def _row_of(self) -> Tensor:
        """The organisation's own row of each common number, ``(M,)`` int64; -1 for none."""
        shared = self.mine.shared.long()
        found = torch.full((int(shared.max()) + 2 if len(shared) else 1,), -1)
        known = (shared >= 0).nonzero().flatten()
        found[shared[known]] = known
        return found


def places_of(mine: OrganisationState, cells: Cells) -> Places:
    """Name cells in common rows as peers may call them."""
    kept = common(mine, cells)
    rows = mine.shared[cells.rows[kept]]
    return Places(rows, cells.columns.values[kept].int())


def common(mine: OrganisationState, cells: Cells) -> Tensor:
    """Which cells are in common rows, ``(n,)`` bool."""
    return mine.shared[cells.rows] >= 0
