"""Which numbers of an adapter stay with its client, in the method `fedavg-head`."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.llm.adapter import Adapter
from coterie.llm.backbones.base import Backbone


class LocalHead:
    """Take a row apart: into what is averaged, and a head that its client keeps.

    Args:
        own: ``(d,)`` bool, the numbers that stay; None where nothing does.

    Attributes:
        own: the same.

    Example:
        >>> head = LocalHead(torch.tensor([False, True, False]))
        >>> row = torch.tensor([1.0, 2.0, 3.0])
        >>> head.shared(row).tolist(), head.part(row).tolist()
        ([1.0, 3.0], [2.0])
        >>> head.joined(torch.tensor([7.0, 9.0]), head.part(row)).tolist()
        [7.0, 2.0, 9.0]
    """

    def __init__(self, own: Tensor | None = None) -> None:
        self.own = own

    @staticmethod
    def of(backbone: Backbone, adapter: Adapter, method: str) -> LocalHead:
        """The head that a method leaves to clients: what `Backbone.head_names` says, or none."""
        if method != "fedavg-head":
            return LocalHead()
        parts = [name.startswith(backbone.head_names) for name in adapter.names]
        counts = torch.tensor([parameter.numel() for parameter in adapter.parameters])
        return LocalHead(torch.tensor(parts).repeat_interleave(counts))

    def shared(self, row: Tensor) -> Tensor:
        """What is sent of a row ``(d,)``."""
        return row if self.own is None else row[~self.own]

    def part(self, row: Tensor) -> Tensor | None:
        """The head in a row ``(d,)``; None where there is none."""
        return None if self.own is None else row[self.own]

    def joined(self, shared: Tensor, part: Tensor | None) -> Tensor:
        """Put a row ``(d,)`` together again."""
        if self.own is None or part is None:
            return shared
        row = shared.new_empty(self.own.numel())
        row[~self.own], row[self.own] = shared, part
        return row
