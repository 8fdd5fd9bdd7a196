"""A task: what the clients and the server hold."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.core.data.samples.split_samples import SplitSamples


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
