"""The LSTM that predicts the next character of Shakespeare.

McMahan et al., AISTATS 2017, section 3, with the sizes of PAGE's code.
"""

from __future__ import annotations

from torch import Tensor, nn

from coterie.core.models.classifier import Classifier


class LastStep(nn.Module):
    """Embedding and LSTM; what comes out is the upper layer's state after the last symbol."""

    def __init__(self, n_symbols: int, dim: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_symbols, dim)
        self.lstm = nn.LSTM(dim, hidden, layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map symbols ``(B, length)``, of any integer type, to features ``(B, hidden)``."""
        states, _ = self.lstm(self.embedding(x.long()))
        features: Tensor = states[:, -1]
        return features


def char_lstm(n_symbols: int, dim: int = 8, hidden: int = 100, layers: int = 2) -> Classifier:
    """Make the LSTM with a linear layer over the symbols.

    Args:
        n_symbols: number of symbols, which are input and classes.
        dim: length of an embedding.
        hidden: length of a state.
        layers: of the LSTM.
    """
    return Classifier(LastStep(n_symbols, dim, hidden, layers), nn.Linear(hidden, n_symbols))
