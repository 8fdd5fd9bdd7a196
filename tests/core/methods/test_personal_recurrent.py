"""The personal methods on a model that torch cannot stack: client by client, same numbers."""

from dataclasses import replace

import pytest
import torch
from tests.core.methods.labelled_clients import CLASSES, KEY, WIDTH, built, close, run, split
from torch import nn

from coterie.core.methods.fedala import FedALAClient, FedALASettings
from coterie.core.methods.fedavg import FedAvgServer
from coterie.core.methods.fedrecon import FedReconClient, FedReconServer, FedReconSettings
from coterie.core.methods.fedrod import FedRODClient, FedRODServer, FedRODSettings
from coterie.core.models.classifier import Classifier

GENERAL = {"epochs": 2, "batch_size": 3, "lr": 0.2, "clip": 1.0, "fraction": 0.75}
METHODS = {
    "fedala": (FedAvgServer, FedALAClient, FedALASettings(p=2, max_passes=3, **GENERAL)),
    "fedrod": (FedRODServer, FedRODClient, FedRODSettings(**GENERAL)),
    "fedrecon": (FedReconServer, FedReconClient, FedReconSettings(**GENERAL)),
}


class Last(nn.Module):
    """The last hidden state of an LSTM that reads the features one by one."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 4, batch_first=True)

    def forward(self, x):
        return self.lstm(x[..., None])[0][:, -1]


class Recurrent(Classifier):
    def __init__(self):
        super().__init__(Last(), nn.Linear(4, CLASSES))
        self.double()


class Unrolled(nn.Module):
    """The same by plain operations, which torch can stack."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 4, batch_first=True)

    def forward(self, x):
        hidden, cell = x.new_zeros(len(x), 4), x.new_zeros(len(x), 4)
        of = dict(self.lstm.named_parameters())
        for place in range(WIDTH):
            gates = x[:, place : place + 1] @ of["weight_ih_l0"].T + of["bias_ih_l0"]
            gates = gates + hidden @ of["weight_hh_l0"].T + of["bias_hh_l0"]
            enter, forget, new, leave = gates.chunk(4, 1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
            hidden = leave.sigmoid() * cell.tanh()
        return hidden


class Stackable(Classifier):
    def __init__(self):
        super().__init__(Unrolled(), nn.Linear(4, CLASSES))
        self.double()


@pytest.mark.parametrize("name", METHODS)
def test_an_lstm_trains_as_its_unrolled_twin(name):
    server, client, settings = METHODS[name]
    data = split([4, 1, 0, 5])
    found, expected = (
        run(server(build, replace(settings)), client(built(build), settings), data, 3)
        for build in (Recurrent, Stackable)
    )
    close(found.state.weights, expected.state.weights)
    begun = server(Recurrent, settings).begin(KEY).weights
    assert any(not torch.equal(value, begun[n]) for n, value in found.state.weights.items())
