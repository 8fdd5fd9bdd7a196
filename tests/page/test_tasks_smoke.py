"""PAGE plays two stages on each task of real data, in the size that a CI has time for."""

import math

import pytest

from coterie.core.registry.papers import find_paper
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.core.training.trainer import fit
from coterie.page.experiment import ACCURACIES, Experiment


@pytest.mark.long
@pytest.mark.real_data
@pytest.mark.parametrize(
    ("task", "clients", "samples"),
    [("cifar-100", 2, 30), ("tiny-imagenet-200", 2, 30), ("shakespeare", 2, 60)],
)
@pytest.mark.usefixtures("decoded_once")
def test_two_stages(data_root, task, clients, samples):
    if not (data_root / task).is_dir():
        pytest.skip(f"needs {task} in {data_root}")
    flags = {
        "data": task,
        "data_root": data_root,
        "data.clients": clients,
        "data.samples": samples,
        "rounds": 2,
        "train.epochs": 2,
        "train.batch_size": 20,
        "train.evaluate_every": 2,
        "game.steps": 1,
    }
    words = [f"--{key}={value}" for key, value in flags.items()]
    experiment = Experiment(configure(find_paper("page"), words).settings)
    parts = experiment.task.clients
    held = sum(int(part.lengths.sum()) for part in (parts.train, parts.valid, parts.test))
    assert held == samples
    module = FederatedRun(experiment.federation())
    fit(module)
    assert module.round == 2
    for row in module.history:
        assert row["fed/clients"] == clients
        assert all(math.isfinite(value) for value in row.values())
    for name in (f"{part}/{name}" for part in ("eval", "test") for name in ACCURACIES):
        assert 0 <= module.history[-1][name] <= 1
