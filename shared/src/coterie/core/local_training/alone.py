"""Modules trained one client at a time: they mix samples, keep statistics, draw, or name rows.

Batch normalisation makes a sample's output depend on the others of its batch and keeps running
statistics; torch's own dropout draws from a generator that all clients of a stack would share. One
client alone has its batch, its statistics and, seeded from its key for every step, the generator to
itself. So it has the sparse gradients of large tables, of which torch can make no stack. What is in
here is plain torch: no module has to be rewritten for it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.core.data.samples.samples import CountedBatches
from coterie.core.errors import UserError
from coterie.core.local_training.losses import Batch, Loss
from coterie.core.local_training.row_optimizer import Params
from coterie.core.tensors.keys import Key

SEED = "batch.seed"
"""Field of a batch: state of the key that its step draws by, ``(K,)`` int64."""
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def statistics_of(module: nn.Module) -> Params:
    """Give the buffers that training updates, by name: the running statistics of normalisation.

    They are told by torch's own names, ``running_mean``, ``running_var`` and
    ``num_batches_tracked``; other buffers are constants.

    Example:
        >>> sorted(statistics_of(nn.BatchNorm1d(2)))
        ['num_batches_tracked', 'running_mean', 'running_var']
    """
    buffers = module.named_buffers()
    return {name: value for name, value in buffers if name.rpartition(".")[2] in STATISTICS}


def mixes_samples(module: nn.Module) -> bool:
    """Whether the output for a sample depends on the others of its batch, in training."""
    normalisation = nn.modules.batchnorm._BatchNorm
    parts = any(isinstance(part, normalisation) for part in module.modules())
    return parts or bool(statistics_of(module))


def row_sparse(module: nn.Module) -> bool:
    """Whether a module is an embedding whose gradient names the rows that a batch looked up."""
    return isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse


def trained_alone(module: nn.Module) -> bool:
    """Whether a module is trained one client at a time.

    It mixes samples, has torch's dropout, or embeddings with sparse gradients.

    Example:
        >>> trained_alone(nn.Dropout(0.5)), trained_alone(nn.LayerNorm(2))
        (True, False)
    """
    dropout = nn.modules.dropout._DropoutNd
    return mixes_samples(module) or any(
        isinstance(part, dropout) or row_sparse(part) for part in module.modules()
    )


class SeededBatches:
    """Batches that say by which key a step draws; `drawing` obeys it.

    Args:
        batches: of clients, one at a time.
        key: the clients' keys, ``state`` of shape ``(C,)``.

    Attributes:
        per_epoch: as those of ``batches``.
        steps: as those of ``batches``.
    """

    def __init__(self, batches: CountedBatches, key: Key) -> None:
        self._batches, self._key = batches, key.fold("draws")
        self.per_epoch, self.steps = batches.per_epoch, batches.steps

    def __call__(self, number: int, rows: Tensor) -> Batch:
        """Batch ``number`` of the clients ``rows``, with their keys."""
        return self._batches(number, rows) | {SEED: self._key.take(rows).fold(number).state}


def drawing(loss: Loss) -> Loss:
    """Make a loss draw by the key that a batch of `SeededBatches` brings; others go to it as is."""

    def obeying(params: Params, batch: Batch) -> Tensor:
        if SEED not in batch:
            return loss(params, batch)
        rest = {name: value for name, value in batch.items() if name != SEED}
        with Key(batch[SEED]).torch_rng():
            return loss(params, rest)

    return obeying


def check_enough(lengths: Tensor, ids: Tensor, batch_size: int | None) -> None:
    """Check that every batch of modules that mix samples has two or more.

    Args:
        lengths: ``(C,)`` numbers of samples; 0 is no batch.
        ids: ``(C,)`` of the clients.
        batch_size: None = all samples of a client.

    Raises:
        UserError: one has a single sample, which has no variance.
    """
    if batch_size == 1:
        raise UserError(
            "batch normalisation needs batches of 2 samples or more: raise the batch size"
        )
    if bool((lengths == 1).any()):
        client = int(ids[lengths == 1][0])
        raise UserError(
            f"client {client} has a single training sample, and batch normalisation needs 2: leave "
            "the client out, or choose a model without"
        )


def as_clients(statistics: Params, n_clients: int) -> Params:
    """Give every client the statistics of a module, copies: ``(...) -> (C, ...)``."""
    return {
        name: torch.stack([value.detach()] * n_clients)
        if n_clients
        else value.new_empty(0, *value.shape)
        for name, value in statistics.items()
    }
