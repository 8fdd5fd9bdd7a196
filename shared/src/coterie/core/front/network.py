"""A paper's network and its data for an ordinary Lightning Trainer, without a federation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.core.errors import UserError
from coterie.core.front.given import Configs, Data, Files, configured, in_python
from coterie.core.registry.papers import find_paper, heavy
from coterie.core.settings.base import BaseSettings
from coterie.core.settings.schema import values_of

if TYPE_CHECKING:
    from coterie.core.training.network_module import NetworkData, NetworkModule

_NAMES = ("settings", "client", "network", "config", "preset", "variant", "num_workers")


def network(
    paper: str,
    settings: BaseSettings | None = None,
    *,
    client: int | None = None,
    network: str | None = None,
    data: Data | None = None,
    config: Configs = (),
    preset: str | None = None,
    variant: str | None = None,
    num_workers: int = 0,
    **changes: Any,
) -> tuple[NetworkModule, NetworkData]:
    """Give a paper's network as a `LightningModule`, and its data as a `LightningDataModule`.

    It is trained by a `lightning.Trainer` like any other module: on the data of all clients in one
    place, or on those of one client. Loss, batches, optimizer and measures are the paper's.

    Args:
        paper: its name, see `coterie.papers`.
        settings: all settings as one object, see `coterie.settings`; what is given beside it wins.
        client: number of the client on whose data it is trained, as in ``run.clients``; None = on
            the data of all.
        network: one that no setting names: ``mf`` of F³CRec, ``mf`` and ``lightgcn`` of PPLR.
        data: as for `coterie.train`.
        config: YAML files, also of a run's folder; the later ones win.
        preset: name of a preset, as ``smoke``.
        variant: name of a tuned configuration, or ``none``.
        num_workers: processes that make batches.
        changes: settings by name, see `coterie.train`; the method follows from ``client``.

    Raises:
        UserError: a paper, a setting or the data are wrong, there is no such client, or the network
            cannot be trained by itself.

    Example:
        >>> import coterie, lightning
        >>> module, data = coterie.network("pf-msmtrec", model={"name": "mmoe"})  # doctest: +SKIP
        >>> lightning.Trainer(max_epochs=5).fit(module, data)  # doctest: +SKIP
        >>> lightning.Trainer().test(module, data)  # doctest: +SKIP
    """
    found = find_paper(paper)
    if "method" in changes:
        raise UserError(
            "'method' has no effect on a network by itself: leave it out, and say client=ID for "
            "the data of one client"
        )
    method = heavy("coterie.core.run.networks").method_by_itself(found, client)
    given = {**changes, "method": method, **({} if data is None else {"data": data})}
    with in_python():
        files = Files(config, preset, variant)
        made = configured(found, given, "network()", files, own=settings, also=_NAMES).settings
        if made.engine.device == "cuda":
            raise UserError(
                "'engine.device' has no effect on a network by itself: the Trainer moves it, as "
                "lightning.Trainer(accelerator='gpu') does"
            )
        training = heavy("coterie.core.training.network_module")
        module = training.NetworkModule(found.name, client, network, **values_of(made))
    return module, training.NetworkData(module.standalone, num_workers)
