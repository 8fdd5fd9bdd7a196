"""Rounds of FedAvg in pfl-research, which benchmarks compare with where it is installed.

Nothing depends on pfl: it is looked for and imported by name, and where it is not, the rows that
need it are left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Samples = Callable[[int], list[Tensor]]
"""The samples of a client in the order of its batches, field by field, ``(n, ...)`` each."""
_NEVER = 1 << 30  # rounds between evaluations; pfl has one in round 0, of no metrics


def installed() -> bool:
    """Whether pfl can be imported."""
    return find_spec("pfl") is not None


class PflRounds:
    """FedAvg as pfl simulates it: one epoch, all clients, no metrics, in this process, on the CPU.

    Args:
        module: has ``loss(*fields)`` and ``metrics(*fields)``, which returns nothing; trained in
            place. Its parameters are what clients send.
        optimizer: makes a client's, as ``optimizer(parameters, lr=lr)``.
        lr: learning rate.
        clients: C.
        batch_size: B; None = all samples of a client.
        clip: norm of gradients that is not exceeded.
        private: open while a client trains, of which it is given the number.

    Raises:
        ModuleNotFoundError: pfl is not `installed`.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Callable[..., Optimizer],
        lr: float,
        clients: int,
        batch_size: int | None,
        clip: float | None = None,
        private: Callable[[int], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        os.environ["PFL_PYTORCH_DEVICE"] = "cpu"  # it would take a GPU; read in every step
        self._parameters, self._clients, self._count = list(module.parameters()), clients, 0
        server = torch.optim.SGD(self._parameters, lr=1.0, foreach=False)  # adds the mean change
        self._model = _pfl("model.pytorch").PyTorchModel(module, optimizer, server)
        self._train = _pfl("hyperparam").NNTrainHyperParams(
            local_batch_size=batch_size,
            local_num_epochs=1,
            local_learning_rate=lr,
            local_max_grad_norm=clip,
        )
        self._algorithm = _pfl("algorithm.federated_averaging").FederatedAveraging()
        train = self._algorithm.train_one_user

        def train_one_user(before: Any, model: Any, data: Any, context: Any) -> Any:
            with private(data.user_id):
                return train(before, model, data, context)

        self._algorithm.train_one_user = train_one_user

    def round(self, weights: Iterable[Tensor], samples: Samples) -> list[Tensor]:
        """Train every client from the same parameters and return the mean of theirs."""
        with torch.no_grad():
            for parameter, value in zip(self._parameters, weights, strict=True):
                parameter.copy_(value)
        made = _pfl("data.dataset").Dataset
        order = _pfl("data.sampling").get_user_sampler("minimize_reuse", list(range(self._clients)))
        data = _pfl("data.federated_dataset").FederatedDataset(
            lambda client: made(samples(client), user_id=client), order
        )
        backend = _pfl("aggregate.simulate").SimulatedBackend(training_data=data, val_data=data)
        self._count += 1
        rounds = _pfl("algorithm.base").NNAlgorithmParams(
            central_num_iterations=self._count,
            evaluation_frequency=_NEVER,
            train_cohort_size=self._clients,
            val_cohort_size=0,
        )
        self._algorithm.run(
            rounds, backend, self._model, self._train, send_metrics_to_platform=False
        )
        return [parameter.detach().clone() for parameter in self._parameters]


def _pfl(name: str) -> Any:
    return import_module(f"pfl.{name}")
