"""Cut samples of result pages so that no page is on both sides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.msmt.data.formats.loaded import Ranges

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pages:
    """Runs of rows with one search id.

    Attributes:
        ids: ``(r,)`` int64 search id of each run; an id whose rows are apart has several.
        starts: ``(r + 1,)`` int64, first row of each run, and the number of rows.
    """

    ids: Ints
    starts: Ints

    @staticmethod
    def of(pieces: Iterable[Ints]) -> Pages:
        """Find the runs in search ids that come some rows at a time.

        Example:
            >>> Pages.of([np.array([5, 5]), np.array([5, 7])]).starts.tolist()
            [0, 3, 4]
        """
        ids, starts, row = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
        last: int | None = None
        for piece in pieces:
            begins = np.ones(len(piece), bool)
            begins[1:] = piece[1:] != piece[:-1]
            if len(piece) and last is not None:
                begins[0] = piece[0] != last
            ids.append(piece[begins].astype(np.int64))
            starts.append(begins.nonzero()[0] + row)
            row += len(piece)
            last = int(piece[-1]) if len(piece) else last
        return Pages(np.concatenate(ids), np.concatenate([*starts, [row]]).astype(np.int64))

    @property
    def apart(self) -> int:
        """How many search ids have rows that are not together."""
        _, runs = np.unique(self.ids, return_counts=True)
        return int((runs > 1).sum())

    def cut(self, share: float) -> tuple[Ranges, Ranges]:
        """Cut off the last search ids, by their first rows.

        Args:
            share: of the search ids, rounded; at least one stays, and one is cut off unless the
                share is 0 or there is only one.

        Returns:
            the rows before, and the rows cut off.

        Example:
            >>> Pages.of([np.array([5, 5, 7, 7, 9])]).cut(0.4)
            ([(0, 4)], [(4, 5)])
        """
        different, first, which = np.unique(self.ids, return_index=True, return_inverse=True)
        off = min(max(round(share * len(different)), 1), len(different) - 1) if share else 0
        rank = np.empty(len(different), np.int64)
        rank[np.argsort(first)] = np.arange(len(different))
        is_off = rank[which] >= len(different) - off
        return self._rows(~is_off), self._rows(is_off)

    def shared(self, other: Pages) -> int:
        """How many search ids both have."""
        return len(np.intersect1d(self.ids, other.ids))

    def _rows(self, taken: npt.NDArray[np.bool_]) -> Ranges:
        """Rows of some runs, neighbours put together."""
        edges = np.flatnonzero(np.diff(np.concatenate([[False], taken, [False]]).astype(int)))
        rows = self.starts[edges].tolist()
        return list(zip(rows[::2], rows[1::2], strict=True))
