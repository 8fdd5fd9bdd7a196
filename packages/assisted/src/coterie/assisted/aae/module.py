"""The autoencoder as an ordinary module on dense rows, which autograd differentiates."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from coterie.assisted.aae.batches import Batch
from coterie.assisted.aae.cells import Cells
from coterie.assisted.aae.network import AAE, DECODER, RATINGS, Params
from coterie.assisted.objective import Objective


class Wide(nn.Module):
    """A linear layer whose weight has a row an input, as `AAE` has its widest ones.

    Args:
        n_in: number of inputs.
        n_out: number of outputs.
    """

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_in, n_out))
        self.bias = nn.Parameter(torch.empty(n_out))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, n_in) -> (B, n_out)``."""
        return x @ self.weight + self.bias


class Encoder(nn.Module):
    """``wide -> tanh -> code -> tanh``.

    Args:
        n_in: number of inputs.
        hidden: width of the layer.
        code: width of the code.
    """

    def __init__(self, n_in: int, hidden: int, code: int) -> None:
        super().__init__()
        self.wide, self.code = Wide(n_in, hidden), nn.Linear(hidden, code)

    def forward(self, x: Tensor) -> Tensor:
        """Encode rows, ``(B, n_in) -> (B, code)``."""
        return torch.tanh(self.code(torch.tanh(self.wide(x))))


class Decoder(nn.Module):
    """``hidden -> tanh -> wide``.

    Args:
        code: width of the code.
        hidden: width of the layer.
        n_out: number of outputs.
    """

    def __init__(self, code: int, hidden: int, n_out: int) -> None:
        super().__init__()
        self.hidden, self.wide = nn.Linear(code, hidden), nn.Linear(hidden, n_out)

    def forward(self, code: Tensor) -> Tensor:
        """Decode, ``(B, code) -> (B, n_out)``."""
        found: Tensor = self.wide(torch.tanh(self.hidden(code)))
        return found


class Autoencoder(nn.Module):
    """An `AAE` with parameters of the same names.

    Args:
        sizes: of the network.
        params: first values of the parameters.

    Example:
        >>> from coterie.core.tensors.keys import Key
        >>> sizes = AAE(3, 5, hidden=4, code=2)
        >>> Autoencoder(sizes, sizes.start(Key.from_seed(0)))(torch.ones(1, 3)).shape
        torch.Size([1, 5])
    """

    def __init__(self, sizes: AAE, params: Params) -> None:
        super().__init__()
        self._sides = tuple(sizes.sides)
        for name, width in {RATINGS: sizes.n_inputs, **sizes.sides}.items():
            self.add_module(name, Encoder(width, sizes.hidden, sizes.code))
        self.add_module(DECODER, Decoder(sizes.code, sizes.hidden, sizes.n_outputs))
        self.to(next(iter(params.values())).dtype)
        self.load_state_dict(params)

    def forward(
        self, ratings: Tensor, sides: Mapping[str, Tensor] | None = None, keep: Tensor | None = None
    ) -> Tensor:
        """Give all outputs of rows, ``(B, n_outputs)``.

        Args:
            ratings: ``(B, n_inputs)``, 0 where there is none.
            sides: features ``(B, d)`` by name.
            keep: ``(B, code)`` what the code is multiplied with; None = no dropout.
        """
        code: Tensor = self.get_submodule(RATINGS)(ratings)
        for name in self._sides:
            code = code + self.get_submodule(name)((sides or {})[name])
        found: Tensor = self.get_submodule(DECODER)(code if keep is None else code * keep)
        return found

    def loss(self, batch: Batch, loss: Objective) -> Tensor:
        """Mean loss over the cells of a batch, ``()``.

        Args:
            batch: what the step sees.
            loss: of single cells.
        """
        found = self(dense(batch.inputs, batch.ratings), batch.sides, batch.keep)
        cells = batch.targets
        values = loss.loss(batch.values, found[cells.row.long(), cells.column.long()])
        if batch.counted is None:
            return values.mean() if len(values) else values.sum()
        return (values * batch.counted).sum() / batch.counted.sum().clamp(min=1.0)


def dense(cells: Cells, values: Tensor) -> Tensor:
    """Write cells into a table of zeros, ``(B, n_columns)``.

    Args:
        cells: of B rows.
        values: of the cells, ``(n,)``.
    """
    table = values.new_zeros(cells.n_rows, cells.n_columns)
    table[cells.row.long(), cells.column.long()] = values
    return table
