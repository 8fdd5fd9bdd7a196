"""The normal distribution of samples as a model that is trained where all residuals are."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.assisted.aae.network import Params
from coterie.assisted.aae.training import Trained
from coterie.assisted.samples import gaussian
from coterie.assisted.samples.matrix import Asked, mean_square
from coterie.assisted.samples.sums import Sums
from coterie.core.data.interactions.cells import Cells
from coterie.core.tensors.keys import Key


class Gaussian:
    """A normal distribution of samples, `coterie.assisted.samples.gaussian`.

    Args:
        cells: ``(n, d)`` residuals that it is fitted to.
        noise: variance of a residual around its sample, in units of their mean square.
        rank: directions in which coordinates vary together.
        steps: of a round.
        unit: ``()`` of the residuals; their root mean square by default.

    Attributes:
        unit: the same.
    """

    def __init__(
        self, cells: Cells, noise: float, rank: int, steps: int, unit: Tensor | None = None
    ) -> None:
        self._noise, self._rank, self._steps = noise, rank, steps
        self.unit = mean_square(cells.values).sqrt() if unit is None else unit
        self._cells = self._scaled(cells)
        self._last: tuple[Params, Trained] | None = None

    def begin(self, key: Key) -> Trained:
        """Let coordinates vary alike, and nearly alone."""
        zero = self._cells.values.new_zeros(())
        start = gaussian.begin(self._cells.n_columns, self._rank, key, zero.dtype)
        return Trained(start, zero, 0, None)

    def train(self, now: Trained, key: Key) -> Trained:
        """Take the steps of a round; who has the same samples has the same, in one process once."""
        if self._last is not None and _same(self._last[0], now.params):
            return self._last[1]
        params, losses = now.params, []
        for _ in range(self._steps):
            found = gaussian.statistic(params, self._cells, self._noise)
            losses.append(found.loss / max(len(self._cells), 1))
            if found.samples:
                params = gaussian.moved(params, found.values, found.samples)
        loss = torch.stack(losses).mean().to(self._cells.values.dtype)
        trained = Trained(params, loss, now.epochs + self._steps, None)
        self._last = now.params, trained
        return trained

    def sums(self, params: Params, key: Key) -> Sums:
        """Sum what a step needs over all samples; nothing is drawn."""
        return gaussian.statistic(params, self._cells, self._noise)

    def outputs(self, params: Params, own: Cells, asked: Asked) -> Tensor:
        """Residuals to expect at cells of some samples; arguments as of `AutoRec.outputs`."""
        scaled = self._scaled(own)
        return self.unit * gaussian.expected(params, scaled, asked, self._noise)

    def _scaled(self, cells: Cells) -> Cells:
        return Cells(cells.columns, cells.values / self.unit, cells.n_columns)


def _same(left: Params, right: Params) -> bool:
    """Whether two distributions are the same, to the bit."""
    return all(torch.equal(value, right[name]) for name, value in left.items())
