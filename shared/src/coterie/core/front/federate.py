"""One call makes a federation of a module and the data of clients.

The run ends after its rounds, or after the Trainer's ``max_epochs`` if these are fewer. The module
is copied; training begins with its parameters. Data sets are torch Datasets, `datasets.Dataset`s,
dicts of tensors or DataFrames, all of one kind; a batch is what torch's `default_collate` makes of
samples, such as a list ``[x, y]`` of tuples. Of pFedMe, ``lr`` is the η of the local model, and the
rate of `configure_optimizers` is its ``personal_lr``, of the steps on the loss. A monitor is better
if lower where its name has a word such as loss, error or mse in it, and if higher with one such as
acc, auc or recall; with neither it has to be said.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import lightning
import torch
from torch import Tensor, nn

from coterie.core.errors import UserError, nearest
from coterie.core.federation.aggregation import aggregation_of
from coterie.core.federation.federation import Federation, check_reached
from coterie.core.front.client_data import ClientData, Given, Reader
from coterie.core.front.given import of_numpy
from coterie.core.front.lightning_door import Door, check_own, open_door, some_of, trying
from coterie.core.front.method_settings import Chosen, checked, method_named, settings_for
from coterie.core.front.partition import Partition
from coterie.core.front.sources import Collate
from coterie.core.front.step_logs import ObservedTraining, StepLogs
from coterie.core.front.trained_models import TrainedModels
from coterie.core.local_training.losses import copied
from coterie.core.local_training.probing import check_layers
from coterie.core.methods.kit.evaluation import ACCURACY, MeasuresItself
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_server import ModelServer
from coterie.core.methods.registry import Method, client_half
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.metrics.monitor import Monitor
from coterie.core.protocol.cohort import Cohort
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.aggregate import AggregateSettings
from coterie.core.tensors.device import choose_device
from coterie.core.tensors.keys import Key
from coterie.core.training.module import FederatedModule


class Federated(FederatedModule):
    """A federation of a module, to be fitted by a Trainer; made by `federate`.

    Args:
        run: of the federation.
        models: gives its models.
        ids: the clients, by number.

    Attributes:
        client_ids: the clients as the caller names them; measurements of clients have their
            numbers, from 0, in this order.
    """

    def __init__(self, run: FederatedRun, models: TrainedModels, ids: tuple[Hashable, ...]) -> None:
        super().__init__(run)
        self._models, self.client_ids = models, ids

    def server_model(self) -> nn.Module:
        """Give a copy of the caller's module with the server's parameters.

        Running statistics of batch normalisation never leave the clients; here they are the
        clients' mean, by their numbers of samples.

        Raises:
            UserError: the server has no model, as in local training.

        Example:
            model = federated.server_model().eval()
        """
        return self._models.server()

    def client_model(self, client: Hashable) -> nn.Module:
        """Give a copy of the caller's module as a client has it: its personal model.

        A client that never trained has the server's.

        Args:
            client: one of `client_ids`.

        Raises:
            UserError: there is no such client, clients keep no models, or no round was run.

        Example:
            model = federated.client_model("alice")
        """
        return self._models.client(client)


def federate(
    module: nn.Module,
    clients: Given,
    method: Chosen = "fedavg",
    *,
    client_column: str | None = None,
    partition: Partition | None = None,
    valid: float | Given | None = None,
    test: float | Given | None = None,
    server_valid: Any = None,
    server_test: Any = None,
    collate_fn: Collate | None = None,
    rounds: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    seed: int = 0,
    monitor: str | Monitor | None = None,
    device: str = "cpu",
    workers: int = 1,
    aggregate: Mapping[str, Any] | AggregateSettings | None = None,
    **settings: Any,
) -> Federated:
    """Make a federation of any module, which `lightning.Trainer.fit` trains.

    Args:
        module: a `LightningModule` with a training step, or an `nn.Module` with ``loss(batch)``.
        clients: a list of data sets, a mapping from ids to them, or one that is shared out.
        method: a name of docs/methods.md, or its settings, such as ``ScaffoldSettings(lr_g=0.5)``,
            or a class of your own, see `coterie.method`.
        client_column: of the one data set; says whose a sample is. The module does not get it.
        partition: deals the one data set out, see `coterie.core.front.partition`.
        valid: a share of each client's samples or data of theirs, measured as ``eval/…``.
        test: the same, measured as ``test/…``.
        server_valid: one data set that the server holds, measured as ``eval/server_…``.
        server_test: the same, as ``test/server_…``.
        collate_fn: makes a batch of samples of Datasets; called once, with all: it may only pad.
        rounds: of the run, or the Trainer's ``max_epochs`` if these are fewer; by default 100.
        epochs: passes of a client over its samples in a round; by default 1.
        batch_size: by default all samples of a client.
        lr: of the clients; wins over `configure_optimizers`.
        seed: of all draws.
        monitor: which of what `validation_step` logs rounds are compared by; the first by default.
        device: "cpu", "cuda" or "auto".
        workers: processes that train clients side by side, on Linux; the same bits.
        aggregate: a rule in place of the mean, against liars, such as ``{"rule": "multi-krum"}``.
        settings: more of the method's, such as ``fraction=0.1``.

    Raises:
        UserError: module, data or settings cannot be federated as they are; says why.

    Example:
        federated = federate(Net(), [first, second], "scaffold", test=0.2, rounds=20)
        lightning.Trainer(max_epochs=-1).fit(federated)
    """
    reader = Reader(client_column, partition, collate_fn, of_numpy(seed))
    held = (valid, test, server_valid, server_test)
    spelt = {"rounds": rounds, "epochs": epochs, "batch_size": batch_size, "lr": lr}
    how = _How(method, {**spelt, **settings}, monitor, device, of_numpy(workers), aggregate)
    return how.made(module, reader, clients, held)


@dataclass(frozen=True)
class _How:
    """What is said beside module and data."""

    method: Chosen
    settings: dict[str, Any]
    monitor: str | Monitor | None
    device: str
    workers: int
    aggregate: Mapping[str, Any] | AggregateSettings | None

    def made(
        self, module: nn.Module, reader: Reader, clients: Given, held: tuple[Any, ...]
    ) -> Federated:
        """Make the federation."""
        check_layers(module)
        (name, method), seed = method_named(self.method), reader.seed
        _check_numbers(seed, self.workers)
        device = _device(self.device)
        door = _door(module, reader.read(clients, *held), self.monitor)
        settings = settings_for(self.method, self.settings, door.configured)
        if method.check is not None:
            method.check(settings, door.data.split.lengths)
        server, client = _halves(name, method, door, settings)
        ids = door.data.ids
        federation = Federation(
            server,
            client,
            blocks=[door.data.split],
            seed=seed,
            rounds=settings.rounds,
            workers=self.workers,
            device=device,
            monitor=door.monitor,
            aggregation=aggregation_of(_rule(self.aggregate)),
            origin=lambda: hashlib.sha256(repr(ids).encode()).hexdigest(),
        )
        run = FederatedRun(federation)
        check_reached(federation, run.exchange)
        return Federated(run, TrainedModels(door.original, run, ids, name), ids)


def _rule(given: Mapping[str, Any] | AggregateSettings | None) -> AggregateSettings:
    """Settings of a rule, by name or as they are.

    Raises:
        UserError: one is unknown, or out of range.
    """
    if isinstance(given, AggregateSettings):
        return given
    known = AggregateSettings.__dataclass_fields__
    values = {name: of_numpy(value) for name, value in (given or {}).items()}
    for name in values:
        if name not in known:
            raise UserError(f"aggregate: '{name}' is unknown: {nearest(name, known)}")
    return AggregateSettings(
        **{name: checked(AggregateSettings, name, value) for name, value in values.items()}
    )


def _device(name: str) -> torch.device:
    if name not in ("cpu", "cuda", "auto"):
        raise UserError(f"device={name!r}: give 'cpu', 'cuda' or 'auto'")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device='cuda': torch finds no GPU here; give 'auto', or install a torch for this GPU"
        )
    return choose_device(name)


def _check_numbers(seed: int, workers: int) -> None:
    for name, value, least in (("seed", seed, 0), ("workers", workers, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(f"{name}={value!r}: give a whole number from {least} on")


def _door(module: nn.Module, data: ClientData, monitor: str | Monitor | None) -> Door:
    """What is trained and measured of a module."""
    steps = _writes(module, "training_step") or not _writes(module, "loss")
    if isinstance(module, lightning.LightningModule) and steps:
        return open_door(module, data, monitor)
    if "loss" in module._modules:
        raise UserError(
            f"{type(module).__name__}.loss is a layer, and clients train by a method loss(batch) "
            "that gives one number: rename the layer and write one"
        )
    if not callable(getattr(module, "loss", None)):
        raise UserError(
            f"{type(module).__name__} has no method loss(batch), which is what is trained: write "
            "one, or give a LightningModule with a training_step"
        )
    if monitor is not None and isinstance(monitor, str):
        raise UserError("monitor= names what validation_step logs, which an nn.Module has not")
    held = int(data.split.valid.offsets[-1]) or len(data.server.valid)
    if monitor is None and held:
        if isinstance(module, MeasuresItself):
            monitor = module.monitor
        elif hasattr(module, "correct"):
            monitor = ACCURACY
    as_batch = None if data.form.is_dict else data.form
    _try_loss(module, data)
    return Door(copied(module), copied(module), data, as_batch, monitor=monitor)


def _try_loss(module: nn.Module, data: ClientData) -> None:
    """Compute a loss of a plain module, to see that it is one of its own parameters."""
    fields, trial = some_of(data.split.train), copied(module)
    seed = Key.from_seed(0).fold("door")
    with trying(f"loss of {type(module).__name__}", fields), torch.enable_grad(), seed.torch_rng():
        loss = trial.train().loss(data.form(fields))  # type: ignore[operator]
    if isinstance(loss, Tensor):  # what else it may not be is told by who trains it
        check_own(module, loss)


def _writes(module: nn.Module, name: str) -> bool:
    """Whether a module's class writes a method, beside what Lightning has of that name."""
    found = getattr(type(module), name, None)
    return found is not None and found is not getattr(lightning.LightningModule, name, None)


class _Noting:
    """Before a server's class: notes what training steps logged, with what the round measured."""

    logs: StepLogs

    def round(self, state: Any, cohort: Cohort, key: Key) -> Any:
        """One round of the method."""
        found = super().round(state, cohort, key)  # type: ignore[misc]
        self.logs.note(cohort.journal)
        return found


def _halves(
    name: str, method: Method, door: Door, settings: FedAvgSettings
) -> tuple[ModelServer[Any], ModelClient[Any]]:
    """Both halves of a method, which collect what steps log."""
    held = door.data

    def build() -> nn.Module:
        return copied(door.module)

    kind: Callable[..., ModelServer[Any]] = method.server
    if door.logs is not None:
        own = {"__module__": __name__, "logs": door.logs}
        kind = type(method.server.__name__, (_Noting, method.server), own)  # type: ignore[arg-type]
    more = (held.split.train,) if name == "central" else ()
    server = kind(build, settings, *more, held.server, door.as_batch)
    client = client_half(method, build, settings, door.as_batch)
    if door.logs is not None and door.logs.collected:
        door.logs.by_client = name != "central"
        if name == "central":
            server.local = _observed(server.module, settings, door, True)  # type: ignore[attr-defined]
        else:
            client.local = _observed(client.module, settings, door, client.admits_alone)
    return server, client


def _observed(
    module: nn.Module, settings: FedAvgSettings, door: Door, alone: bool
) -> ObservedTraining:
    made = ObservedTraining(module, settings, door.as_batch, admits_alone=alone)
    assert door.logs is not None
    made.logs = door.logs
    return made


__all__ = ["Federated", "federate"]
