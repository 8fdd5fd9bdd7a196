"""One call makes a federation of a module and the data of clients."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from typing import Any

import lightning
from torch import nn

from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.front.client_data import ClientData, Given, Reader
from coterie.core.front.lightning_door import Door, open_door
from coterie.core.front.method_settings import method_named, settings_for
from coterie.core.front.partition import Partition
from coterie.core.front.sources import Collate
from coterie.core.front.step_logs import ObservedTraining, StepLogs
from coterie.core.front.trained_models import TrainedModels
from coterie.core.local_training.losses import copied
from coterie.core.local_training.probing import check_layers
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_server import ModelServer
from coterie.core.methods.kit.quality import ACCURACY, MeasuresItself
from coterie.core.methods.registry import METHODS, client_half
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.metrics.monitor import Monitor
from coterie.core.protocol.cohort import Cohort
from coterie.core.run.driver import FederatedRun
from coterie.core.run.lightning_module import FederatedModule
from coterie.core.tensors.device import choose_device
from coterie.core.tensors.keys import Key


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
    method: str | FedAvgSettings = "fedavg",
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
    **settings: Any,
) -> Federated:
    """Make a federation of any module; `lightning.Trainer.fit` trains it.

    The run ends after ``rounds``, or after the Trainer's ``max_epochs`` if these are fewer.

    Args:
        module: a `lightning.LightningModule` with a training step, or an `nn.Module` with
            ``loss(batch)``. It is copied; training begins with its parameters.
        clients: a list of data sets or a mapping from a client's id to one: torch Datasets,
            `datasets.Dataset`s, dicts of tensors, DataFrames. Or one of these with
            ``client_column`` or ``partition``.
        method: a name of docs/methods.md, or its settings, such as ``ScaffoldSettings(lr_g=0.5)``.
        client_column: column of one data set that says whose a sample is; the module does not get
            it.
        partition: deals one data set out, as `coterie.core.front.partition.dirichlet` does.
        valid: what choices are made by, as ``eval/…``: a share of each client's samples, or data of
            the same clients.
        test: what is reported, as ``test/…``; as ``valid``.
        server_valid: one data set that the server holds, as ``valid``.
        server_test: one data set that the server holds, as ``test``.
        collate_fn: pads samples of Datasets to a batch; it is called once, with all samples.
        rounds: communication rounds; by default those of the method's settings, 100.
        epochs: passes of a client over its samples in a round; by default 1.
        batch_size: by default all samples of a client in one batch.
        lr: learning rate of the clients. It wins over `configure_optimizers`; of pFedMe it is the η
            of the local model, and `configure_optimizers` gives its ``personal_lr``.
        seed: of all draws: shares, batches, who takes part.
        monitor: name of what `validation_step` logs that rounds are compared by; by default the
            first. Lower is better if the name has loss, error, mse, mae or perplexity in it.
        device: "cpu", "cuda" or "auto".
        workers: threads that train clients.
        settings: more of the method's, such as ``fraction=0.1`` or SCAFFOLD's ``lr_g``.

    Raises:
        UserError: module, data, or settings cannot be federated as they are; says why.

    Example:
        federated = federate(Net(), [first, second], "scaffold", test=0.2, rounds=20, lr=0.1)
        lightning.Trainer(max_epochs=-1).fit(federated)
        model = federated.server_model()
    """
    check_layers(module)
    name = method_named(method)
    _check_seed(seed, workers)
    reader = Reader(client_column, partition, collate_fn, seed)
    data = reader.read(clients, valid, test, server_valid, server_test)
    door = _door(module, data, monitor)
    spelt = {"rounds": rounds, "epochs": epochs, "batch_size": batch_size, "lr": lr}
    chosen = settings_for(method, {**spelt, **settings}, door.configured)
    check = METHODS[name].check
    if check is not None:
        check(chosen, door.data.split.lengths)
    server, client = _halves(name, door, chosen)
    federation = Federation(
        server,
        client,
        blocks=[door.data.split],
        seed=seed,
        rounds=chosen.rounds,
        workers=workers,
        device=choose_device(device),
        monitor=door.monitor,
        origin=lambda: hashlib.sha256(repr(data.ids).encode()).hexdigest(),
    )
    run = FederatedRun(federation)
    return Federated(run, TrainedModels(door.original, run, data.ids, name), data.ids)


def _check_seed(seed: int, workers: int) -> None:
    for name, value, least in (("seed", seed, 0), ("workers", workers, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(f"{name}={value!r}: give a whole number from {least} on")


def _door(module: nn.Module, data: ClientData, monitor: str | Monitor | None) -> Door:
    """What is trained and measured of a module."""
    steps = _writes(module, "training_step") or not _writes(module, "loss")
    if isinstance(module, lightning.LightningModule) and steps:
        return open_door(copied(module), data, monitor)
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
    own = copied(module)
    return Door(copied(module), own, data, as_batch, monitor=monitor)


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
    name: str, door: Door, settings: FedAvgSettings
) -> tuple[ModelServer[Any], ModelClient[Any]]:
    """Both halves of a method, which collect what steps log."""
    method, held = METHODS[name], door.data

    def build() -> nn.Module:
        return copied(door.module)

    kind: Callable[..., ModelServer[Any]] = method.server
    if door.logs is not None:
        own = {"__module__": __name__, "logs": door.logs}
        kind = type(method.server.__name__, (_Noting, method.server), own)  # type: ignore[arg-type]
    more = (held.split.train,) if name == "central" else ()
    server = kind(build, settings, *more, held.server, door.as_batch)
    client = client_half(name, build, settings, door.as_batch)
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
