"""What a first call of a module's own code shows, before anything is trained."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import lightning
import torch
from torch import Tensor, nn

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import UserError, nearest
from coterie.core.front.adapted import (
    PART,
    Adapted,
    AdaptedMeasured,
    AsTaken,
    called,
    has_step,
    heard_in,
    loss_of,
    measured_as,
    step_of,
)
from coterie.core.front.client_data import ClientData
from coterie.core.front.lightning_part import as_client, check_module, optimizer_settings
from coterie.core.front.sources import Fields
from coterie.core.front.step_logs import Heard, Seen, StepLogs, listening, number
from coterie.core.local_training.losses import AsBatch, copied
from coterie.core.methods.kit.model_server import ServerSamples
from coterie.core.metrics.monitor import Monitor
from coterie.core.tensors.device import as_written
from coterie.core.tensors.keys import Key

_NODES = 100_000
"""Of a loss's graph, that are looked at; longer ones are those of no module of layers."""


@contextmanager
def trying(call: str, fields: Fields) -> Iterator[None]:
    """Say of an error in a user's code what it was called with.

    Args:
        call: what is called, such as "training_step of Net".
        fields: of the batch.

    Raises:
        UserError: whatever is raised inside; it is its cause.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        found = [f"'{name}' {_form(values)}" for name, values in fields.items()]
        said = " ".join(str(error).split())[:200] or "without a word"
        raise UserError(
            f"{call} fails on a client's first samples ({type(error).__name__}: {said}): it was "
            f"given {', '.join(found)}"
        ) from error


def _form(values: Tensor) -> str:
    return f"{str(values.dtype).removeprefix('torch.')} {tuple(values.shape)}"


def check_own(module: nn.Module, loss: Tensor) -> None:
    """Refuse the loss of a copy that depends on parameters of the original.

    A function that was made in ``__init__`` and holds a layer is no part of the module: its copies
    have it as it is, and their own layer would not be trained.

    Args:
        module: the original.
        loss: of a copy of it.

    Raises:
        UserError: it does.
    """
    theirs = {id(value): name for name, value in module.named_parameters()}
    seen: set[Any] = set()
    left: list[Any] = [loss.grad_fn]
    while left and len(seen) < _NODES:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = theirs.get(id(getattr(node, "variable", None)))
        if name is not None:
            raise UserError(
                f"{type(module).__name__} reads '{name}' by something that copies of it share, as "
                "a lambda or a partial kept in __init__ that holds a layer: clients train copies, "
                "so call the layer by self"
            )
        left += [one for one, _ in node.next_functions]


# A `LightningModule` made ready: tried once on samples of a client, before anything is trained.

_TRIED = 8
_LOWER = ("loss", "nll", "error", "mse", "mae", "mape", "perplexity", "entropy", "brier")
"""In the name of what is better if lower; rmse and cross_entropy among them."""
_HIGHER = ("acc", "auc", "auroc", "precision", "recall", "ndcg", "score", "correct", "jaccard")
_WORDS = {
    **dict.fromkeys(("bce", "ppl", "wer", "cer", "ece", "kl"), True),
    **dict.fromkeys(
        ("f1", "map", "mrr", "hit", "iou", "dice", "r2", "bleu", "psnr", "ssim"), False
    ),
}
"""Short ones, that stand by themselves; whether less is better."""


@dataclass(frozen=True)
class Door:
    """What a federation is made of.

    Attributes:
        original: copied for the caller.
        module: with a loss, in the core's sense.
        data: with the fields that it is measured by.
        as_batch: makes of fields what the module takes; None = a dict of them.
        configured: what the module says of its optimizer.
        logs: where training steps log to; None = nowhere.
        monitor: what rounds are chosen by; None = nothing is measured.
    """

    original: nn.Module
    module: nn.Module
    data: ClientData
    as_batch: AsBatch | None
    configured: Mapping[str, Any] = field(default_factory=dict)
    logs: StepLogs | None = None
    monitor: Monitor | None = None


def open_door(
    module: lightning.LightningModule, data: ClientData, monitor: str | Monitor | None
) -> Door:
    """Try a module, and make it ready.

    Args:
        module: of the caller; only copies of it are worked with.
        data: of the clients.
        monitor: see `coterie.core.front.federate.federate`.

    Raises:
        UserError: it cannot be federated as it is.
    """
    check_module(module)
    given, module = module, copied(module)
    _set_up(module)
    ready = as_client(copied(module))
    configured = optimizer_settings(as_client(copied(module)))
    ready.train()
    parts = {1: (data.split.valid, data.server.valid), 2: (data.split.test, data.server.test)}
    with as_written(torch.get_default_dtype()), Key.from_seed(0).fold("door").torch_rng():
        logs = _tried(as_client(copied(ready)), data, given)
        heard = {
            part: found
            for part, held in parts.items()
            if (found := _measured(as_client(copied(ready)), part, held, data))
        }
    names = {part: tuple(found) for part, found in heard.items()}
    as_batch = AsTaken(data.form)
    chosen = _monitor(names, monitor)
    if not names:
        return Door(module, Adapted(ready, logs), data, as_batch, configured, logs, chosen)
    shown = {part: tuple(map(measured_as, found)) for part, found in names.items()}
    for part, words in shown.items():
        if len(set(words)) < len(words):
            raise UserError(f"two names that {step_of(ready, part)} logs differ in '/' alone")
    own = chosen or Monitor("eval/loss", lower_is_better=True)
    objects = {
        f"{part}/{measured_as(name)}": value.metric
        for part, found in heard.items()
        for name, value in found.items()
        if isinstance(value, Seen)
    }
    adapted = AdaptedMeasured(ready, logs, shown, own, objects)
    return Door(module, adapted, _marked(data), as_batch, configured, logs, chosen)


def _set_up(module: lightning.LightningModule) -> None:
    """Call the two hooks that make parts of a module, once, as a Trainer would."""
    kind, base = type(module), lightning.LightningModule
    client = as_client(copied(module))
    made = kind.configure_model is not base.configure_model, kind.setup is not base.setup
    if not any(made):
        return
    if made[0]:
        client.configure_model()
    if made[1]:
        client.setup("fit")
    client.__class__ = kind
    module.__dict__.update(client.__dict__)


def _tried(
    module: lightning.LightningModule, data: ClientData, given: nn.Module
) -> StepLogs | None:
    """Make a training step, to see that it gives a loss of its own, and what it logs."""
    fields, name = some_of(data.split.train), type(module).__name__
    with trying(f"training_step of {name}", fields), torch.enable_grad(), listening() as heard:
        loss = loss_of(called(module, "training_step", data.form(fields)), name)
    check_own(given, loss)
    if not heard:
        return StepLogs((), collected=False)
    for name, value in heard.items():
        number(name, value)
    itself = tuple(name for name, value in heard.items() if _is(value, loss))
    return StepLogs(itself, collected=len(itself) < len(heard))


def _is(value: Any, loss: Tensor) -> bool:
    """Whether a logged value is the loss, detached or not."""
    return isinstance(value, Tensor) and (
        value is loss or (value.shape == loss.shape and value.data_ptr() == loss.data_ptr())
    )


def _measured(
    module: lightning.LightningModule,
    part: int,
    held: tuple[SampleData, Fields],
    data: ClientData,
) -> Heard:
    """What the step of a part logs; nothing where there are no samples, or no such step."""
    of_clients, of_server = held
    step = step_of(module, part)
    some = some_of(of_clients) or {n: values[:_TRIED] for n, values in of_server.items()}
    if not some or not has_step(module, step):
        return {}
    module.eval()
    with trying(f"{step} of {type(module).__name__}", some):
        heard = heard_in(module, step, data.form(some))
    for name, value in heard.items():
        number(name, value)
        if isinstance(value, Seen):
            value.rows(len(next(iter(some.values()))))
    return heard


def some_of(data: SampleData) -> Fields:
    """First samples of the client with most of them; empty where nobody has any."""
    most = int(data.lengths.argmax())
    start, end = int(data.offsets[most]), int(data.offsets[most + 1])
    end = min(end, start + _TRIED)
    return {n: v[start:end].clone() for n, v in data.samples.items()} if end > start else {}


def _monitor(names: Mapping[int, tuple[str, ...]], monitor: str | Monitor | None) -> Monitor | None:
    known = names.get(1, ())
    if isinstance(monitor, Monitor):
        name = monitor.key.removeprefix("eval/")
        if name not in map(measured_as, known):
            raise UserError(
                f"monitor '{monitor.key}' is not logged: validation_step logs "
                f"{', '.join(known) or 'nothing'}"
            )
        return monitor
    if monitor is not None and monitor not in known:
        raise UserError(
            f"monitor='{monitor}' is not what validation_step logs on samples of valid= or "
            f"server_valid=: {nearest(monitor, known) if known else 'nothing is'}"
        )
    if not known:
        return None
    chosen = known[0] if monitor is None else monitor
    return Monitor(f"eval/{measured_as(chosen)}", lower_is_better=_lower(chosen))


def _lower(name: str) -> bool:
    """Whether a measure is better if lower, by its name.

    Raises:
        UserError: it does not tell; the round with the worst model would be taken for the best.
    """
    small = name.lower()
    if any(word in small for word in _LOWER):
        return True
    if any(word in small for word in _HIGHER):
        return False
    for word in re.split("[^a-z0-9]+", small):
        if word in _WORDS:
            return _WORDS[word]
    raise UserError(
        f"rounds are compared by '{name}', which validation_step logs first, and its name does not "
        "say whether more is better: give monitor=coterie.core.metrics.monitor.Monitor("
        f"'eval/{measured_as(name)}', lower_is_better=...), or monitor= with another name"
    )


def _marked(data: ClientData) -> ClientData:
    """Mark samples by what they are to be measured by."""
    split, server = data.split, data.server
    of_clients = SplitSamples(
        *(_part(one, n) for n, one in enumerate((split.train, split.valid, split.test)))
    )
    of_server = ServerSamples(*(_with(one, n) for n, one in ((1, server.valid), (2, server.test))))
    return replace(data, split=of_clients, server=of_server)


def _part(data: SampleData, part: int) -> SampleData:
    return replace(data, samples=_with(data.samples, part))


def _with(samples: Fields, part: int) -> Fields:
    if not samples:
        return {}
    size = len(next(iter(samples.values())))
    return {**samples, PART: torch.full((size,), part, dtype=torch.int8)}
