"""Runs of methods for any module: the server's model, or what a client measures as its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.core.front.trained_models import TrainedModels
from coterie.core.run.driver import FederatedRun
from coterie.core.run.experiment import Experiment
from coterie.core.run.exported import Asked, Exported, Graph

_LOADING = """\
from safetensors.numpy import load_file

tensors = load_file("model.safetensors")  # by the names of the network's parameters and buffers
"""
CHECKED = 64  # samples on which a graph is checked


def exported_model(
    experiment: Experiment[Any],
    module: FederatedRun,
    asked: Asked,
    draw: Callable[[nn.Module], Graph],
    answers: tuple[str, ...] = (),
) -> Exported:
    """Give the server's model of the tested round, or a client's own.

    Args:
        experiment: of the run, whose data are one block.
        module: its state of that round.
        asked: the client.
        draw: makes the graph of a network, with samples to check it by.
        answers: methods in which every client has a model of its own and the server has none.

    Raises:
        UserError: there is no such model or client.
    """
    method = experiment.settings.method
    ids = module.federation.blocks[0].ids.tolist()
    models = TrainedModels(module.federation.server.module, module, tuple(ids), method)  # type: ignore[attr-defined]
    if asked.client is None and method in ("local", *answers):
        raise UserError(
            f"in {method} the server has no model that answers: say --client {ids[0]} to {ids[-1]}"
        )
    if asked.client is not None and asked.client not in ids:
        raise UserError(f"there is no client {asked.client}: choose {ids[0]} to {ids[-1]}")
    try:
        found = models.server() if asked.client is None else models.client(asked.client)
    except UserError as error:  # whose remedies are of Python
        why, _, _ = str(error).partition(": ask for ")
        other = "say --client NUMBER" if asked.client is None else "leave --client out"
        raise UserError(f"{why}: {other}") from None
    found = found.eval()
    tensors = {n: v for n, v in found.state_dict().items() if v.numel()}
    own = asked.client is not None
    return Exported(
        tested=f"round {module.round}",
        tensors=tensors,
        about={},
        absent=("Samples of clients and server.", *([] if own else ["Models of single clients."])),
        loading=_LOADING,
        graph=draw(found),
    )


class Called(nn.Module):
    """A network with one method as its forward, whose tensors come by name.

    Args:
        network: it has the method.
        method: takes a dict of tensors.
        names: of the inputs, in the order of the forward.
    """

    def __init__(self, network: nn.Module, method: str, names: tuple[str, ...]) -> None:
        super().__init__()
        self.network, self._method, self._names = network, method, names

    def forward(self, *inputs: Tensor) -> Tensor:
        """Call the method."""
        batch = dict(zip(self._names, inputs, strict=True))
        found: Tensor = getattr(self.network, self._method)(batch)
        return found


@torch.no_grad()
def graph_of(
    network: nn.Module, inputs: dict[str, Tensor], about: dict[str, str], output: str
) -> Graph:
    """Make the graph of a network that takes tensors in this order."""
    return Graph(network, inputs, about, output, network(*inputs.values()))
