"""Reconstruction: train a head on given features from its initial value, with the body frozen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from coterie.core.data.samples.samples import SampleData
from coterie.core.errors import UserError
from coterie.core.local_training.fit import Params
from coterie.core.methods.kit.head import HEAD, with_head
from coterie.core.methods.kit.local_sgd import LocalSGD
from coterie.core.methods.settings.personal import FedReconSettings
from coterie.core.tensors.keys import Key


class Reconstruction:
    """The algorithm R of FedRECON (Singhal et al., NeurIPS 2021, Algorithm 1): gradient descent.

    Args:
        module: a classifier whose body, the base, has parameters.
        settings: of FedRECON.
        as_batch: see `LocalSGD`.

    Raises:
        UserError: the module has no head, or nothing but a head.
    """

    def __init__(
        self,
        module: nn.Module,
        settings: FedReconSettings,
        as_batch: Callable[[dict[str, Tensor]], Any] | None = None,
    ) -> None:
        check_base(module)
        self._settings = settings
        self._local = LocalSGD(module, settings, as_batch)

    def __call__(self, base: Params, head: Params, support: SampleData, key: Key) -> Params:
        """Train the heads of C clients.

        Args:
            base: of the clients, each ``(C, ...)``; it stays.
            head: to start from, each ``(C, ...)``.
            support: the clients' samples; without any, the head stays what it was.
            key: the clients' keys, ``(C,)``.
        """
        batches = self._local.batches(support, key, self._settings.recon_epochs)
        fitted = self._local.train(head, batches, lr=self._settings.recon_lr, fixed=base)
        return fitted.params


def check_base(module: nn.Module) -> None:
    """Check that FedRECON can train a module.

    Raises:
        UserError: it has no head, or its body has no parameters to train.
    """
    body = with_head(module, "FedRECON").body
    if not any(value.requires_grad for value in body.parameters()):
        raise UserError(
            f"FedRECON shares the body of a model, and that of {type(module).__name__} has no "
            "parameters to train: choose another model or another method"
        )


def parted(params: Params) -> tuple[Params, Params]:
    """Part the parameters of a classifier into base and head.

    Example:
        >>> parted({"body.w": 1, "head.w": 2})
        ({'body.w': 1}, {'head.w': 2})
    """
    head = {name: value for name, value in params.items() if name.startswith(HEAD)}
    return {name: value for name, value in params.items() if name not in head}, head


__all__ = ["Reconstruction", "check_base", "parted"]
