"""What a module does when its loss is computed: tried on a copy, and remembered.

A loss is taken to be a function of a batch and of parameters. What it is not is told in one line
before the first round: a loss that is no number, random draws that no key governs, tensors that are
written into. One that changes attributes of its module, such as a counter of a warm-up, is trained
as a plain loop would: one client after the other, every step by the module itself.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.data.samples.samples import Samples
from coterie.core.errors import UserError
from coterie.core.local_training.alone import STATISTICS
from coterie.core.local_training.losses import AsBatch, Batch, copied, one_number
from coterie.core.local_training.stacking import drawing_nothing
from coterie.core.local_training.watching import Reading, Unwatchable, attributes, reading
from coterie.core.tensors.device import brought
from coterie.core.tensors.keys import Key

_TRIES = 3
"""Other threads may draw from the generators of the process; not every time."""


def check_layers(module: nn.Module) -> None:
    """Check what can be told of a module without a batch.

    Raises:
        UserError: it is no module, or has lazy layers without a shape, embeddings that write into
            their weights, hooks on gradients of parameters, or parts that torch has compiled.

    Example:
        >>> check_layers(nn.Linear(1, 1))
    """
    if not isinstance(module, nn.Module):
        made = f", as {module.__name__}()" if isinstance(module, type) else ""
        raise UserError(f"clients train a torch.nn.Module, not {module!r:.60}: make one{made}")
    lazy = nn.parameter.is_lazy
    for path, part in module.named_modules():
        name = f"'{path}'" if path else type(module).__name__
        if isinstance(part, torch.jit.ScriptModule) or hasattr(part, "_orig_mod"):
            raise UserError(
                f"{name} is compiled, and clients put parameters of their own in place: hand over "
                "the module that it was made of"
            )
        tensors = (*part._parameters.values(), *part._buffers.values())
        if any(value is not None and lazy(value) for value in tensors):
            raise UserError(
                f"{name} is a {type(part).__name__} without a shape yet: call the module once "
                "with a batch of its own before it is handed over, or name the sizes"
            )
        if getattr(part, "max_norm", None) is not None and isinstance(
            part, nn.Embedding | nn.EmbeddingBag
        ):
            raise UserError(
                f"{name} has 'max_norm', by which a look-up writes into the parameters: leave it "
                "out and shorten the rows that are looked up"
            )
        for leaf, value in part._parameters.items():
            if value is not None and (value._backward_hooks or value._post_accumulate_grad_hooks):
                raise UserError(
                    f"'{leaf}' of {name} has a hook on its gradient, which clients with parameters "
                    "of their own do not call: change the gradient in the loss"
                )


def first_batch(data: Samples, client: Tensor, batch_size: int | None) -> Batch:
    """Take the first batch of the one client at ``client``, ``(1,)``, each ``(B, ...)``."""
    if not int(data.lengths[client]):
        return {}
    batches = data.take(client).batches(1, batch_size, None)
    return {name: values[0] for name, values in batches(0, torch.tensor([0])).items()}


def changes_itself(
    module: nn.Module,
    batch: Batch,
    as_batch: AsBatch | None,
    training: bool | None,
    seed: Key | None,
) -> str | None:
    """Compute a loss twice on a copy, and see what changes beside its result.

    Args:
        module: has ``loss(batch)``.
        batch: of one client; is not written into.
        as_batch: see `coterie.core.local_training.losses.MethodOf`.
        training: mode; None = as the module is.
        seed: of torch's generator, for what may draw from it; None = nothing may.

    Returns:
        What is not the same after a call: an attribute by name; None where nothing is.

    Raises:
        UserError: the loss is no number, draws, or writes into tensors that it is not to train.
    """
    trial = brought(copied(module))
    batch = {name: value.clone() for name, value in batch.items()}
    if training is not None:
        trial.train(training)
    start = {name: value.clone() for name, value in trial.state_dict().items()}
    guard: Callable[[], Any] = drawing_nothing if seed is None else seed.torch_rng
    for _ in range(_TRIES):
        with guard():
            first = _called(trial, batch, as_batch)
        trial.load_state_dict(start)
        before, tensors = _attributes(trial), _versions(trial)
        drawn = _drawn()
        with guard():
            second = _called(trial, batch, as_batch)
        if drawn == _drawn():
            break
    else:
        raise UserError(
            f"{type(module).__name__}.loss draws from numpy's or Python's generator, which no key "
            "governs: draw before, into the batch, or leave it out"
        )
    _check_written(trial, tensors)
    after = _attributes(trial)
    if before is None or after is None:
        return "something that cannot be compared, as a generator"
    changed = [name for name, value in after.items() if before.get(name) != value]
    if not changed and not _equal(first, second):
        raise UserError(
            f"{type(module).__name__}.loss gives {float(first):g} and then {float(second):g} for "
            "one batch and equal parameters: draw by no generator of your own, read no clock"
        )
    return changed[0] if changed else None


def _called(module: nn.Module, batch: Batch, as_batch: AsBatch | None) -> Tensor:
    name, taken = type(module).__name__, dict(batch)
    with torch.enable_grad():
        value = module.loss(taken if as_batch is None else as_batch(taken))  # type: ignore[operator]
    for field, values in batch.items():
        if values._version:
            raise UserError(
                f"{name}.loss writes into '{field}' of its batch, which others read too: compute "
                "with a copy"
            )
    return one_number(value, name).detach()


def _attributes(module: nn.Module) -> dict[str, Any] | None:
    try:
        beside = {"a global or something that a function holds": reading(module)}
        return attributes(module) | beside
    except Unwatchable:
        return None


def _versions(module: nn.Module) -> dict[str, tuple[int, int]]:
    named = (*module.named_parameters(), *module.named_buffers())
    return {n: (id(v), v._version) for n, v in named if n.rpartition(".")[2] not in STATISTICS}


def _check_written(module: nn.Module, before: dict[str, tuple[int, int]]) -> None:
    after = _versions(module)
    for name, version in after.items():
        if before.get(name) != version:
            raise UserError(
                f"{type(module).__name__}.loss writes into '{name}', which no client keeps: only "
                f"buffers named {', '.join(STATISTICS)} are; use an attribute that is no buffer, "
                "or a layer without statistics"
            )


def _drawn() -> tuple[Any, ...]:
    """Where the generators of the process stand that no key governs."""
    _, words, place, *more = np.random.get_state()  # noqa: NPY002
    return (np.asarray(words).tobytes(), place, *more, random.getstate())


def _equal(one: Tensor, other: Tensor) -> bool:
    return bool(torch.isclose(one, other, rtol=1e-4, atol=1e-7, equal_nan=True))


# What is known of a module's loss beside its numbers: what it reads, what it changes.


class Habits:
    """Look at a module before each round.

    Args:
        module: has ``loss(batch)``.
        as_batch: see `coterie.core.local_training.losses.MethodOf`.
        training: mode in which it is tried; None = as it is.
        draws: whether it may draw from torch's generator.

    Attributes:
        changing: what its loss changes beside its result; None where that is nothing, or not known.
        watchable: whether all that it reads can be compared from round to round.
    """

    derived = ("_reading", "_lock", "_seed")

    def __init__(
        self, module: nn.Module, as_batch: AsBatch | None, training: bool | None, draws: bool
    ) -> None:
        self._module, self._as_batch, self._training = module, as_batch, training
        self._seed = Key.from_seed(0).fold("habits") if draws else None
        self._lock, self._tried = threading.Lock(), False
        self.changing: str | None = None
        self.watchable = True
        self._reading = self._read()

    def look(self, data: Samples, batch_size: int | None) -> bool:
        """Look again; the first time its loss is tried, on a batch of some client.

        Returns:
            Whether what was made of the module must be made anew.

        Raises:
            UserError: it has no loss to train, see `coterie.core.local_training.probing`.
        """
        with self._lock:
            tried = not self._tried and self._try(data, batch_size)
            if self.changing is not None:  # the module itself is at work
                return tried
        return self.read_again()

    def read_again(self) -> bool:
        """Whether what was made of the module must be made anew, as it reads something else."""
        with self._lock:
            before, self._reading = self._reading, self._read()
            return not self.watchable or before != self._reading

    def _read(self) -> Reading | None:
        try:
            found = reading(self._module, self._as_batch)
        except Unwatchable:
            self.watchable = False
            return None
        self.watchable = True
        return found

    def _try(self, data: Samples, batch_size: int | None) -> bool:
        some = (data.lengths > 0).nonzero().flatten()
        if not some.numel():
            return False
        batch = first_batch(data, some[:1], batch_size)
        self.changing = changes_itself(
            self._module, batch, self._as_batch, self._training, self._seed
        )
        self._tried = True
        return self.changing is not None
