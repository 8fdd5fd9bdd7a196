"""What all multi-task networks have in common: the loss, and what is measured."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.core.metrics.monitor import Monitor
from coterie.msmt.data.area import auc
from coterie.msmt.data.schema import Schema

Batch = dict[str, Tensor]


class MultiTask(nn.Module):
    """Base of the networks: a subclass gives the logits of all tasks.

    Subclasses are made of the form of the samples, ``schema``, and their sizes, ``settings``.
    """

    monitor = Monitor("eval/auc")

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.schema = schema

    def logits(self, batch: Batch) -> Tensor:
        """Logits of the tasks' probabilities, ``(B, T)``."""
        raise NotImplementedError(f"{type(self).__name__} must give logits")

    def loss(self, batch: Batch) -> Tensor:
        """Mean over samples of the sum over tasks of the binary cross-entropy (Eq. 22)."""
        logits = self.logits(batch)
        return cross_entropy(logits, batch["labels"].to(logits.dtype))

    def probabilities(self, batch: Batch) -> Tensor:
        """Probabilities of the labels, ``(B, T)``."""
        return self.logits(batch).sigmoid()

    @property
    def measure_names(self) -> tuple[str, ...]:
        """What is measured: loss, mean AUC, AUC of each task."""
        return ("loss", "auc", *(f"auc_{task}" for task in self.schema.tasks))

    def predictions(self, batch: Batch) -> Batch:
        """What is kept of each sample to measure by: ``logit`` and ``label``, each ``(B, T)``."""
        return {"logit": self.logits(batch), "label": batch["labels"]}

    def measures(self, predictions: Batch) -> dict[str, Tensor]:
        """Cross-entropy, and AUC of each task with their mean; NaN where there is one class only.

        AUCs are of the logits: probabilities near 0 and 1 would tie by rounding.
        """
        logit, label = predictions["logit"], predictions["label"]
        found = {
            f"auc_{task}": auc(logit[:, number], label[:, number])
            for number, task in enumerate(self.schema.tasks)
        }
        mean = torch.stack(list(found.values())).nanmean()
        return {"loss": cross_entropy(logit, label.to(logit.dtype)), "auc": mean, **found}


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over samples of the sum over tasks; both ``(B, T)``."""
    found = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    return found / len(logits)
