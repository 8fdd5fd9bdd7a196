"""Networks in the core's local training: as torch's own loop, the statistics beside the weights."""

import copy

import pytest
import torch
from tests.msmt.naive_network import SCHEMA, SIZES, drawn, shaken
from tests.msmt.test_networks_all import Make, each_network

from coterie.core.data.samples.samples import SampleData
from coterie.core.local_training.alone import SEED, as_clients, statistics_of
from coterie.core.methods.kit.training import LocalTraining
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.tensors.keys import Key


@each_network
def test_local_training_is_torchs_loop(make: Make) -> None:
    network = shaken(make(SCHEMA, SIZES))
    start = {name: value.detach().clone() for name, value in network.named_parameters()}
    data = SampleData.from_clients([drawn(SCHEMA, 20)])
    training = LocalTraining(
        network, FedAvgSettings(epochs=2, batch_size=8, lr=0.01), admits_alone=True
    )
    batches = training.batches(data, Key.from_seed(0).fold(torch.tensor([5])))
    looped = copy.deepcopy(network).train()
    fitted = training.train(
        {name: value[None] for name, value in start.items()},
        batches,
        statistics=as_clients(statistics_of(network), 1),
    )
    optimizer = torch.optim.SGD(looped.parameters(), lr=0.01)
    losses = []
    for number in range(int(batches.steps[0])):
        batch = {name: value[0] for name, value in batches(number, torch.tensor([0])).items()}
        seed = batch.pop(SEED)
        optimizer.zero_grad()
        with Key(seed).torch_rng():
            loss = looped.loss(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(losses) == 6
    assert fitted.loss.item() == pytest.approx(sum(losses) / 6, rel=1e-12)
    for name, value in looped.named_parameters():
        assert torch.allclose(fitted.params[name][0], value, rtol=1e-10, atol=1e-10)
    for name, kept in statistics_of(looped).items():
        assert torch.allclose(fitted.statistics[name][0], kept, rtol=1e-10, atol=1e-10)
    assert all(torch.equal(value, start[name]) for name, value in network.named_parameters())
