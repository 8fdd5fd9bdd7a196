"""Classifiers in two parts: the body that makes features, and the head."""

from __future__ import annotations

from torch import nn

from coterie.core.errors import UserError
from coterie.core.models.classifier import Classifier

HEAD = "head."
"""Before the names of a head's parameters."""


def with_head(module: nn.Module, method: str) -> Classifier:
    """Check that a module has a body and a linear head that can be trained.

    Args:
        module: any.
        method: that needs the head.

    Raises:
        UserError: it has none.
    """
    if not isinstance(module, Classifier):
        raise UserError(
            f"{method} needs a model with a head: {type(module).__name__} is no Classifier; "
            "choose another method or give the model a body and a head"
        )
    if not module.head.weight.requires_grad:
        raise UserError(f"{method} trains the head, which is frozen: set requires_grad to true")
    return module
