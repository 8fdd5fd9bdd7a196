"""Networks of tasks that follow from one another: ESMM and AITM."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.msmt.data.task import Schema
from coterie.msmt.models.base import (
    Batch,
    Experts,
    Inputs,
    MultiTask,
    cross_entropy,
    each_through,
    expert,
    towers_of,
)
from coterie.msmt.settings import ModelSettings


def require_funnel(schema: Schema, network: str) -> None:
    """Refuse a schema whose tasks do not follow from one another.

    Args:
        schema: form of the samples.
        network: which network needs it, for the message.

    Raises:
        UserError: the schema is no funnel.

    Example:
        >>> require_funnel(Schema(("click", "buy"), ("NL",), (4,), 0, funnel=True), "ESMM")
    """
    if not schema.funnel:
        raise UserError(
            f"{network} needs tasks that follow from one another, as click and conversion: choose "
            "another 'model.name' for these data"
        )


# ESMM: the probability of a later task is that of the earlier ones times a conditional one.


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


# AITM: what is known of a task is handed to the next one, as click to conversion.


class Aitm(MultiTask):
    """Adaptive information transfer multi-task model (Xi et al., KDD 2021).

    Task t has an expert, q_t. To the next task goes p_t = g_t(z_t), a layer of ReLU; there
    attention over {q_t, p_{t-1}} makes z_t, and the tower takes z_t (z_1 = q_1). Beside the
    cross-entropy there is the calibrator: what a later task's probability is above the one before.

    `ModelSettings.experts` has no meaning here: there is one a task.

    Args:
        schema: form of the samples.
        settings: sizes.
        calibration: α, weight of the calibrator; the authors' code has .6 on Ali-CCP.

    Raises:
        UserError: the tasks do not follow from one another; PF-MSMTrec leaves AITM out there.
    """

    def __init__(self, schema: Schema, settings: ModelSettings, calibration: float = 0.6) -> None:
        super().__init__(schema)
        require_funnel(schema, "AITM")
        self.calibration = calibration
        self.inputs = Inputs(schema, settings.embedding)
        n_features, width = self.inputs.n_features, settings.expert_layers[-1]
        self.experts = Experts(expert(n_features, settings) for _ in schema.tasks)
        self.handing = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(settings.dropout))
            for _ in schema.tasks[1:]
        )
        self.attention = Attention(width)
        self.towers = towers_of(schema, settings)

    def logits(self, batch: Batch) -> Tensor:
        """Logits of the tasks' probabilities, ``(B, T)``."""
        x = self.inputs(batch)
        first, *later = self.experts(x)
        streams = [first]
        for own, hand in zip(later, self.handing, strict=True):
            streams.append(self.attention(torch.stack([own, hand(streams[-1])], dim=1)))
        return each_through(self.towers, streams)

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy of all tasks and α times the calibrator."""
        logits = self.logits(batch)
        loss = cross_entropy(logits, batch["labels"].to(logits.dtype))
        return loss + self.calibration * disorder(logits.sigmoid())


class Attention(nn.Module):
    """Attention over a task's own stream and what is handed to it (the paper's AIT).

    w_v = softmax_v <h2(v), h3(v)>/√k, z = Σ_v w_v h1(v); the layers are without bias, and the same
    for all tasks.

    Args:
        width: k, length of a stream.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.value = nn.Linear(width, width, bias=False)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)

    def forward(self, streams: Tensor) -> Tensor:
        """Mix the streams ``(B, 2, k)`` into one, ``(B, k)``."""
        products = (self.query(streams) * self.key(streams)).sum(2, keepdim=True)
        weights = (products / math.sqrt(streams.shape[2])).softmax(1)
        found: Tensor = (weights * self.value(streams)).sum(1)
        return found


def disorder(probabilities: Tensor) -> Tensor:
    """Mean over samples of what later tasks' probabilities are above those before (calibrator).

    Args:
        probabilities: ``(B, T)``; gradients go to both sides.

    Example:
        >>> disorder(torch.tensor([[0.3, 0.5], [0.5, 0.3]]))
        tensor(0.1000)
    """
    return (probabilities[:, 1:] - probabilities[:, :-1]).relu().sum(1).mean()
