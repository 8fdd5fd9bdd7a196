"""Samples that are not in memory: the same models where batches suffice, one line where not."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.core.methods.labelled_clients import Net, close, run, split
from torch import Tensor

from coterie.core.data.samples.samples import SampleData, in_memory
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import Unstackable, UserError
from coterie.core.methods.bounds import CentralServer
from coterie.core.methods.registry import METHODS
from coterie.core.tensors import tree

GENERAL: dict[str, Any] = {"epochs": 2, "batch_size": 3, "lr": 0.05}
NEED_ALL = ["fedala", "fed-rod", "fedrecon"]
BATCHES = [name for name in METHODS if name not in [*NEED_ALL, "central"]]


@dataclass(frozen=True)
class Elsewhere:
    """Samples of which only batches of one client at a time can be had."""

    _kept: SampleData

    @property
    def ids(self) -> Tensor:
        return self._kept.ids

    @property
    def lengths(self) -> Tensor:
        return self._kept.lengths

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, index: Tensor) -> "Elsewhere":
        return Elsewhere(self._kept.take(index))

    def batches(self, *arguments: Any, **options: Any) -> Any:
        return _One(self._kept.batches(*arguments, **options))

    def sample_bytes(self) -> int:
        return self._kept.sample_bytes()


class _One:
    def __init__(self, batches: Any):
        self._batches = batches
        self.per_epoch, self.steps = batches.per_epoch, batches.steps

    def __call__(self, number: int, rows: Tensor) -> Any:
        if rows.numel() != 1:
            raise Unstackable("one client at a time")
        return self._batches(number, rows)


def elsewhere(data: SplitSamples) -> Any:
    return SplitSamples(*(Elsewhere(part) for part in (data.train, data.valid, data.test)))


def halves(name: str) -> tuple[Any, Any]:
    method = METHODS[name]
    settings = method.settings(**GENERAL | ({"lam": 1.0} if name == "pfedme" else {}))
    return method.server(Net, settings), method.client(Net(), settings)


@pytest.mark.parametrize("name", BATCHES)
def test_the_same_models_as_from_memory(name):
    data = split([5, 0, 7])
    here, there = run(*halves(name), data, 2, 1), run(*halves(name), elsewhere(data), 2)
    expected = dict(tree.tensors({"server": here.state, "clients": here.private(data.ids)}))
    found = dict(tree.tensors({"server": there.state, "clients": there.private(data.ids)}))
    close(found, expected)
    for one, other in zip(here.journals, there.journals, strict=True):
        assert other.scalars == pytest.approx(one.scalars, rel=1e-12)


@pytest.mark.parametrize("name", NEED_ALL)
def test_who_looks_into_the_samples_says_so_in_one_line(name):
    with pytest.raises(UserError, match="this needs all samples in memory") as caught:
        run(*halves(name), elsewhere(split([5, 0, 7])), 1)
    assert "\n" not in str(caught.value)


def test_central_training_pools_what_is_in_memory():
    with pytest.raises(UserError, match="this needs all samples in memory"):
        CentralServer(Net, METHODS["central"].settings(), Elsewhere(split([4]).train))


def test_what_is_in_memory_is_given_as_it_is():
    data = split([4]).train
    assert in_memory(data) is data
    with pytest.raises(UserError, match="this needs all samples in memory"):
        in_memory(Elsewhere(data))
    assert torch.equal(Elsewhere(data).lengths, data.lengths)
