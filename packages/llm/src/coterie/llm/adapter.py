"""What a client trains of the shared network, as one flat row of a (K, d) matrix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.llm.backbones.base import Backbone


class Adapter:
    """The trainable parameters of a network (LoRA, or all of it) as a flat row.

    One frozen network serves all clients: before a client's turn its row is copied into these
    parameters, afterwards it is read back, which costs two copies of d numbers.

    Args:
        named: names and parameters, in the order of the row.
        may_be_empty: whether nothing to train is right.

    Raises:
        UserError: there is nothing to train.

    Example:
        >>> adapter = Adapter(nn.Linear(2, 1).named_parameters())
        >>> adapter.load(torch.tensor([1.0, 2.0, 3.0]))
        >>> adapter.row().tolist(), adapter.names
        ([1.0, 2.0, 3.0], ['weight', 'bias'])
    """

    def __init__(
        self, named: Iterable[tuple[str, nn.Parameter]], *, may_be_empty: bool = False
    ) -> None:
        chosen = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        if not chosen and not may_be_empty:
            raise UserError("the adapter is empty: no parameter of the backbone is trainable")
        self.names = [name for name, _ in chosen]
        self.parameters = [parameter for _, parameter in chosen]
        self._sizes = [parameter.numel() for parameter in self.parameters]

    @property
    def size(self) -> int:
        """d, the length of a row."""
        return sum(self._sizes)

    def place(self, name: str) -> slice:
        """Where a parameter is in a row.

        Raises:
            ValueError: there is none of that name.
        """
        number = self.names.index(name)
        first = sum(self._sizes[:number])
        return slice(first, first + self._sizes[number])

    def load(self, row: Tensor) -> None:
        """Copy a row ``(d,)`` into the network.

        Raises:
            UserError: the row is of another length.
        """
        if row.shape != (self.size,):
            raise UserError(
                f"an adapter of {row.numel()} numbers does not fit the backbone, which has "
                f"{self.size} trainable ones: use the backbone and LoRA settings it was made with"
            )
        with torch.no_grad():
            torch._foreach_copy_(list[Tensor](self.parameters), self._shaped(row))

    def row(self) -> Tensor:
        """Copy the parameters out, ``(d,)`` float32 or float64."""
        return self._flat(self.parameters)

    def gradient(self) -> Tensor:
        """Copy the gradients out, ``(d,)``; 0 where a parameter has none."""
        return self._flat(
            [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        )

    def clear(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def named_tensors(self, row: Tensor) -> dict[str, Tensor]:
        """Give the parts of a row ``(d,)`` by name, shaped as in the network."""
        return dict(zip(self.names, self._shaped(row), strict=True))

    def _shaped(self, row: Tensor) -> list[Tensor]:
        parts = row.split(self._sizes)
        pairs = zip(parts, self.parameters, strict=True)
        return [part.view_as(parameter) for part, parameter in pairs]

    @staticmethod
    def _flat(tensors: Sequence[Tensor]) -> Tensor:
        if not tensors:
            return torch.empty(0)
        return torch.cat([tensor.detach().flatten() for tensor in tensors])


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
    def of(
        backbone: Backbone, adapter: Adapter, method: str, counted: str | None = None
    ) -> LocalHead:
        """What a method leaves to clients: `Backbone.head_names` of fedavg-head, all of local.

        Args:
            backbone: whose adapter it is.
            adapter: a client's.
            method: of the run.
            counted: parameter that the server makes from everybody's counts, which is sent.
        """
        if method == "local":
            parts = [name != counted for name in adapter.names]
        elif method == "fedavg-head":
            parts = [name.startswith(backbone.head_names) for name in adapter.names]
        else:
            return LocalHead()
        counts = torch.tensor([parameter.numel() for parameter in adapter.parameters])
        return LocalHead(torch.tensor(parts).repeat_interleave(counts))

    def shared(self, row: Tensor) -> Tensor:
        """What is sent of a row ``(d,)``."""
        return row if self.own is None else row[~self.own]

    def place(self, place: slice) -> slice:
        """Where in what is sent a part of a row is, all of which is sent.

        Example:
            >>> LocalHead(torch.tensor([True, False, True, False])).place(slice(3, 4))
            slice(1, 2, None)
        """
        if self.own is None:
            return place
        before = int((~self.own[: place.start]).sum())
        return slice(before, before + place.stop - place.start)

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
