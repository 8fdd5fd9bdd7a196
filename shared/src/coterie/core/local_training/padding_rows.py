"""Embeddings whose padding row gets no gradient, also where clients are stacked.

Autograd through `torch.func.vmap` forgets ``padding_idx``. What torch does for one client is that
a look-up of that row gives it no gradient; other uses of the table, as by an output layer that is
tied to it, do.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PaddedEmbedding(nn.Embedding):
    """A dense embedding with a padding row; outside of `torch.func` it is what it was."""

    def forward(self, input: Tensor) -> Tensor:
        """As `torch.nn.Embedding.forward`."""
        assert self.padding_idx is not None
        if not torch._C._functorch.is_batchedtensor(self.weight):
            return super().forward(input)
        rows = F.embedding(input, self.weight)
        padding = torch.eq(input, self.padding_idx).unsqueeze(-1)
        return torch.where(padding, rows.detach(), rows)


def keep_padding_rows(module: nn.Module) -> None:
    """Make the dense embeddings of a module keep their padding rows; it is changed.

    Example:
        >>> table = nn.Embedding(3, 1, padding_idx=0)
        >>> keep_padding_rows(table)
        >>> isinstance(table, PaddedEmbedding)
        True
    """
    for part in module.modules():
        if type(part) is nn.Embedding and part.padding_idx is not None and not part.sparse:
            part.__class__ = PaddedEmbedding
