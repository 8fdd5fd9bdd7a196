"""Clients of the methods, each through its own process's door, and networks torch cannot stack."""

import pytest
import torch
from tests.core.methods.method_cases import METHODS, SECRET, down_of, method, play, sample_data
from tests.in_process import in_process_bytes, request_bytes
from torch import nn

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.engines.process import answer
from coterie.core.federation.cohort import InProcessCohort
from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.methods.fedamp import CloudModel
from coterie.core.methods.kit.model_client import GlobalModel
from coterie.core.protocol.journal import Journal
from coterie.core.tensors import tree


class Recurrent(nn.Module):
    """A network that torch cannot vectorise over clients."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 2, batch_first=True)
        self.out = nn.Linear(2, 1)
        self.double()

    def loss(self, batch):
        found, _ = self.lstm(batch["x"].unsqueeze(-1))
        return (self.out(found[:, -1])[:, 0] - batch["y"]).square().mean()


def asks(name, server, data):
    """Steps and messages of two rounds; FedAMP's are those of one client."""
    state = play(server, method(name)[1], data, 1).state
    shared = ("evaluate", GlobalModel(state.weights))
    down = down_of(name, state)
    if name == "fedamp":
        cloud = {key: value[None] for key, value in state.weights.items()}
        down = CloudModel(cloud, torch.full((1,), 0.5, dtype=torch.float64))
    more = {"scaffold": [("size", None)], "feddyn": [("size", None)], "pfedme": []}
    if name == "pfedme":
        more["pfedme"] = [("personalise", down)]
    return [*more.get(name, []), ("update", down), ("update", down), shared]


@pytest.mark.parametrize("name", METHODS)
def test_a_process_answers_the_same_bytes(name):
    server, client = method(name, epochs=2, batch_size=3)
    train, store = sample_data([5, 0, 4]), PrivateStore()
    data = SplitSamples.of(train, valid=train)
    kept = dict.fromkeys(data.ids.tolist(), b"")
    for number, (step, down) in enumerate(asks(name, server, train)):
        cohort = InProcessCohort(
            client, data.ids, data, store, SECRET, (0, number), Ledger(), Journal()
        )
        cohort.enrol()
        request = request_bytes(cohort, step, down)
        expected = in_process_bytes(cohort, step, down)
        for place, one in enumerate(data.ids.tolist()):
            own = data.take(torch.tensor([place]))
            reply, kept[one] = answer(client, request, kept[one], own, SECRET.fold(one))
            assert reply == expected[one]


@pytest.mark.parametrize("name", METHODS)
def test_recurrent_networks_are_trained_one_after_the_other(name):
    data = sample_data([5, 1, 0, 7])
    options = {"epochs": 2, "batch_size": 3}
    alone = play(*method(name, Recurrent, **options), data, 2, 1)
    together = play(*method(name, Recurrent, **options), data, 2)
    expected = dict(tree.tensors({"s": alone.state, "p": alone.store.take(data.ids)}))
    found = dict(tree.tensors({"s": together.state, "p": together.store.take(data.ids)}))
    for path, leaf in expected.items():
        torch.testing.assert_close(found[path], leaf, atol=1e-12, rtol=1e-12)
