"""Local gradient steps are counted whatever the method, and those of an evaluation are not."""

import math

import pytest
import torch
from tests.core.test_fedavg import Net, algorithm, sample_data
from torch import nn

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.federation.federation import Federation
from coterie.core.local_training.step_count import count_steps, counting_steps
from coterie.core.methods.fedrecon import FedReconClient, FedReconServer
from coterie.core.methods.kit.model_server import ServerSamples
from coterie.core.methods.settings.any_module import FedReconSettings
from coterie.core.models.classifier import Classifier
from coterie.core.run.driver import FederatedRun

LENGTHS = [7, 3, 0, 12, 1]


def rounds(server, client, data, number=2):
    module = FederatedRun(Federation(server, client, [data], rounds=number))
    while not module.finished:
        module.advance()
    return module.history


@pytest.mark.parametrize("chunk", [None, 1])
def test_a_round_notes_the_steps_of_all_clients(chunk):
    server, client = algorithm("fedavg", Net, epochs=3, batch_size=4, rounds=2)
    module = FederatedRun(
        Federation(server, client, [SplitSamples.of(sample_data(LENGTHS))], chunk=chunk)
    )
    while not module.finished:
        module.advance()
    expected = 3 * sum(math.ceil(n / 4) for n in LENGTHS)
    assert [row["cost/local_steps"] for row in module.history] == [expected, expected]


def test_what_is_trained_in_order_to_measure_does_not_count():
    def build():
        return Classifier(nn.Linear(2, 3), nn.Linear(3, 2))

    generator = torch.Generator().manual_seed(0)
    count = 6
    samples = {
        "x": torch.randn(count * 4, 2, generator=generator),
        "y": torch.randint(0, 2, (count * 4,), generator=generator),
    }
    data = SampleData(torch.arange(4), samples, torch.arange(5) * count)
    split = SplitSamples.of(data, data, data)
    held = ServerSamples(samples, samples)
    found = []
    for every in (0, 1):
        settings = FedReconSettings(
            epochs=2, batch_size=3, rounds=1, support=0.5, recon_epochs=5, evaluate_every=every
        )
        server = FedReconServer(build, settings, held)
        found.append(rounds(server, FedReconClient(build(), settings), split, 1))
    # A support and a query set of 3 samples, one batch each: 5 + 2 steps of each of 4 clients.
    assert [part[0]["cost/local_steps"] for part in found] == [28, 28]
    assert "eval/personal_accuracy" in found[1][0]
    both = (found[1][0]["eval/server_accuracy"], found[1][0]["eval/personal_accuracy"])
    assert found[1][0]["eval/accuracy"] == pytest.approx(sum(both) / 2)


def test_counts_are_apart_and_nothing_counts_without_one():
    count_steps(5)
    with counting_steps() as outer:
        count_steps(1)
        with counting_steps() as inner:
            count_steps(2)
    assert (outer.total, inner.total) == (1, 2)
