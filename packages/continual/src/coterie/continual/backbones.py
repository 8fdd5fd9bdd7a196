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
        vector: name of the private parameter v, ``(C, d)``.
        bias: of one that is added to c, ``(C,)``; none if empty.
        pair: of two whose inner product is added to c, ``(C, d)`` each.
        item_lr: learning rate of items, before the factor |I|.
        rates: learning rate of each private parameter.
        head_first: private and item parameters step in turn, each with a fresh forward.
    """

    vector: str
    bias: str = ""
    pair: tuple[str, str] | None = None
    item_lr: float
    rates: dict[str, float]
    head_first: bool = False

    @abstractmethod
    def start(self, key: Key, dim: int, dtype: torch.dtype) -> Params:
        """Draw the private parameters of newcomers, each ``(C, ...)``."""

    def query(self, params: Params) -> tuple[Tensor, Tensor]:
        """Return v ``(C, d)`` and c ``(C,)``."""
        vector = params[self.vector]
        offset = params[self.bias] if self.bias else vector.new_zeros(vector.shape[0])
        if self.pair:
            a, b = (params[name] for name in self.pair)
            offset = (a * b).sum(1) + offset
        return vector, offset

    def gradients(self, params: Params, grad_v: Tensor, grad_c: Tensor) -> Params:
        """Gradients of private parameters, given dL/dv ``(C, d)`` and dL/dc ``(C,)``."""
        found = {self.vector: grad_v, self.bias: grad_c}
        if self.pair:
            a, b = self.pair
            found |= {a: grad_c[:, None] * params[b], b: grad_c[:, None] * params[a]}
        return {name: found[name] for name in params}

    def descend(self, params: Params, grad_v: Tensor, grad_c: Tensor) -> Params:
        """Take one SGD step on all private parameters at once."""
        gradients = self.gradients(params, grad_v, grad_c)
        return {name: params[name] - self.rates[name] * g for name, g in gradients.items()}


class FedMF(Backbone):
    """Matrix factorisation: s_ui = <p_u, q_i> (Chai et al. 2020, unencrypted as in F³CRec)."""

    vector = "user"

    def __init__(self, lr: float, init_std: float) -> None:
        self.item_lr, self.init_std = lr, init_std
        self.rates = {"user": lr}

    def start(self, key: Key, dim: int, dtype: torch.dtype) -> Params:
        """Draw p_u ~ N(0, init_std²), ``(C, d)``."""
        return {"user": self.init_std * key.normal(dim, dtype=dtype)}


class FedNCF(Backbone):
    """One private linear layer on [p_u; q_i]: s_ui = <w_p, p_u> + <w_q, q_i> + b.

    This is F³CRec's "1-layer MLP"; it is additive, so p_u shifts all items alike and cannot change
    a ranking. Learning rates as in the public code: head lr, user and items lr * lr_eta.
    """

    vector, bias, pair = "w_item", "bias", ("w_user", "user")

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


class PFedRec(Backbone):
    """A private score function on the item alone: s_ui = <w_u, q_i> + b_u (Zhang et al. 2023).

    Dual personalisation: a step on (w_u, b_u) first, then a fresh forward and a step on the items.
    """

    vector, bias = "weight", "bias"
    head_first = True

    def __init__(self, lr: float, lr_eta: float) -> None:
        self.item_lr = lr * lr_eta
        self.rates = {"weight": lr, "bias": lr}

    def start(self, key: Key, dim: int, dtype: torch.dtype) -> Params:
        """Draw the head as torch's Linear(d, 1) does."""
        head = dim**-0.5 * (2 * key.fold("head").uniform(dim + 1, dtype=dtype) - 1)
        return {"weight": head[:, :dim].contiguous(), "bias": head[:, dim].contiguous()}


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
