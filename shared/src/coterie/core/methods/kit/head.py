"""Classifiers in two parts: the body that makes features, and the head."""

from __future__ import annotations

from torch import nn

from coterie.core.errors import UserError
from coterie.core.models.classifier import Classifier

HEAD = "head."
"""Before the names of a head's parameters."""


def with_head(module: nn.Module) -> Classifier:
    """Check that a module has a body and a linear head, which Fed-ROD trains by losses of its own.

    Args:
        module: any.

    Raises:
        UserError: it has none, or the head is frozen.
    """
    if not isinstance(module, Classifier):
        raise UserError(
            "Fed-ROD trains two heads on one body by losses of its own, of labels, and not by that "
            f"of {type(module).__name__}: give a coterie.core.models.classifier.Classifier(body, "
            "head) with batches of x and y, or choose fedrecon, which takes any module by head="
        )
    if not module.head.weight.requires_grad:
        raise UserError("Fed-ROD trains the head, which is frozen: set requires_grad to true")
    return module
