"""A task: what the clients and the server hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from coterie.core.data.samples.split_samples import SplitSamples


@dataclass(frozen=True)
class Form:
    """What a network must know of a task; public.

    Attributes:
        name: of the data set.
        n_classes: number of classes.
        shape: of one sample's ``x``.
        dtype: of it, by name.
    """

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
