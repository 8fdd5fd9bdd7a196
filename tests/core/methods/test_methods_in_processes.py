"""Clients of the methods, each through its own process's door, and networks torch cannot stack."""

import pytest
import torch
from tests.core.methods.method_cases import METHODS, SECRET, down_of, method, play, sample_data
from tests.hosted import same_both_ways
from torch import nn

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.methods.fedamp import CloudModel
from coterie.core.methods.kit.model_messages import GlobalModel
from coterie.core.protocol.messages import Aligned
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
    """Steps and messages of two rounds; FedAMP's differ from client to client."""
    state = play(server, method(name)[1], data, 1).state
    shared = ("evaluate", GlobalModel(state.weights))
    down = down_of(name, state)
    if name == "fedamp":
        factor = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
        cloud = {n: v * factor.reshape(-1, *[1] * v.dim()) for n, v in state.weights.items()}
        down = Aligned(data.ids, CloudModel(cloud, 0.5 * factor))
    more = {"scaffold": [("size", None)], "feddyn": [("size", None)], "pfedme": []}
    if name == "pfedme":
        more["pfedme"] = [("personalise", down)]
    return [*more.get(name, []), ("update", down), ("update", down), shared]


@pytest.mark.parametrize("name", METHODS)
def test_a_process_answers_the_same_bits(name, tmp_path):
    server, client = method(name, epochs=2, batch_size=3)
    train = sample_data([5, 0, 4])
    data = SplitSamples.of(train, valid=train)
    same_both_ways(tmp_path, client, data, asks(name, server, train), SECRET)


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
