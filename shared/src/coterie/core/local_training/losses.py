"""What local training minimises: methods of modules as functions of one client's parameters."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.local_training.row_optimizer import Params
from coterie.core.local_training.stacking import stacked
from coterie.core.local_training.taps import tap_linear_layers

Batch = dict[str, Tensor]
Loss = Callable[[Params, Batch], Tensor]
AsBatch = Callable[[Batch], Any]
"""Makes of a dict of samples, ``name -> (B, ...)``, what the methods of a module take."""
Slope = Callable[[Params, Batch], tuple[Params, Tensor]]
"""Gradients, each ``(K, ...)``, and losses ``(K,)`` of K clients with stacked parameters."""
Pull = Callable[[Params, Any], Params]
"""Gradients of what a method adds to the loss, from stacked parameters and a stacked context.

They are dense: a table whose own gradient is sparse is stepped as a whole where it is pulled."""


class MethodOf:
    """A method of a module, such as its loss, as a function of one client's parameters.

    What `torch.func.functional_call` does anew in every call, finding where each tensor stands and
    putting the module's own back, is done once: this works on a copy of the module. Its linear
    layers can be taped (`coterie.core.local_training.taps`).

    Args:
        module: has ``method(batch)``; parameters and buffers that a call does not name are its own.
        method: its name.
        training: whether the copy is in training mode; None = as the module is.
        as_batch: makes of the dict what the method takes; None = the dict itself.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> forward = MethodOf(layer, "forward", False, lambda batch: batch["x"])
        >>> forward({"weight": torch.tensor([[2.0]])}, {"x": torch.ones(1, 1)}).tolist()
        [[2.0]]
    """

    def __init__(
        self,
        module: nn.Module,
        method: str,
        training: bool | None = None,
        as_batch: AsBatch | None = None,
    ) -> None:
        # Its own values are constants. They want no gradients: torch refuses to copy those in vmap.
        self._module = copy.deepcopy(module).requires_grad_(False)
        if training is not None:
            self._module.train(training)
        self._method, self._as_batch = method, as_batch
        self._of_thread = threading.local()  # threads would put each other's tensors in place

    def __call__(self, params: Params, batch: Batch) -> Any:
        """Call the method with parameters and buffers by name; buffers may be written to."""
        placed: _Placed | None = getattr(self._of_thread, "placed", None)
        if placed is None:
            placed = self._of_thread.placed = _Placed(copy.deepcopy(self._module), self._method)
        return placed.call(params, batch if self._as_batch is None else self._as_batch(batch))


class _Placed:
    """A module whose tensors can be put in their places."""

    def __init__(self, module: nn.Module, method: str) -> None:
        self._method = getattr(module, method)
        self._places: list[tuple[str, Any, list[tuple[dict[str, Any], str]]]] = []
        names: dict[int, str] = {}  # a tensor in several places goes by the name of the first
        places: dict[str, list[tuple[dict[str, Any], str]]] = {}
        for path, part in module.named_modules():
            for tensors in (part._parameters, part._buffers):
                for leaf, value in tensors.items():
                    name = names.setdefault(id(value), f"{path}.{leaf}".removeprefix("."))
                    places.setdefault(name, []).append((tensors, leaf))
        for name, where in places.items():
            tensors, leaf = where[0]
            self._places.append((name, tensors[leaf], where))
        tap_linear_layers(module, names)

    def call(self, params: Params, batch: Any) -> Any:
        for name, own, places in self._places:
            value = params.get(name, own)
            for tensors, leaf in places:
                tensors[leaf] = value
        return self._method(batch)


def masked(loss: Loss) -> Loss:
    """Make a loss obey a batch's mask.

    Args:
        loss: of one client; the mean over the samples of its batch of something that depends on
            one sample. It need not know of masks.

    Returns:
        The loss over the samples that count. Batches without a mask go to ``loss`` itself.
    """

    def obeying(params: Params, batch: Batch) -> Tensor:
        if "mask" not in batch:
            return loss(params, batch)
        samples = {name: value for name, value in batch.items() if name != "mask"}
        mask = batch["mask"]
        values = per_sample(loss, params, samples)
        return torch.where(mask, values, 0.0).sum() / mask.sum()

    return obeying


def per_sample(loss: Loss, params: Params, samples: Batch) -> Tensor:
    """Losses ``(B,)`` of single samples: each is a batch of one."""
    alone = {name: value.unsqueeze(1) for name, value in samples.items()}
    return stacked(lambda sample: loss(params, sample))(alone)
