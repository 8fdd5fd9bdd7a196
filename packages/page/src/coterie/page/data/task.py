"""A task: what the clients and the server hold, of samples as they come from files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from coterie.core.data.samples.split_samples import SplitSamples


@dataclass(frozen=True)
class Labelled:
    """Samples with labels.

    Attributes:
        x: ``(n, ...)``; pictures are ``(n, 3, height, width)`` uint8.
        y: ``(n,)`` int64 class numbers.
        n_classes: number of classes, some of which may have no sample.
    """

    x: Tensor
    y: Tensor
    n_classes: int

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"{len(self.x)} samples do not fit {len(self.y)} labels")

    def __len__(self) -> int:
        return len(self.y)

    def counts(self, part: str) -> dict[str, Any]:
        """Describe the samples in a row of a table."""
        shape = " x ".join(map(str, self.x.shape[1:]))
        classes = self.y.unique().numel()
        return {"part": part, "samples": len(self), "classes": classes, "shape": shape}


@dataclass(frozen=True)
class Form:
    """What a network must know of a task; public. Shape and dtype are of one sample's ``x``."""

    name: str
    n_classes: int
    shape: tuple[int, ...]
    dtype: str

    @staticmethod
    def from_plain(plain: Mapping[str, Any]) -> Form:
        """Read it from a public card."""
        return Form(plain["name"], plain["n_classes"], tuple(plain["shape"]), plain["dtype"])


@dataclass(frozen=True)
class Task:
    """Data of a federation of classifiers.

    Attributes:
        name: of the data set.
        clients: samples of the clients D_i, with ``x`` and ``y``.
        server_valid: the server's samples D_CS that choices are made by, ``x`` and ``y``.
        server_test: the server's samples that are reported.
        n_classes: number of classes.
    """

    name: str
    clients: SplitSamples
    server_valid: dict[str, Tensor]
    server_test: dict[str, Tensor]
    n_classes: int

    @property
    def form(self) -> Form:
        """What a network must know of it."""
        x = self.clients.train.samples["x"]
        dtype = str(x.dtype).removeprefix("torch.")
        return Form(self.name, self.n_classes, tuple(x.shape[1:]), dtype)
