"""AutoRec (Sedhain et al., WWW 2015): what the users of an item say of each other.

Its samples are items, its inputs and outputs all users; or the other way round. Several are trained
from other first parameters, and their outputs are averaged.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.assisted.aae.batches import Draws, RowBatches
from coterie.assisted.aae.cells import Inputs, Pattern
from coterie.assisted.aae.network import AAE, Params, predict, value_and_gradients
from coterie.assisted.aae.training import Plan, Trained, train
from coterie.assisted.objective import Squared
from coterie.assisted.samples.matrix import Asked, mean_square
from coterie.assisted.samples.sums import Sums
from coterie.core.data.interactions.cells import Cells
from coterie.core.local_training.step_count import count_steps
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

PRESENCE = 3.5
"""What is added to a rated input, in units of the residuals' root mean square: a residual of 0 must
differ from no rating."""


class AutoRec:
    """Autoencoders of samples.

    A step hides some of a sample's residuals and fits all of them. What is hidden is missing in the
    sum that the first layer makes, so predictions, which hide nothing, shrink their inputs.

    Args:
        cells: ``(n, d)`` residuals that they are fitted to.
        plan: how each is trained; ``input_masking`` of the residuals are hidden.
        hidden: width of the hidden layers.
        code: width of the code.
        dropout: share of the code that is dropped in training.
        members: number of autoencoders.
        unit: ``()`` of the residuals; their root mean square by default.

    Attributes:
        unit: the same.
    """

    def __init__(
        self,
        cells: Cells,
        plan: Plan,
        hidden: int,
        code: int,
        dropout: float,
        members: int,
        unit: Tensor | None = None,
    ) -> None:
        self._plan, self._members = plan, members
        self._network = AAE(cells.n_columns, cells.n_columns, {}, hidden, code, dropout)
        self.unit = mean_square(cells.values).sqrt() if unit is None else unit
        self._inputs = self._seen(cells)
        self._pattern = Pattern(cells.columns, cells.n_columns)
        self._targets = cells.values / self.unit
        self._last: tuple[Trained, Key, Trained] | None = None

    def begin(self, key: Key) -> Trained:
        """Draw first parameters."""
        return self._each(replace(self._plan, epochs=0), None, key)

    def train(self, now: Trained, key: Key) -> Trained:
        """Train for some epochs more.

        Organisations with the same samples and key train the same: in one process, once.
        """
        if self._last is not None and _same(self._last[0], now) and _same(self._last[1], key):
            found = self._last[2]
            count_steps(_steps(found) - _steps(now))  # another organisation makes them, too
            return found
        found = self._each(self._plan, now, key)
        self._last = now, key, found
        return found

    def sums(self, params: Params, key: Key) -> Sums:
        """Sum the gradients of the squared error over the residuals of all samples.

        Args:
            params: of all members, each ``(M, ...)``.
            key: of what is hidden and dropped in this step.
        """
        n, found, loss = len(self._targets), dict[str, list[Tensor]](), self._targets.new_zeros(())
        if not n:
            return Sums({name: torch.zeros_like(value) for name, value in params.items()}, loss, 0)
        for number in range(self._members):
            batches = self._whole(key.fold("member", number))
            one = {name: values[number] for name, values in params.items()}
            value, grads = value_and_gradients(one, batches(0), Squared())
            loss = loss + value * (n / self._members)
            for name in params:
                found.setdefault(name, []).append(grads[name] * n)
        stacked = {name: torch.stack(grads) for name, grads in found.items()}
        return Sums(stacked, loss, int((self._pattern.columns.lengths > 0).sum()))

    def outputs(self, params: Params, own: Cells, asked: Asked) -> Tensor:
        """Residuals to expect at cells of some samples.

        Args:
            params: of all members, each ``(M, ...)``.
            own: ``(n_own, d)`` residuals of these.
            asked: where.

        Returns:
            ``(n,)``, in the order of the matrix that is asked about.
        """
        given = self._seen(own)
        shrunk = replace(given, values=given.values * (1.0 - self._plan.input_masking))
        pattern = Pattern(asked.cells.columns, own.n_columns)
        total = own.values.new_zeros(pattern.nnz)
        for number in range(self._members):
            one = {name: values[number] for name, values in params.items()}
            total += predict(self._network, one, shrunk, pattern)
        return asked.back(total * (self.unit / self._members))

    def _whole(self, key: Key) -> RowBatches:
        """All samples as one batch."""
        plan, network = self._plan, self._network
        draws = Draws(network.code, network.dropout, plan.input_masking)
        every = self._inputs, self._pattern, self._targets, len(self._inputs)
        return RowBatches(*every, draws, key)

    def _seen(self, cells: Cells) -> Inputs:
        """What the encoder reads of samples."""
        return Inputs(cells.columns, cells.values / self.unit + PRESENCE, cells.n_columns)

    def _each(self, plan: Plan, now: Trained | None, key: Key) -> Trained:
        """Train every member, and stack what it has learned."""
        given = self._network, self._inputs, self._pattern, self._targets, plan
        found = [
            train(*given, key.fold("member", number), start=now and member(now, number))
            for number in range(self._members)
        ]
        params, state = (
            tree.concatenate(*parts)
            for parts in (
                [tree.as_stack(one.params) for one in found],
                [one.state for one in found],
            )
        )
        loss = torch.stack([one.loss for one in found]).mean() * self.unit.square()
        return Trained(params, loss, found[0].epochs, state)


def member(of_all: Trained, number: int) -> Trained:
    """What one autoencoder has learned."""
    params = {name: values[number] for name, values in of_all.params.items()}
    state = tree.take(of_all.state, torch.tensor([number]))
    return Trained(params, of_all.loss, of_all.epochs, state)


def _steps(trained: Trained) -> int:
    """Steps that all members have made."""
    return 0 if trained.state is None else int(trained.state.steps.sum())


def _same(left: Trained | Key, right: Trained | Key) -> bool:
    """Whether all numbers are the same, to the bit."""
    if isinstance(left, Key) or isinstance(right, Key):
        return left == right
    pairs = zip(tree.tensors(left), tree.tensors(right), strict=True)
    return all(torch.equal(one, other) for (_, one), (_, other) in pairs)
