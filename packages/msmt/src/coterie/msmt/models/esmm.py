"""ESMM: the probability of a later task is that of the earlier ones times a conditional one."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.msmt.data.schema import Schema
from coterie.msmt.models.base import Batch, MultiTask
from coterie.msmt.models.funnel import require_funnel
from coterie.msmt.models.inputs import Inputs
from coterie.msmt.models.layers import Experts, each_through, expert, towers_of
from coterie.msmt.settings.model import ModelSettings


class Esmm(MultiTask):
    """Entire-space multi-task model (Ma et al., SIGIR 2018).

    Each task has an expert and a tower over shared embeddings, and they give the probability of
    its label given the labels before: pCTR and pCVR. What is learnt and measured are the products,
    over all impressions: pCTR and pCTCVR = pCTR·pCVR; no loss looks at pCVR itself.

    `ModelSettings.experts` has no meaning here: there is one a task.

    Raises:
        UserError: the tasks do not follow from one another.
    """

    def __init__(self, schema: Schema, settings: ModelSettings) -> None:
        super().__init__(schema)
        require_funnel(schema, "ESMM")
        self.inputs = Inputs(schema, settings.embedding)
        n_features = self.inputs.n_features
        self.experts = Experts(expert(n_features, settings) for _ in schema.tasks)
        self.towers = towers_of(schema, settings)

    def logits(self, batch: Batch) -> Tensor:
        """Logits of the tasks' probabilities over all impressions, ``(B, T)``."""
        return logits_of_products(self.conditional_logits(batch))

    def conditional_logits(self, batch: Batch) -> Tensor:
        """Logits of each task's label given those before, ``(B, T)``: of pCTR and pCVR."""
        x = self.inputs(batch)
        return each_through(self.towers, self.experts(x))


def logits_of_products(logits: Tensor) -> Tensor:
    """Logits of the running products of probabilities.

    σ(a)σ(b) = 1 / (1 + e^-a)(1 + e^-b), so that its odds are 1 / (e^-a + e^-b + e^-(a+b)): nothing
    is rounded to 0 or 1 on the way, however large the logits are.

    Args:
        logits: ``(B, T)``, of the probabilities p_1 … p_T.

    Returns:
        ``(B, T)``, logits of p_1, p_1 p_2, …, p_1 … p_T.

    Example:
        >>> halves = torch.zeros(1, 3)
        >>> logits_of_products(halves).sigmoid()
        tensor([[0.5000, 0.2500, 0.1250]])
    """
    found: list[Tensor] = []
    for b in logits.unbind(1):
        if found:
            a = found[-1]
            b = -torch.stack([-a, -b, -a - b]).logsumexp(0)
        found.append(b)
    return torch.stack(found, dim=1)
