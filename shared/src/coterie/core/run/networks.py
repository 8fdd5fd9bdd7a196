"""The network of a paper by itself: its experiment, its method and the client that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.registry.papers import Paper, find_paper, load
from coterie.core.run.experiment import Experiment
from coterie.core.settings.schema import build
from coterie.core.settings.sections import PrivacySettings
from coterie.core.standalone import Standalone


def method_by_itself(paper: Paper, client: int | None) -> str:
    """The method of which a network has its settings that is trained on all data, or a client's.

    Raises:
        UserError: no network of the paper can be trained by itself.
    """
    method = paper.central if client is None else paper.local
    if method is None:
        raise UserError(f"{paper.name} has no network that can be trained by itself")
    return method


def standalone_of(
    paper: str, settings: Mapping[str, Any], client: int | None, network: str | None
) -> Standalone[Any, Any, Any]:
    """Make a network with its objective and data, on the CPU.

    Args:
        paper: its name.
        settings: by dotted keys; those not given have their defaults.
        client: whose data it is trained on; None = those of all.
        network: one that no setting names; None = that of the settings.

    Raises:
        UserError: there is no such network or client, or a setting has no meaning here.
    """
    found = find_paper(paper)
    own = {"method": method_by_itself(found, client), "engine.device": "cpu"}
    made = build(load(found.settings), {**settings, **own})
    if network is not None and network not in found.networks:
        known = ", ".join(found.networks) or "none"
        raise UserError(f"{found.name} has no network '{network}' beside its settings' ({known})")
    if made.privacy != PrivacySettings():
        raise UserError(
            "'privacy' covers what clients send, and a network by itself sends nothing: leave it "
            "out"
        )
    experiment: Experiment[Any] = load(found.experiment)(made)
    if client is not None:
        _check_client(client, torch.cat([data.ids for data in experiment.blocks]).unique())
    return experiment.standalone(client, network)


def _check_client(client: int, known: Tensor) -> None:
    if not isinstance(client, int) or isinstance(client, bool):
        raise UserError(f"'client' is the number of one, not {client!r}")
    if client in known.tolist():
        return
    first, last, count = int(known[0]), int(known[-1]), known.numel()
    raise UserError(f"there is no client {client}: the {count} clients are {first} to {last}")
