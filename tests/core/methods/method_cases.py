"""What the tests of the methods share: small federations, and one client's plain gradients."""

from dataclasses import dataclass, field
from typing import Any

import torch
from tests.core.test_fedavg import KEY, SECRET, Linear, Net, cohort_of, sample_data
from torch import Tensor

from coterie.core.data.samples.samples import MiniBatches, SampleData
from coterie.core.federation.store import PrivateStore
from coterie.core.methods import ditto, fedamp, feddyn, pfedme, scaffold
from coterie.core.methods.kit.model_messages import GlobalModel
from coterie.core.methods.settings import any_module
from coterie.core.methods.settings import any_module as drift_settings
from coterie.core.protocol.journal import Journal

METHODS: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "scaffold": (
        scaffold.ScaffoldServer,
        scaffold.ScaffoldClient,
        drift_settings.ScaffoldSettings,
        {"lr_g": 0.9},
    ),
    "feddyn": (
        feddyn.FedDynServer,
        feddyn.FedDynClient,
        drift_settings.FedDynSettings,
        {"alpha": 0.3},
    ),
    "ditto": (ditto.DittoServer, ditto.DittoClient, any_module.DittoSettings, {"lam": 0.7}),
    "pfedme": (
        pfedme.PFedMeServer,
        pfedme.PFedMeClient,
        any_module.PFedMeSettings,
        {"lam": 2.0, "inner_steps": 3},
    ),
    "fedamp": (
        fedamp.FedAMPServer,
        fedamp.FedAMPClient,
        any_module.FedAMPSettings,
        {"sigma": 20.0, "alpha": 0.8},
    ),
}

Weights = dict[str, Tensor]


def down_of(name: str, state: Any) -> Any:
    """What the clients chosen receive in the state of a server; FedAMP's is another for each."""
    if name == "scaffold":
        return scaffold.ControlledModel(state.weights, state.control, state.block)
    if name == "feddyn":
        mean = state.sizes.samples / state.sizes.clients
        return feddyn.DynamicModel(state.weights, mean, state.block)
    return GlobalModel(state.weights)


@dataclass
class Played:
    """A federation after some rounds."""

    state: Any
    store: PrivateStore
    journals: list[Journal] = field(default_factory=list)


def method(name: str, build: Any = Net, **options: Any) -> tuple[Any, Any]:
    """The server and the client half of a method."""
    server, client, settings, special = METHODS[name]
    with KEY.torch_rng():
        module = build()
    chosen = settings(**{"lr": 0.05, "evaluate_every": 0} | special | options)
    return server(build, chosen), client(module, chosen)


def play(
    server: Any,
    client: Any,
    data: SampleData,
    rounds: int,
    chunk: int | None = None,
    order: Tensor | None = None,
) -> Played:
    """Run rounds with one store of private state; ``order`` is how the clients are stored."""
    played = Played(server.begin(KEY), PrivateStore())
    for number in range(1, rounds + 1):
        cohort = cohort_of(client, data, chunk, number).keeping(played.store)
        cohort.enrol()
        if order is not None:
            cohort = cohort.holding(cohort.data.take(order))
        played.state = server.round(played.state, cohort, KEY.fold("round", number))
        played.journals.append(cohort.journal)
    return played


def start_weights(build: Any) -> Weights:
    """The parameters that a server draws."""
    with KEY.torch_rng():
        module = build()
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def client_batches(
    data: SampleData,
    c: int,
    number: int,
    epochs: int,
    size: int | None,
    step: str = "update",
    more: tuple[str, ...] = (),
) -> list[Weights]:
    """The mini-batches that client ``c`` sees in a round, one after the other."""
    one = data.take(torch.tensor([c]))
    key = SECRET.fold(one.ids).fold(step, 0, number, 0)
    batches = MiniBatches(one, epochs, size, key.fold(*more) if more else key)
    first = torch.tensor([0])
    return [
        {name: value[0] for name, value in batches(b, first).items()}
        for b in range(int(batches.steps[0]))
    ]


def gradient(build: Any, weights: Weights, batch: Weights) -> Weights:
    """The gradient of one module's loss by autograd."""
    with KEY.torch_rng():
        module = build()
    module.load_state_dict(weights)
    module.loss(batch).backward()
    return {name: value.grad.clone() for name, value in module.named_parameters()}


def moved(weights: Weights, direction: Weights, lr: float) -> Weights:
    """One step of gradient descent."""
    return {name: value - lr * direction[name] for name, value in weights.items()}


def zeros(like: Weights) -> Weights:
    return {name: torch.zeros_like(value) for name, value in like.items()}


def assert_same(found: Weights, expected: Weights, tolerance: float = 1e-12) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=tolerance, rtol=tolerance)


def quadratic(data: SampleData, c: int) -> tuple[Tensor, Tensor]:
    """Hessian H and b of a client of `Linear`: its loss is w'Hw/2 - b'w + const."""
    one = data.take(torch.tensor([c])).samples
    n = len(one["y"])
    return one["x"].T @ one["x"] / n, one["x"].T @ one["y"] / n


def optimum(data: SampleData, shares: list[float]) -> Tensor:
    """Minimiser of the weighted sum of the clients' quadratics."""
    parts = [quadratic(data, c) for c in range(len(data))]
    hessian = sum(share * h for share, (h, _) in zip(shares, parts, strict=True))
    right = sum(share * b for share, (_, b) in zip(shares, parts, strict=True))
    return torch.linalg.solve(hessian, right)


__all__ = ["KEY", "METHODS", "SECRET", "Linear", "Net", "sample_data"]
