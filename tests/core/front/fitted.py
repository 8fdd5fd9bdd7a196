"""Networks trained by an ordinary Trainer, and the rounds that they are compared with."""

from typing import Any

import lightning
from torch import Tensor

import coterie
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.driver import FederatedRun

DOUBLE = {"dtype": "float64", "device": "cpu"}


def trainer(epochs: int = 2, **options: Any) -> lightning.Trainer:
    """Give a Trainer that writes nothing."""
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False}
    quiet |= {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return lightning.Trainer(max_epochs=epochs, **{**quiet, **options})


def trained(epochs: int, paper: str, **settings: Any) -> tuple[Any, dict[str, float]]:
    """Train a network in float64; give it and what the last epoch logged."""
    module, data = coterie.network(paper, **{"engine": DOUBLE, **settings})
    driver = trainer(epochs, num_sanity_val_steps=0)
    driver.fit(module, data)
    return module, {name: float(value) for name, value in driver.callback_metrics.items()}


def rounds(count: int, paper: str, method: str, **settings: Any) -> FederatedRun:
    """Make some rounds of a run in float64; it would go on."""
    given = {"engine": DOUBLE, **settings, "method": method, "rounds": count + 5}
    experiment = load(find_paper(paper).experiment)(coterie.settings(paper, **given))
    run = FederatedRun(experiment.federation())
    for _ in range(count):
        run.advance()
    return run


def apart(module: Any, params: dict[str, Tensor]) -> float:
    """Largest difference of a network's parameters, and running statistics, from others."""
    mine = module.network.state_dict()
    return max(float((mine[n].double() - v.double()).abs().max()) for n, v in params.items())
