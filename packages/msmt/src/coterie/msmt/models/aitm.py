"""AITM: what is known of a task is handed to the next one, as click to conversion."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from coterie.msmt.data.schema import Schema
from coterie.msmt.models.base import Batch, MultiTask, cross_entropy
from coterie.msmt.models.funnel import require_funnel
from coterie.msmt.models.inputs import Inputs
from coterie.msmt.models.layers import Experts, each_through, expert, towers_of
from coterie.msmt.settings.model import ModelSettings


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
