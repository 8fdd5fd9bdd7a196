"""Clients with labelled samples, a small classifier, and rounds of any method on them."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tests.in_process import cohort_in_process
from torch import Tensor, nn

from coterie.core.data.samples.samples import MiniBatches, SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.models.classifier import Classifier, SoftmaxRegression
from coterie.core.privacy.check import assert_no_shared_storage, assert_non_interference
from coterie.core.protocol.journal import Journal
from coterie.core.tensors.keys import Key

KEY = Key.from_seed(17)
SECRET = KEY.fold("clients")
LENGTHS = [5, 1, 0, 6, 4, 4, 3, 2]
WIDTH, CLASSES = 3, 4
FIRST = torch.tensor([0])
each_chunk = pytest.mark.parametrize("chunk", [1, 3])  # all at once: what `run` does by itself


class Net(Classifier):
    """Two layers and a head, in float64."""

    def __init__(self):
        body = nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh())
        super().__init__(body, nn.Linear(4, CLASSES))
        self.double()


class Softmax(SoftmaxRegression):
    """The convex model, in float64; it has gradients in closed form."""

    def __init__(self):
        super().__init__(WIDTH, CLASSES)
        self.double()


class Headless(nn.Module):
    """Least squares on the label: a module that is no classifier."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(WIDTH, dtype=torch.float64))

    def loss(self, batch):
        return (batch["x"] @ self.w - batch["y"]).square().mean()


def labelled(lengths, part="train", ids=None) -> SampleData:
    clients = []
    for c, n in enumerate(lengths):
        key = KEY.fold(part, c)
        x = key.normal(n, WIDTH, dtype=torch.float64) + 0.3 * c
        y = key.fold("y").integers(CLASSES, torch.arange(n))
        clients.append({"x": x, "y": y})
    return SampleData.from_clients(clients, ids)


def split(lengths=LENGTHS, ids=None) -> SplitSamples:
    others = [labelled([n + 2 for n in lengths], part, ids) for part in ("valid", "test")]
    return SplitSamples(labelled(lengths, ids=ids), *others)


def built(build) -> nn.Module:
    with KEY.torch_rng():
        return build()


@dataclass
class Run:
    """What some rounds left behind."""

    state: Any
    store: PrivateStore = field(default_factory=PrivateStore)
    journals: list[Journal] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)

    def private(self, ids) -> Any:
        return self.store.take(torch.as_tensor(ids))


def run(server, client, data, rounds, chunk=None) -> Run:
    made = Run(server.begin(KEY))
    for number in range(rounds + 1):
        journal = Journal()
        cohort = cohort_in_process(
            client, data, made.store, SECRET, (0, number), made.ledger, journal, chunk
        )
        if number == 0:
            made.state = server.start_block(made.state, 0, cohort, KEY)
            continue
        made.state = server.round(made.state, cohort, KEY.fold("round", number))
        made.journals.append(journal)
    return made


def key_of(client_id, step, number) -> Key:
    """A client's own key in the first ask for a step in a round."""
    return SECRET.fold(torch.tensor([client_id])).fold(step, 0, number, 0)


def epochs_of(samples: dict[str, Tensor], client_id, epochs, batch_size, key):
    """Mini-batches of one client, in the order of its draws."""
    n = len(samples["y"])
    one = SampleData(torch.tensor([client_id]), samples, torch.tensor([0, n]))
    batches = MiniBatches(one, epochs, batch_size, key)
    for number in range(int(batches.steps[0])):
        yield {name: values[0] for name, values in batches(number, FIRST).items()}


def samples_of(data: SampleData, c) -> dict[str, Tensor]:
    return data.take(torch.tensor([c])).samples


def sgd(module, batches, lr, loss=None, decay=0.0, clip=None) -> list[float]:
    """Ordinary SGD of everything in a module that has a gradient."""
    free = [value for value in module.parameters() if value.requires_grad]
    optimizer, seen = torch.optim.SGD(free, lr=lr, weight_decay=decay), []
    for batch in batches:
        optimizer.zero_grad()
        value = module.loss(batch) if loss is None else loss(batch)
        value.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(free, clip)
        optimizer.step()
        seen.append(value.item())
    return seen


def weights_of(module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def loaded(module, weights):
    module.load_state_dict(weights)
    return module


def close(found, expected, tolerance=1e-12) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=tolerance, rtol=tolerance)


def boundary_holds(client, steps, mine, data, key=None) -> None:
    """Every step uploads what it declares, in memory of its own.

    Args:
        client: the client half.
        steps: name of each step -> the message that it receives.
        mine: private state that has seen some rounds.
        data: of the clients.
    """
    key = key or SECRET.fold(data.ids).fold("boundary")
    for name, down in steps.items():
        up, after = getattr(client, name)(down, mine, data, key)
        assert_no_shared_storage(up, mine)
        assert_no_shared_storage(up, down)
        if after is not None:
            assert_no_shared_storage(up, after)
            assert_no_shared_storage(after, down)
        assert_non_interference(client, name, down, mine, data, key)


def reversed_ids(server, client, data, rounds) -> Any:
    """The same clients, stored in the opposite order under the same ids: the final state."""
    turn = torch.arange(len(data)).flip(0)
    made = Run(server.begin(KEY))
    for number in range(rounds + 1):
        whole = (made.store, SECRET, (0, number), made.ledger, Journal(), 3)
        cohort = cohort_in_process(client, data, *whole)
        if number == 0:
            made.state = server.start_block(made.state, 0, cohort, KEY)
            continue
        turned = cohort_in_process(client, data.take(turn), *whole)
        made.state = server.round(made.state, turned, KEY.fold("round", number))
    return made


def refused_alone(server, client, data, broken, rounds=2, chunk=None):
    """A client whose samples are NaN: refused in each round, its state rolled back.

    Returns:
        The run with the broken client, and one without it.
    """
    healthy = torch.tensor([c for c in range(len(data)) if c != broken])
    without = run(server, client, data.take(healthy), rounds, chunk)
    data.train.samples["x"][data.train.offsets[broken]] = torch.nan
    with_it = run(server, client, data, rounds, chunk)
    for journal in with_it.journals:
        assert ("update", int(data.ids[broken])) in [(s, c) for s, c, _ in journal.refused]
    close(with_it.state.weights, without.state.weights)
    return with_it, without
