"""The three backbones: scores that are linear in the item, s_ui = <v_u, q_i> + c_u.

For all three the private parameters of user u amount to one vector v_u and one offset c_u, so the
gradient of item i is a residual times v_u, an outer product over items. Local training uses that
(`coterie.continual.local_training`). Stacked over C users.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from coterie.continual.settings import ModelSettings
from coterie.core.tensors.keys import Key

Params = dict[str, Tensor]


class Backbone(ABC):
    """A federated recommendation model with a public item table and private parameters.

    Attributes:
        item_lr: learning rate of items, before the factor |I|.
        rates: learning rate of each private parameter.
        head_first: private and item parameters step in turn, each with a fresh forward.
    """

    item_lr: float
    rates: dict[str, float]
    head_first: bool = False

    @abstractmethod
    def start(self, key: Key, dim: int, dtype: torch.dtype) -> Params:
        """Draw the private parameters of newcomers, each ``(C, ...)``."""

    @abstractmethod
    def query(self, params: Params) -> tuple[Tensor, Tensor]:
        """Return v ``(C, d)`` and c ``(C,)``."""

    @abstractmethod
    def gradients(self, params: Params, grad_v: Tensor, grad_c: Tensor) -> Params:
        """Gradients of private parameters, given dL/dv ``(C, d)`` and dL/dc ``(C,)``."""

    def descend(self, params: Params, grad_v: Tensor, grad_c: Tensor) -> Params:
        """Take one SGD step on all private parameters at once."""
        gradients = self.gradients(params, grad_v, grad_c)
        return {name: params[name] - self.rates[name] * g for name, g in gradients.items()}


class FedMF(Backbone):
    """Matrix factorisation: s_ui = <p_u, q_i> (Chai et al. 2020, unencrypted as in F³CRec)."""

    def __init__(self, lr: float, init_std: float) -> None:
        self.item_lr, self.init_std = lr, init_std
        self.rates = {"user": lr}

    def start(self, key: Key, dim: int, dtype: torch.dtype) -> Params:
        """Draw p_u ~ N(0, init_std²), ``(C, d)``."""
        return {"user": self.init_std * key.normal(dim, dtype=dtype)}

    def query(self, params: Params) -> tuple[Tensor, Tensor]:
        """Give v = p_u, c = 0."""
        user = params["user"]
        return user, user.new_zeros(user.shape[0])

    def gradients(self, params: Params, grad_v: Tensor, grad_c: Tensor) -> Params:
        """Of p_u."""
        return {"user": grad_v}


class FedNCF(Backbone):
    """One private linear layer on [p_u; q_i]: s_ui = <w_p, p_u> + <w_q, q_i> + b.

    This is F³CRec's "1-layer MLP"; it is additive, so p_u shifts all items alike and cannot change
    a ranking. Learning rates as in the public code: head lr, user and items lr * lr_eta.
    """

    def __init__(self, lr: float, lr_eta: float, init_std: float) -> None:
        self.item_lr, self.init_std = lr * lr_eta, init_std
        self.rates = {"user": lr * lr_eta, "w_user": lr, "w_item": lr, "bias": lr}

    def start(self, key: Key, dim: int, dtype: torch.dtype) -> Params:
        """Draw p_u ~ N(0, init_std²) and the head as torch's Linear(2d, 1) does."""
        bound = (2 * dim) ** -0.5
        head = bound * (2 * key.fold("head").uniform(2 * dim + 1, dtype=dtype) - 1)
        return {
            "user": self.init_std * key.normal(dim, dtype=dtype),
            "w_user": head[:, :dim].contiguous(),
            "w_item": head[:, dim : 2 * dim].contiguous(),
            "bias": head[:, 2 * dim].contiguous(),
        }

    def query(self, params: Params) -> tuple[Tensor, Tensor]:
        """Give v = w_q, c = <w_p, p_u> + b."""
        return params["w_item"], (params["w_user"] * params["user"]).sum(1) + params["bias"]

    def gradients(self, params: Params, grad_v: Tensor, grad_c: Tensor) -> Params:
        """Of p_u, w_p, w_q and b."""
        user, w_user = (grad_c[:, None] * params[name] for name in ("w_user", "user"))
        return {"user": user, "w_user": w_user, "w_item": grad_v, "bias": grad_c}


class PFedRec(Backbone):
    """A private score function on the item alone: s_ui = <w_u, q_i> + b_u (Zhang et al. 2023).

    Dual personalisation: a step on (w_u, b_u) first, then a fresh forward and a step on the items.
    """

    head_first = True

    def __init__(self, lr: float, lr_eta: float) -> None:
        self.item_lr = lr * lr_eta
        self.rates = {"weight": lr, "bias": lr}

    def start(self, key: Key, dim: int, dtype: torch.dtype) -> Params:
        """Draw the head as torch's Linear(d, 1) does."""
        head = dim**-0.5 * (2 * key.fold("head").uniform(dim + 1, dtype=dtype) - 1)
        return {"weight": head[:, :dim].contiguous(), "bias": head[:, dim].contiguous()}

    def query(self, params: Params) -> tuple[Tensor, Tensor]:
        """Give v = w_u, c = b_u."""
        return params["weight"], params["bias"]

    def gradients(self, params: Params, grad_v: Tensor, grad_c: Tensor) -> Params:
        """Of w_u and b_u."""
        return {"weight": grad_v, "bias": grad_c}


def make_backbone(model: ModelSettings) -> Backbone:
    """Build the backbone that the settings name; they must be resolved (`readings.resolve`)."""
    assert model.lr is not None
    match model.name:
        case "fedmf":
            return FedMF(model.lr, model.init_std)
        case "fedncf":
            return FedNCF(model.lr, model.lr_eta, model.init_std)
        case "pfedrec":
            return PFedRec(model.lr, model.lr_eta)
