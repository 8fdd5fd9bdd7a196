"""The methods for any module by name: both halves of one, made from one set of settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from coterie.core.data.samples.samples import SampleData
from coterie.core.errors import UserError
from coterie.core.local_training.losses import AsBatch
from coterie.core.methods.bounds import CentralClient, CentralServer, LocalClient, LocalServer
from coterie.core.methods.dap_fl import DapFLClient, DapFLServer, DapFLSettings
from coterie.core.methods.ditto import DittoClient, DittoServer, DittoSettings
from coterie.core.methods.fedala import FedALAClient, FedALASettings
from coterie.core.methods.fedamp import FedAMPClient, FedAMPServer, FedAMPSettings
from coterie.core.methods.fedamp import check_for as fedamp_fits
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer, FedAvgSettings
from coterie.core.methods.feddyn import FedDynClient, FedDynServer, FedDynSettings
from coterie.core.methods.feddyn import check_for as feddyn_fits
from coterie.core.methods.fedprox import FedProxClient
from coterie.core.methods.fedrecon import FedReconClient, FedReconServer, FedReconSettings
from coterie.core.methods.fedrod import FedRODClient, FedRODServer, FedRODSettings
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_server import ModelServer, ServerSamples
from coterie.core.methods.pfedme import PFedMeClient, PFedMeServer, PFedMeSettings
from coterie.core.methods.scaffold import ScaffoldClient, ScaffoldServer, ScaffoldSettings
from coterie.core.methods.settings.any_module import CentralSettings, FedProxSettings, LocalSettings
from coterie.core.settings.schema import within
from coterie.core.tensors.device import on_host
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class Method:
    """A method for any module.

    Attributes:
        server: its server half.
        client: its client half.
        settings: what both take.
        section: field of a paper's settings with the method's own parameters; None = it has none.
        unread: fields of `FedAvgSettings` that it does not look at.
        check: refuses settings by the clients' numbers of training samples, ``(C,)``.
    """

    server: Callable[..., ModelServer[Any]]
    client: Callable[..., ModelClient[Any]]
    settings: type[FedAvgSettings] = FedAvgSettings
    section: str | None = None
    unread: tuple[str, ...] = ()
    check: Callable[[Any, Tensor], None] | None = None

    def own(self, sections: object) -> dict[str, Any]:
        """The method's own parameters, from settings that have its section."""
        if self.section is None:
            return {}
        section: Any = getattr(sections, self.section)
        return {field.name: getattr(section, field.name) for field in fields(section)}


METHODS: dict[str, Method] = {
    "fedavg": Method(FedAvgServer, FedAvgClient),
    "fedprox": Method(FedAvgServer, FedProxClient, FedProxSettings, "fedprox"),
    "scaffold": Method(ScaffoldServer, ScaffoldClient, ScaffoldSettings, "scaffold"),
    "feddyn": Method(FedDynServer, FedDynClient, FedDynSettings, "feddyn", check=feddyn_fits),
    "dap-fl": Method(DapFLServer, DapFLClient, DapFLSettings, "dap_fl"),
    "fedrecon": Method(FedReconServer, FedReconClient, FedReconSettings, "fedrecon"),
    "pfedme": Method(PFedMeServer, PFedMeClient, PFedMeSettings, "pfedme"),
    "ditto": Method(DittoServer, DittoClient, DittoSettings, "ditto"),
    "fedala": Method(FedAvgServer, FedALAClient, FedALASettings, "fedala"),
    "fed-rod": Method(FedRODServer, FedRODClient, FedRODSettings, "fedrod"),
    "fedamp": Method(
        FedAMPServer, FedAMPClient, FedAMPSettings, "fedamp", ("weighting",), fedamp_fits
    ),
    "local": Method(LocalServer, LocalClient, LocalSettings, unread=("weighting",)),
    "central": Method(
        CentralServer, CentralClient, CentralSettings, "central", ("fraction", "weighting")
    ),
}
"""By name, as papers' settings and the command line have it."""


def settings_of(
    name: str, common: Mapping[str, Any], sections: object, lengths: Tensor | None = None
) -> FedAvgSettings:
    """Join what all methods have in common with a method's own parameters, which win.

    Args:
        name: of the method.
        common: fields of `FedAvgSettings`.
        sections: settings with a section for the method's own parameters.
        lengths: ``(C,)`` the clients' numbers of training samples, to be checked with; or None.

    Raises:
        UserError: they do not go together; own parameters are named with their section.

    Example:
        >>> from types import SimpleNamespace
        >>> from coterie.core.methods.settings.any_module import FedProxOptions
        >>> settings_of("fedprox", {"lr": 0.5}, SimpleNamespace(fedprox=FedProxOptions(mu=2.0))).mu
        2.0
    """
    method = METHODS[name]
    try:
        chosen = method.settings(**{**common, **method.own(sections)})
        if method.check is not None and lengths is not None:
            method.check(chosen, lengths)
    except UserError as error:
        if method.section is None:
            raise
        section = type(getattr(sections, method.section))
        raise UserError(within(method.section, section, str(error))) from None
    return chosen


def server_half(
    name: str,
    build: Callable[[], nn.Module],
    settings: FedAvgSettings,
    samples: ServerSamples | None = None,
    pooled: SampleData | None = None,
    as_batch: AsBatch | None = None,
) -> ModelServer[Any]:
    """Make the server of a method.

    Args:
        name: of the method.
        build: makes the module.
        settings: as `settings_of` gives them.
        samples: what the server holds.
        pooled: what all clients train on; read by "central" only, whose server has it all.
        as_batch: see `coterie.core.methods.kit.training.LocalTraining`.

    Raises:
        UserError: the method cannot train this module, or is "central" without the samples.
    """
    method = METHODS[name]
    if name != "central":
        return method.server(build, settings, samples, as_batch)
    if pooled is None:
        raise UserError("central training has the samples of all clients: it runs in one process")
    return method.server(build, settings, pooled, samples, as_batch)


def client_half(
    name: str | Method,
    build: Callable[[], nn.Module],
    settings: FedAvgSettings,
    as_batch: AsBatch | None = None,
) -> ModelClient[Any]:
    """Make the client of a method, by its name or itself; arguments as for `server_half`.

    Raises:
        UserError: the method cannot train this module.
    """
    with Key.from_seed(0).torch_rng():  # the constants of its server
        module = on_host(build)
    method = METHODS[name] if isinstance(name, str) else name
    return method.client(module, settings, as_batch)
