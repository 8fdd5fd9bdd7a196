"""The sizes of an Assisted AutoEncoder, and its first parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.core.tensors.keys import Key

RATINGS = "ratings"
DECODER = "decoder"
Params = dict[str, Tensor]


@dataclass(frozen=True)
class AAE:
    """An Assisted AutoEncoder (Diao et al., Table 5); each organisation may choose its own sizes.

    An encoder of the ratings and one of each kind of side information, all
    ``wide -> tanh -> code -> tanh``, whose codes are summed; dropout; a decoder
    ``hidden -> tanh -> wide`` without output activation. The wide matrices have a row a column of
    the ratings, the others are as those of `torch.nn.Linear`:

    ==============================  =======================
    ``{encoder}.wide.weight``       ``(n_inputs, hidden)``, of a side encoder ``(d, hidden)``
    ``{encoder}.wide.bias``         ``(hidden,)``
    ``{encoder}.code.weight, bias`` ``(code, hidden)``, ``(code,)``
    ``decoder.hidden.weight, bias`` ``(hidden, code)``, ``(hidden,)``
    ``decoder.wide.weight, bias``   ``(n_outputs, hidden)``, ``(n_outputs,)``
    ==============================  =======================

    Attributes:
        n_inputs: columns of the organisation's own ratings.
        n_outputs: columns of the targets; those of all organisations, or ``n_inputs``.
        sides: features d of each kind of side information, by name.
        hidden: width of the hidden layers.
        code: width of the code.
        dropout: share of the code that is dropped in training, in [0, 1).

    Raises:
        ValueError: a size is not positive, the dropout is out of its range, or a side's name is
            one of the network's own parts.

    Example:
        >>> network = AAE(3, 5, {"profile": 2}, hidden=4, code=2)
        >>> sorted(network.start(Key.from_seed(0)))[:2]
        ['decoder.hidden.bias', 'decoder.hidden.weight']
    """

    n_inputs: int
    n_outputs: int
    sides: Mapping[str, int] = field(default_factory=dict)
    hidden: int = 256
    code: int = 128
    dropout: float = 0.5

    def __post_init__(self) -> None:
        sizes = (self.n_inputs, self.n_outputs, self.hidden, self.code, *self.sides.values())
        if min(sizes) < 1:
            raise ValueError("all sizes of an autoencoder must be positive")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), not {self.dropout}")
        if {RATINGS, DECODER} & self.sides.keys():
            raise ValueError(f"'{RATINGS}' and '{DECODER}' are no names for side information")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter, by name."""
        hidden, code = self.hidden, self.code
        shapes: dict[str, tuple[int, ...]] = {}
        for encoder, features in {RATINGS: self.n_inputs, **self.sides}.items():
            shapes[f"{encoder}.wide.weight"] = (features, hidden)
            shapes[f"{encoder}.wide.bias"] = (hidden,)
            shapes[f"{encoder}.code.weight"] = (code, hidden)
            shapes[f"{encoder}.code.bias"] = (code,)
        shapes[f"{DECODER}.hidden.weight"] = (hidden, code)
        shapes[f"{DECODER}.hidden.bias"] = (hidden,)
        shapes[f"{DECODER}.wide.weight"] = (self.n_outputs, hidden)
        shapes[f"{DECODER}.wide.bias"] = (self.n_outputs,)
        return shapes

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def start(self, key: Key, dtype: torch.dtype = torch.float32) -> Params:
        """Draw first parameters: Xavier's uniform weights (Glorot, Bengio, 2010), zero biases."""
        return {name: _drawn(key.fold(name), shape, dtype) for name, shape in self.shapes.items()}


def _drawn(key: Key, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if len(shape) == 1:
        return torch.zeros(shape, dtype=dtype)
    bound = math.sqrt(6 / sum(shape))
    return key.uniform(*shape, dtype=dtype).mul_(2 * bound).sub_(bound)
