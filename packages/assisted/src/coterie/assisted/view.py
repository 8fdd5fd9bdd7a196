"""How an organisation sees the cells of the others: in its own rows, beside its own columns.

An assisted autoencoder has an output for every column of every organisation (section 3.2): those
of organisation 0 first, then those of 1, and so on. Its rows are the organisation's own.
Organisations that have all rows in common see the same matrix, so in one process they share one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from coterie.assisted.aae.cells import Pattern
from coterie.assisted.aggregation import whole
from coterie.assisted.data import OwnDomain
from coterie.assisted.messages import Met, Peer, Places
from coterie.core.data.interactions.cells import Cells, ascending
from coterie.core.tensors.stacked import Ragged


@dataclass(frozen=True)
class Block:
    """Cells of one organisation in the rows of another.

    Attributes:
        id: number of the organisation whose cells they are.
        rows: ``(n,)`` row numbers of the organisation that looks at them.
        columns: ``(n,)`` numbers of the columns of the one that has them.
    """

    id: int
    rows: Tensor
    columns: Tensor


@dataclass(frozen=True)
class Matrix:
    """Cells of several organisations, sorted by row.

    Attributes:
        pattern: where they are.
        order: ``(n,)`` int32, for each cell of the pattern its place among the blocks end to end.
        slices: number of an organisation -> its part of the blocks end to end.
    """

    pattern: Pattern
    order: Tensor
    slices: dict[int, slice]

    def sorted(self, values: Mapping[int, Tensor]) -> Tensor:
        """Values of every organisation's cells in the order of the pattern, ``(n,)``."""
        return torch.cat([values[id_] for id_ in self.slices]).index_select(0, self.order)

    def parted(self, values: Tensor) -> dict[int, Tensor]:
        """Values in the order of the pattern, ``(…, n)``, by organisation."""
        back = values.index_select(-1, self._place)
        return {id_: back[..., part] for id_, part in self.slices.items()}

    @cached_property
    def _place(self) -> Tensor:
        """For each cell of the blocks its place in the pattern: to gather is half of to scatter."""
        places = torch.arange(len(self.order), dtype=torch.int32)
        return torch.empty_like(self.order).index_copy_(0, self.order.long(), places)


class Matrices:
    """Matrices that were made, to find them again: their making takes as long as an epoch."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ...], Matrix] = {}

    def find(self, blocks: Sequence[Block], widths: dict[int, int], n_rows: int) -> Matrix:
        """Lay cells side by side.

        Args:
            blocks: one an organisation, by ascending number.
            widths: number of an organisation -> number of its columns, of all that there are.
            n_rows: number of rows.
        """
        key = (str(n_rows), str(sorted(widths.items())), *map(_digest, blocks))
        if key not in self._kept:
            self._kept[key] = _lay(blocks, widths, n_rows)
        return self._kept[key]

    def __len__(self) -> int:
        return len(self._kept)

    @contextmanager
    def for_once(self) -> Iterator[None]:
        """Forget afterwards what is made meanwhile: who asks for recommendations asks for much."""
        before = dict(self._kept)
        try:
            yield
        finally:
            self._kept = before


def _lay(blocks: Sequence[Block], widths: dict[int, int], n_rows: int) -> Matrix:
    first, begins = 0, {}
    for id_ in sorted(widths):
        begins[id_] = first
        first += widths[id_]
    none = torch.empty(0, dtype=torch.int64)  # if nobody asks
    rows = torch.cat([none, *(block.rows.long() for block in blocks)])
    columns = torch.cat([none, *(block.columns.long() + begins[block.id] for block in blocks)])
    order = ascending(rows * first + columns, n_rows * first)
    ends = torch.tensor([block.rows.numel() for block in blocks], dtype=torch.int64).cumsum(0)
    slices = {
        block.id: slice(end - block.rows.numel(), end)
        for block, end in zip(blocks, ends.tolist(), strict=True)
    }
    lengths = torch.bincount(rows, minlength=n_rows)
    pattern = Pattern(Ragged.from_lengths(columns[order], lengths), first)
    return Matrix(pattern, order.int(), slices)


def _digest(block: Block) -> str:
    found = hashlib.sha256(str(block.id).encode())
    for part in (block.rows, block.columns):
        found.update(part.cpu().int().contiguous().numpy().tobytes())
    return found.hexdigest()


# How an organisation sees the cells of the others: in its own rows, beside its own columns.


class View:
    """The matrix of all organisations' cells, as one of them sees it.

    Args:
        mine: its state; the peers that it has met are in it.
        data: what it holds.
        matrices: those that were made before.
    """

    def __init__(self, mine: Met, data: OwnDomain, matrices: Matrices) -> None:
        self.mine, self.data, self._matrices = mine, data, matrices
        self.peers: dict[int, Peer] = {peer.id: peer for peer in mine.peers}
        self._targets: dict[tuple[int, ...], Matrix] = {}

    def is_of(self, mine: Met, data: OwnDomain) -> bool:
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


NOWHERE = Places(torch.empty(0, dtype=torch.int32), torch.empty(0, dtype=torch.int32))
"""No cells."""


def places_of(mine: Met, cells: Cells) -> Places:
    """Name cells in common rows as peers may call them."""
    kept = common(mine, cells)
    rows = mine.shared[cells.rows[kept]]
    return Places(rows, cells.columns.values[kept].int())


def common(mine: Met, cells: Cells) -> Tensor:
    """Which cells are in common rows, ``(n,)`` bool."""
    return mine.shared[cells.rows] >= 0
