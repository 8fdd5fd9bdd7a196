"""The two halves of each method that can be run, made from one set of settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import nn

from coterie.core.errors import UserError
from coterie.core.methods import (
    central,
    dap_fl,
    ditto,
    drift_settings,
    fedala,
    fedamp,
    fedavg,
    feddyn,
    fedprox,
    fedrecon,
    fedrod,
    local,
    personal_settings,
    pfedme,
    proximal_settings,
    scaffold,
)
from coterie.core.methods.model_server import ServerSamples
from coterie.core.methods.settings import CentralSettings, FedAvgSettings, FedProxSettings
from coterie.core.protocol.client import Client
from coterie.core.protocol.server import Server
from coterie.core.settings.schema import within
from coterie.page.algorithm import PageServer
from coterie.page.client import PageClient
from coterie.page.data.task import Task
from coterie.page.settings.run import Settings, TrainSettings

Halves = tuple[Server[Any], Client[Any]]


@dataclass(frozen=True)
class Baseline:
    """A method of core.

    Attributes:
        server: its server half.
        client: its client half.
        settings: what both take.
        section: of our settings, with the method's own parameters; None where it has none.
        unread: general settings that it does not look at.
    """

    server: Callable[..., Server[Any]]
    client: Callable[..., Client[Any]]
    settings: type[FedAvgSettings] = FedAvgSettings
    section: str | None = None
    unread: tuple[str, ...] = ()


BASELINES: dict[str, Baseline] = {
    "fedavg": Baseline(fedavg.FedAvgServer, fedavg.FedAvgClient),
    "fedprox": Baseline(fedprox.FedProxServer, fedprox.FedProxClient, FedProxSettings, "fedprox"),
    "scaffold": Baseline(
        scaffold.ScaffoldServer,
        scaffold.ScaffoldClient,
        drift_settings.ScaffoldSettings,
        "scaffold",
    ),
    "feddyn": Baseline(
        feddyn.FedDynServer, feddyn.FedDynClient, drift_settings.FedDynSettings, "feddyn"
    ),
    "dap-fl": Baseline(dap_fl.DapFLServer, dap_fl.DapFLClient, dap_fl.DapFLSettings, "dap_fl"),
    "fedrecon": Baseline(
        fedrecon.FedReconServer,
        fedrecon.FedReconClient,
        personal_settings.FedReconSettings,
        "fedrecon",
    ),
    "pfedme": Baseline(
        pfedme.PFedMeServer, pfedme.PFedMeClient, proximal_settings.PFedMeSettings, "pfedme"
    ),
    "ditto": Baseline(
        ditto.DittoServer, ditto.DittoClient, proximal_settings.DittoSettings, "ditto"
    ),
    "fedala": Baseline(
        fedala.FedALAServer, fedala.FedALAClient, personal_settings.FedALASettings, "fedala"
    ),
    "fed-rod": Baseline(
        fedrod.FedRODServer, fedrod.FedRODClient, personal_settings.FedRODSettings, "fedrod"
    ),
    "fedamp": Baseline(
        fedamp.FedAMPServer,
        fedamp.FedAMPClient,
        proximal_settings.FedAMPSettings,
        "fedamp",
        ("weighting",),
    ),
    "local": Baseline(
        local.LocalServer, local.LocalClient, personal_settings.LocalSettings, None, ("weighting",)
    ),
    "central": Baseline(
        central.CentralServer,
        central.CentralClient,
        CentralSettings,
        "central",
        ("participation", "weighting"),
    ),
}
"""All but PAGE itself, by the setting ``method``."""


def halves(
    settings: Settings, build: Callable[[], nn.Module], task: Task, samples: ServerSamples
) -> Halves:
    """Make server and client of a method.

    Args:
        settings: with the reading resolved.
        build: makes the network.
        task: what clients hold.
        samples: what the server holds.

    Raises:
        UserError: settings of the method do not go together, or it cannot train this network.
    """
    if settings.method == "page":
        plain = FedAvgSettings(**training(settings))
        server = PageServer(build, plain, settings, len(task.clients), samples)
        return server, PageClient(build(), plain, settings)
    method = BASELINES[settings.method]
    chosen = settings_of(method, settings)
    if isinstance(chosen, proximal_settings.FedAMPSettings):
        with _whole_keys(method, settings):
            fedamp.check_for(chosen, len(task.clients))
    if isinstance(chosen, drift_settings.FedDynSettings):
        with _whole_keys(method, settings):
            feddyn.check_for(chosen, task.clients.lengths)
    if settings.method == "central":
        central_server = central.CentralServer(build, chosen, task.clients.train, samples)
        return central_server, method.client(build(), chosen)
    return method.server(build, chosen, samples), method.client(build(), chosen)


def settings_of(method: Baseline, settings: Settings) -> FedAvgSettings:
    """Join what all methods have in common with a method's own parameters, which win.

    Raises:
        UserError: they do not go together; settings are named by their whole keys.
    """
    with _whole_keys(method, settings):
        return method.settings(**{**training(settings), **_own(method, settings)})


@contextmanager
def _whole_keys(method: Baseline, settings: Settings) -> Iterator[None]:
    """Name settings by their whole keys in the refusals of a method of core."""
    try:
        yield
    except UserError as error:
        message = str(error)
        if method.section is not None:
            message = within(method.section, type(getattr(settings, method.section)), message)
        raise UserError(within("train", TrainSettings, message)) from None


def remarks(settings: Settings) -> list[str]:
    """Say which general settings a method does not look at, and what its ledger does not count."""
    if settings.method == "page":
        return []
    method, common = BASELINES[settings.method], training(settings)
    own = _own(method, settings)
    found = [
        f"{settings.method} takes {method.section}.{name} ({own[name]}) in place of train.{name}"
        for name in own
        if name in common
    ]
    usual = TrainSettings()
    found += [
        f"train.{name} has no effect on {settings.method}"
        for name in method.unread
        if getattr(settings.train, name) != getattr(usual, name)
    ]
    if settings.method == "central":
        found.append("the server holds all training samples: their upload is not in the ledger")
    return found


def _own(method: Baseline, settings: Settings) -> dict[str, Any]:
    if method.section is None:
        return {}
    section = getattr(settings, method.section)
    return {field.name: getattr(section, field.name) for field in fields(section)}


def training(settings: Settings) -> dict[str, Any]:
    """What all methods have in common, as arguments of their settings."""
    train = asdict(settings.train)
    fraction = train.pop("participation")
    return {**train, "fraction": fraction, "rounds": settings.rounds}
