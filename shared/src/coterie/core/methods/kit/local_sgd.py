"""Local SGD of a chunk of clients: what nearly all methods do between two messages."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from coterie.core.data.samples.samples import MiniBatches, SampleData, batch_counts
from coterie.core.errors import UserError
from coterie.core.local_training.dropout import DropoutBatches, keyed_layers
from coterie.core.local_training.fit import (
    AsBatch,
    Batch,
    Batches,
    Fitted,
    Params,
    Pull,
    Slope,
    fit,
    masked,
    pure,
)
from coterie.core.local_training.row_optimizer import RowSGD
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.tensors.keys import Key


class CountedBatches(Batches, Protocol):
    """Batches that know how many there are of each client, ``steps`` ``(C,)`` int64."""

    steps: Tensor


class LocalSGD:
    """E epochs of mini-batch SGD in every client, by a method's settings.

    Args:
        module: gives the form of the model by ``loss(batch)``, the mean over a batch's samples of
            something that depends on one sample. Its values do not matter, but those of buffers and
            of parameters without gradient do: they are constants. With a method ``slope(params,
            batch)`` it may give gradients and losses of stacked clients itself, see
            `coterie.core.local_training.fit.Slope`. Its dropout is that of
            `coterie.core.local_training.dropout.KeyedDropout`.
        settings: epochs, batch size, learning rate, weight decay, clipping.
        as_batch: makes what ``module.loss`` takes of a dict of samples; None = the dict itself.

    Raises:
        UserError: the module has batch normalisation, whose statistics mix samples, or layers of
            keyed dropout of one name.
    """

    def __init__(
        self, module: nn.Module, settings: FedAvgSettings, as_batch: AsBatch | None = None
    ) -> None:
        _refuse_batch_norm(module)
        self.settings = settings
        self._dropping = module if keyed_layers(module) else None
        self.loss = masked(pure(module, "loss", as_batch))
        self.slope: Slope | None = getattr(module, "slope", None)
        self.optimizer = RowSGD(weight_decay=settings.weight_decay)

    def batches(
        self, data: SampleData, key: Key, epochs: int | Tensor | None = None
    ) -> MiniBatches:
        """Shuffle and cut the samples of each client; ``epochs`` is E or ``(C,)`` of them."""
        passes = self.settings.epochs if epochs is None else epochs
        if self._dropping is not None:
            return _WithMasks(self._dropping, data, passes, self.settings.batch_size, key)
        return MiniBatches(data, passes, self.settings.batch_size, key)

    def steps(self, data: SampleData) -> Tensor:
        """Local steps of each client in a round, ``(C,)`` int64."""
        return self.settings.epochs * batch_counts(data.lengths, self.settings.batch_size)

    def train(
        self,
        start: Params,
        batches: CountedBatches,
        *,
        lr: float | Tensor | None = None,
        pull: Pull | None = None,
        context: Any = None,
        fixed: Params | None = None,
    ) -> Fitted:
        """Train C clients.

        Args:
            start: each ``(C, ...)``; with ``fixed``, the part of the model that is trained.
            batches: of the clients; their number is the number of steps.
            lr: learning rate, one for all or ``(C,)``; None = that of the settings.
            pull: what the method adds to the gradients, see `coterie.core.local_training.fit.fit`.
            context: stacked tree for ``pull``.
            fixed: the part of the model that stays, see `coterie.core.local_training.fit.fit`.
        """
        return fit(
            self.loss,
            start,
            batches,
            self.optimizer,
            self.settings.lr if lr is None else lr,
            batches.steps,
            clip=self.settings.clip,
            slope=self.slope,
            pull=pull,
            context=context,
            fixed=fixed,
        )


class _WithMasks(MiniBatches):
    """Mini-batches with the masks of a module's dropout."""

    def __init__(
        self,
        module: nn.Module,
        data: SampleData,
        epochs: int | Tensor,
        batch_size: int | None,
        key: Key,
    ) -> None:
        super().__init__(data, epochs, batch_size, key, by_place=True)
        self._with_masks = DropoutBatches(super().__call__, module, key)

    def __call__(self, number: int, rows: Tensor) -> Batch:
        return self._with_masks(number, rows)


def same_for_all(weights: Params, n_clients: int) -> Params:
    """Give every client the same parameters, as a view: ``(...) -> (C, ...)``."""
    return {name: value.expand(n_clients, *value.shape) for name, value in weights.items()}


def changes(new: Params, old: Params) -> Params:
    """Subtract the server's parameters from the clients', ``(C, ...)``."""
    return {name: value - old[name] for name, value in new.items()}


def towards(strength: float | Tensor) -> Pull:
    """Pull of μ/2 ‖w - v‖² towards the context v, each of its tensors ``(C, ...)``.

    Example:
        >>> import torch
        >>> pull = towards(0.5)
        >>> pull({"w": torch.ones(1, 1)}, {"w": torch.zeros(1, 1)})["w"].item()
        0.5
    """
    return lambda params, context: {
        name: strength * (value - context[name]) for name, value in params.items()
    }


def _refuse_batch_norm(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise UserError(
                f"'{name}' is batch normalisation, which mixes samples and keeps statistics: "
                "use GroupNorm or LayerNorm"
            )
