"""Dense layers, drawn by torch's current generator."""

from __future__ import annotations

from torch import nn


def hidden_layer(inputs: int, outputs: int) -> nn.Linear:
    """A hidden layer: weights as in Glorot and Bengio (2010), biases 0."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def output_layer(width: int, offset: bool = False) -> nn.Linear:
    """A layer of one output: weights uniform as in LeCun et al. (1998).

    Args:
        width: of its input.
        offset: whether a constant is added; it starts at 0.
    """
    layer = nn.Linear(width, 1, bias=offset)
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="linear")
    if offset:
        nn.init.zeros_(layer.bias)
    return layer
