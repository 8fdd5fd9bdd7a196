"""Dropout for stacked clients: masks are drawn from the clients' keys and come with the batch.

torch's own dropout draws from one generator for all clients, so what a client drops would depend on
who else is in its chunk. `torch.func.vmap` and `coterie.core.local_training.stacking` refuse it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from coterie.core.data.samples.samples import CountedBatches
from coterie.core.errors import UserError
from coterie.core.local_training.losses import Batch
from coterie.core.tensors.keys import Key


def dropout_mask(
    key: Key, shape: tuple[int, ...], rate: float, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Draw what dropout multiplies by: 0 with probability ``rate``, else 1 / (1 - rate).

    A mask with more rows begins with that of fewer.

    Args:
        key: one key, or one for each of C clients.
        shape: of a client's mask.
        rate: in [0, 1), rounded to a multiple of 2^-32.
        dtype: of the mask.

    Returns:
        ``(*shape)`` for a single key, ``(C, *shape)`` for C keys.

    Raises:
        UserError: the rate is outside [0, 1).

    Example:
        >>> keys = Key.from_seed(0).fold(torch.arange(2))
        >>> mask = dropout_mask(keys, (3, 4), 0.5)
        >>> tuple(mask.shape), mask.unique().tolist()
        ((2, 3, 4), [0.0, 2.0])
    """
    _check(rate)
    count = math.prod(shape)
    words = Key(key.state.unsqueeze(-1)).bits(torch.arange(count // 2 + 1))
    draws = words.view(torch.int32)[..., :count]  # two of each hash
    kept = draws >= min(round(rate * 2**32), 2**32 - 1) - 2**31
    return kept.to(dtype).mul_(1 / (1 - rate)).reshape((*key.state.shape, *shape))


class KeyedDropout(nn.Module):
    """Dropout by the mask that a batch brings; it changes nothing where there is none.

    So a module needs no training mode: batches for training have masks (`DropoutBatches`), those
    to measure on have none.

    Args:
        name: of the layer, another one for each layer of a module.
        shape: of one sample's mask, as it broadcasts against one sample of ``x``: ``(width,)``, or
            ``(channels, 1, 1)`` to drop whole channels.
        rate: probability of a zero.

    Raises:
        UserError: the rate is outside [0, 1).

    Example:
        >>> layer = KeyedDropout("hidden", (2,), 0.5)
        >>> x = torch.ones(1, 2)
        >>> layer(x, {"x": x}).tolist(), layer(x, {layer.field: torch.zeros(1, 2)}).tolist()
        ([[1.0, 1.0]], [[0.0, 0.0]])
    """

    def __init__(self, name: str, shape: tuple[int, ...], rate: float) -> None:
        super().__init__()
        _check(rate)
        self.name, self.shape, self.rate = name, shape, rate
        self.field = f"dropout.{name}"

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Drop entries of ``x``, ``(B, ...)``, by the batch's field ``dropout.<name>``."""
        mask = batch.get(self.field)
        return x if mask is None else x * mask


class DropoutBatches:
    """Batches with a mask ``(K, B, *shape)`` for each `KeyedDropout` of a module.

    A mask depends on the client's key, the number of the batch, the layer and the place in the
    batch, hence on no other client.

    Args:
        batches: of C clients; how a client's samples lie in a batch must depend on no other client
            (`coterie.core.data.samples.samples.MiniBatches` with ``by_place``).
        module: has the layers; masks are of its parameters' dtype.
        key: the clients' keys, ``state`` of shape ``(C,)``.

    Attributes:
        per_epoch: as those of ``batches``.
        steps: as those of ``batches``.

    Raises:
        UserError: two layers have one name.
    """

    def __init__(self, batches: CountedBatches, module: nn.Module, key: Key) -> None:
        self._batches, self._layers, self._key = batches, keyed_layers(module), key.fold("dropout")
        self.per_epoch, self.steps = batches.per_epoch, batches.steps
        self._dtype = next((value.dtype for value in module.parameters()), torch.float32)

    def __call__(self, number: int, rows: Tensor) -> Batch:
        """Batch ``number`` of the clients ``rows``, with masks."""
        batch = self._batches(number, rows)
        size, key = next(iter(batch.values())).shape[1], self._key.take(rows).fold(number)
        masks = {
            layer.field: dropout_mask(
                key.fold(layer.name), (size, *layer.shape), layer.rate, self._dtype
            )
            for layer in self._layers
        }
        return batch | masks


def keyed_layers(module: nn.Module) -> list[KeyedDropout]:
    """Layers of a module that take their masks from the batch.

    Raises:
        UserError: two of them have one name, and would drop the same.
    """
    layers = [part for part in module.modules() if isinstance(part, KeyedDropout)]
    names = [layer.name for layer in layers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"several KeyedDropout layers are named '{twice[0]}': name each differently"
        )
    return layers


def _check(rate: float) -> None:
    if not 0 <= rate < 1:
        raise UserError(
            f"the dropout rate {rate:g} is outside [0, 1): choose 0 or a number below 1"
        )
