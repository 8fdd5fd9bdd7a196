"""Whether clients may be trained side by side, found out once for the samples of a block.

Of clients with unequal batches a stack computes the losses of single samples and their mean, by
`torch.func.vmap`. That is ``loss(batch)`` for a mean of something that depends on one sample, and
not for class weights, labels that are ignored, contrast within a batch, roots and sums. Nor does
autograd through `vmap` give every gradient that plain autograd gives. So both are computed once, of
all samples, at parameters that are nobody's, and compared: values and gradients.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from coterie.core.data.samples.samples import MASK, CountedBatches, SampleData
from coterie.core.errors import Unstackable
from coterie.core.local_training.gradients import multiplied_out
from coterie.core.local_training.losses import Batch, ByAutograd, Gradient, Loss, masked
from coterie.core.local_training.row_optimizer import Params
from coterie.core.local_training.stacking import stacked
from coterie.core.tensors.device import default_device
from coterie.core.tensors.keys import Key

PIECE = 256
"""Samples that are compared together, at least."""
_LARGEST = 4096
_NUMBERS = 1 << 20
"""Numbers of the samples of a piece, at most; layers make many times as many."""
DIFFERENT = (
    "the loss of a batch is not the mean of those of its samples",
    "stacked clients have other gradients or losses",
)


def _key() -> Key:
    """Made where the run computes; a constant would be elsewhere."""
    return Key.from_seed(0).fold("agreement")


def at_nobody(form: Params) -> Params:
    """Give parameters near those of a module, at which nothing cancels, as all zeros would.

    Example:
        >>> bool(at_nobody({"w": torch.zeros(3)})["w"].all())
        True
    """
    found, here = {}, default_device()
    for name, value in form.items():
        value = value.detach().to(here)
        if not value.is_floating_point() or not value.numel():
            found[name] = value.clone()
            continue
        size = value.double().square().mean().sqrt()
        size = torch.where((size > 0) & size.isfinite(), size, 1.0)
        noise = _key().fold(name).normal(*value.shape, dtype=torch.float64)
        found[name] = (value + 0.1 * size * noise).to(value.dtype)
    return found


def pieces(samples: Batch, least: int, form: Params, most: int | None = None) -> Iterator[Batch]:
    """Cut samples into pieces, shuffled, so that unlike ones meet; those with NaN are left out.

    Args:
        samples: each ``(n, ...)``.
        least: samples of a piece, at least, where there is room.
        form: parameters; larger ones want larger pieces.
        most: how many pieces; None = all.
    """
    count = len(next(iter(samples.values()), ()))
    sound = torch.ones(count, dtype=torch.bool)
    for values in samples.values():
        if values.is_floating_point():
            sound &= values.flatten(1).isfinite().all(1) if values.dim() > 1 else values.isfinite()
    order = _key().fold("order").uniform(count, dtype=torch.float64).argsort()
    order = order[sound[order]]
    numbers = sum(values[:1].numel() for values in samples.values())
    wanted = max(least, PIECE, min(_LARGEST, sum(v.numel() for v in form.values()) // 256))
    size = max(8, min(wanted, _NUMBERS // max(numbers, 1)))
    parts = order.tensor_split(max(1, -(-order.numel() // size))) if order.numel() else ()
    for part in parts[:most]:
        yield {name: values.index_select(0, part) for name, values in samples.items()}


def agree(
    plain: Loss, gradient: Gradient, form: Params, parts: Iterator[Batch], padded: bool
) -> str | None:
    """Compare the gradients of two stacked clients with those of each alone.

    Args:
        plain: the loss of one client, as it is written.
        gradient: of stacked clients.
        form: parameters of a module.
        parts: of the samples, each ``(n, ...)``.
        padded: whether batches of unequal clients will come.

    Returns:
        What does not agree; None where all does.
    """
    params = at_nobody(form)
    for part in parts:
        count = len(next(iter(part.values())))
        if count > 1 and (why := _disagree(plain, gradient, params, part, padded)):
            return why
    return None


def side_by_side(loss: Loss, factored: bool = False) -> Gradient:
    """Gradients of stacked clients by autograd, for `agree`: nothing of them is recorded."""
    return ByAutograd(masked(loss), factored, recording=False)


def by_factors(
    plain: Loss, form: Params, statistics: Params, batch: Batch, draws: bool
) -> bool | None:
    """Whether a client's gradients by taped layers are those of plain autograd.

    They are not where a loss looks at more of a layer than its output: gradients of gradients,
    hooks on what a layer gives, autocast.

    Args:
        plain: the loss of one client, as it is written.
        form: parameters of a module.
        statistics: what the loss writes into.
        batch: of one client, each ``(n, ...)``.
        draws: whether the loss may draw from torch's generator, which other threads look at.

    Returns:
        None where the loss has no value there, or no gradient.
    """
    params, here = at_nobody(form), default_device()

    def loss(params: Params, batch: Batch) -> Tensor:
        own = {name: value.to(here, copy=True) for name, value in statistics.items()}
        return plain({**params, **own}, batch)

    with _seeded(draws):
        slopes, value = _alone(loss, params, batch)
    if not bool(value.isfinite()) or not any(bool(slope.any()) for slope in slopes.values()):
        return None
    one = [{name: value[None] for name, value in part.items()} for part in (params, batch)]
    try:
        with _seeded(draws):
            grads, values = ByAutograd(loss, True, draws, recording=False)(one[0], {}, one[1])
        found = multiplied_out(grads)
    except Exception:
        return False
    return _same(slopes, value, {name: grad[0] for name, grad in found.items()}, values[0])


def _seeded(draws: bool) -> AbstractContextManager[None]:
    return _key().fold("draws").torch_rng() if draws else nullcontext()


def depends(plain: Loss, form: Params, batch: Batch, draws: bool) -> bool:
    """Whether the loss of a client's batch depends on parameters."""
    here = default_device()
    free = {name: value.detach().to(here).requires_grad_() for name, value in form.items()}
    with torch.enable_grad(), _seeded(draws):
        return plain(free, batch).requires_grad


def measured_alike(measure: Loss, form: Params, parts: Iterator[Batch]) -> bool:
    """Whether a measure of a batch is the mean of those of single samples."""
    params = at_nobody(form)
    return all(_one_by_one(measure, params, part) for part in parts)


@torch.no_grad()
def _one_by_one(measure: Loss, params: Params, part: Batch) -> bool:
    count = len(next(iter(part.values())))
    try:
        whole = measure(params, part)
        try:
            both = {name: torch.stack([value] * 2) for name, value in params.items()}
            batch = {name: torch.stack([value] * 2) for name, value in part.items()}
            mask = torch.ones(2, count, dtype=torch.bool)
            found = stacked(masked(measure))(both, batch | {MASK: mask})[0]
        except Unstackable:  # a few samples by themselves, the rest in two parts
            sizes = [1] * min(count, 8)
            rest = count - len(sizes)
            sizes += [rest // 2, rest - rest // 2]
            values = [
                len(next(iter(some.values()))) * measure(params, some)
                for some in _cut(part, [size for size in sizes if size])
            ]
            found = torch.stack(values).sum() / count
    except Exception:  # a single sample, or samples of several clients, can be too few or too many
        return False
    return _near(whole, found, 0.0)


def _cut(part: Batch, sizes: list[int]) -> Iterator[Batch]:
    names, values = tuple(part), (value.split(sizes) for value in part.values())
    return (dict(zip(names, some, strict=True)) for some in zip(*values, strict=True))


def _disagree(
    plain: Loss, gradient: Gradient, params: Params, part: Batch, padded: bool
) -> str | None:
    """Compare on one piece: a client with all of it, and one with its first half."""
    count = len(next(iter(part.values())))
    half = (count + 1) // 2
    clients = [part, {name: value[:half] for name, value in part.items()}]
    if not padded:
        clients = [{n: v[count - half :] for n, v in part.items()}, clients[1]]
    length = count if padded else half
    batch = {name: torch.stack([_padded(one[name], length) for one in clients]) for name in part}
    if padded:
        sizes = torch.tensor([len(next(iter(one.values()))) for one in clients])
        batch[MASK] = torch.arange(length) < sizes[:, None]
    try:
        right = [_alone(plain, params, one) for one in clients]
        stack = {name: torch.stack([value] * 2) for name, value in params.items()}
        grads, values = gradient(stack, {}, batch, {})
    except Unstackable as error:
        return f"torch cannot stack them: {str(error).splitlines()[0][:200]}"
    except Exception as error:  # samples of several clients can be what a loss does not take
        return f"the loss could not be tried ({(str(error).splitlines() or ['?'])[0][:120]})"
    found = multiplied_out(grads)
    for row, (slopes, value) in enumerate(right):
        if not bool(value.isfinite()):
            return "the loss is not finite where it was tried"
        if not _same(slopes, value, {name: grad[row] for name, grad in found.items()}, values[row]):
            return DIFFERENT[0 if padded else 1]
    return None


def _same(slopes: Params, value: Tensor, found: Params, measured: Tensor) -> bool:
    """Whether the gradients and value of one client are those that were found."""
    largest = max((float(g.abs().max()) for g in slopes.values() if g.numel()), default=0.0)
    return _near(value, measured, largest) and all(
        _near(slope, found[name], largest) for name, slope in slopes.items()
    )


def _padded(values: Tensor, length: int) -> Tensor:
    """Repeat the last sample, as batches are padded."""
    return values[torch.arange(length).clamp(max=len(values) - 1)]


def _alone(plain: Loss, params: Params, batch: Batch) -> tuple[Params, Tensor]:
    """Gradients and value by plain autograd."""
    free = {name: value.clone().requires_grad_() for name, value in params.items()}
    with torch.enable_grad():
        value = plain(free, batch)
        if not value.requires_grad:
            return {n: torch.zeros_like(v) for n, v in params.items()}, value.detach()
        slopes = torch.autograd.grad(value, list(free.values()), allow_unused=True)
    pairs = zip(free.items(), slopes, strict=True)
    grads = {n: torch.zeros_like(v) if g is None else g for (n, v), g in pairs}
    return {n: g.to_dense() if g.is_sparse else g for n, g in grads.items()}, value.detach()


def _near(one: Tensor, other: Tensor, largest: float) -> bool:
    """Whether tensors are equal up to rounding; what is not finite is not."""
    if not one.numel():
        return True
    eps = torch.finfo(one.dtype).eps
    size = float(torch.maximum(one.detach().abs().max(), other.detach().abs().max()))
    allowed = eps**0.6 * size + 100 * eps * largest
    return bool((one - other).abs().max() <= allowed)


# Which clients may be trained side by side: found out once for the samples of a block.

Check = Callable[[SampleData], str | None]


class Remembered:
    """What a check finds of samples, of all that they were taken from: once.

    So it depends on no chunk, on no order, and on nobody who has answered before.

    Args:
        check: of samples; what speaks against them, or None.

    Example:
        >>> import torch
        >>> data = SampleData.from_clients([{"x": torch.ones(2)}, {"x": torch.ones(1)}])
        >>> why = Remembered(lambda data: f"{len(data)} clients")
        >>> why(data.take(torch.tensor([1])))
        '2 clients'
    """

    derived = ("_found", "_lock")

    def __init__(self, check: Check) -> None:
        self._check, self._lock = check, threading.Lock()
        self._found: dict[int, tuple[weakref.ref[SampleData], str | None]] = {}

    def __call__(self, data: SampleData) -> str | None:
        """What speaks against samples."""
        whole = data.whole
        with self._lock:  # threads that come meanwhile wait for it
            found = self._found.get(id(whole))
            if found is None or found[0]() is not whole:
                self._found = {n: one for n, one in self._found.items() if one[0]() is not None}
                found = self._found[id(whole)] = (weakref.ref(whole), self._check(whole))
        return found[1]

    def clear(self) -> None:
        """Forget all: the module has changed."""
        with self._lock:
            self._found.clear()


class Stackable:
    """Batches that several clients get together only where nothing speaks against it.

    Args:
        batches: of clients.
        why_not: says what does; asked when several are wanted.

    Attributes:
        per_epoch: as those of ``batches``.
        steps: as those of ``batches``.
    """

    def __init__(self, batches: CountedBatches, why_not: Callable[[], str | None]) -> None:
        self._batches, self.why_not = batches, why_not
        self.per_epoch, self.steps = batches.per_epoch, batches.steps

    def __call__(self, number: int, rows: Tensor) -> Batch:
        """Batch ``number`` of the clients ``rows``.

        Raises:
            Unstackable: there are several, and something speaks against it.
        """
        if rows.numel() > 1 and (why := self.why_not()) is not None:
            raise Unstackable(why)
        return self._batches(number, rows)
