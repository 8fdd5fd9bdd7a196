"""`federate(..., aggregate=...)`: a rule in place of the mean, for any module."""

import lightning
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coterie
from coterie.core.settings.aggregate import AggregateSettings


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def loss(self, batch):
        return (self.layer(batch[0]) - batch[1]).square().mean()


def clients(liars: int) -> list[TensorDataset]:
    """Ten clients with one law; the labels of some are turned round and a thousand times as far."""
    draw = torch.Generator().manual_seed(4)
    made = []
    for number in range(10):
        x = torch.randn(20, 3, generator=draw)
        y = x.sum(1, keepdim=True)
        made.append(TensorDataset(x, -1000 * y if number < liars else y))
    return made


def error(liars: int, **more) -> float:
    federated = coterie.federate(
        Net(), clients(liars), rounds=30, lr=0.1, weighting="equal", **more
    )
    lightning.Trainer(
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(federated)
    x, y = clients(0)[9].tensors
    with torch.no_grad():
        return float((federated.server_model().layer(x) - y).square().mean())


@pytest.mark.long
@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum", "multi-krum", "mean"])
def test_three_liars_of_ten_do_not_matter(rule):
    assert error(3) > 100
    assert error(3, aggregate={"rule": rule}) < 0.5
    assert error(0, aggregate=AggregateSettings(rule)) < 0.5


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"rule": "krm"}, "rule='krm' is unknown: did you mean 'krum'"),
        ({"rul": "krum"}, "aggregate: 'rul' is unknown: did you mean 'rule'"),
        ({"rule": "median", "attackers": "many"}, "attackers='many' is a str: give float"),
        ({"rule": "median", "attackers": 0.6}, r"below 0\.5"),
        ({"rule": "median", "over": "nodes"}, "all clients are in this process"),
    ],
)
def test_what_is_no_rule(given, why):
    with pytest.raises(coterie.UserError, match=why):
        coterie.federate(Net(), clients(0), aggregate=given)


def test_a_method_that_does_not_average():
    with pytest.raises(coterie.UserError, match="does something else with it"):
        coterie.federate(Net(), clients(0), "fedamp", aggregate={"rule": "median"})
