"""Training steps of networks on random samples."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.msmt.plain import PlainMMoE
from coterie.core.tensors.keys import Key
from coterie.msmt.data.task import Schema
from coterie.msmt.models.base import Batch, MultiTask
from coterie.msmt.models.mmoe import MMoE
from coterie.msmt.settings import ModelSettings

ALIEXPRESS = Schema(
    ("ctr", "ctcvr"),
    ("NL", "ES", "FR", "US"),
    (10, 4, 6, 2, 21, 7, 50, 8, 7, 2, 2, 2, 2, 2, 2, 2),
    63,
    funnel=True,
)
"""Its fields, with the vocabularies of a small sample of it."""
PAPER = ModelSettings(
    name="mmoe", embedding=128, expert_layers=(512, 256, 128), tower_layers=(128, 64, 32)
)
"""The paper's sizes."""


def draw(schema: Schema, size: int, key: Key) -> Batch:
    """Draw a batch of random samples."""
    ids = key.fold("ids").uniform(size, len(schema.vocabularies), dtype=torch.float64)
    labels = key.fold("labels").uniform(size, schema.n_tasks) < 0.5
    return {
        "ids": (ids * torch.tensor(schema.vocabularies)).to(torch.int32),
        "numbers": key.fold("numbers").uniform(size, schema.n_numbers),
        "scenario": torch.zeros(size, dtype=torch.int64),
        "labels": labels.cumprod(1).to(torch.uint8) if schema.funnel else labels.to(torch.uint8),
    }


class Trained:
    """A network, its optimizer and the batch it is trained on.

    Args:
        network: float32.
        batch: of samples.
        fused: whether Adam is torch's fused kernel, as in the core's local training; else it is
            torch's default, as in MTReclib.
    """

    def __init__(self, network: MultiTask, batch: Batch, fused: bool = True) -> None:
        self.network, self.batch = network.train(), batch
        self.adam = torch.optim.Adam(
            network.parameters(), lr=1e-3, weight_decay=1e-6, fused=fused or None
        )

    def step(self) -> None:
        """Make a step: forward, backward, Adam."""
        self.adam.zero_grad()
        self.network.loss(self.batch).backward()
        self.adam.step()

    @torch.no_grad()
    def evaluate(self) -> None:
        """Predict the batch, in evaluation mode."""
        self.network.eval().probabilities(self.batch)
        self.network.train()


def largest_difference(schema: Schema, settings: ModelSettings, batch: Batch) -> float:
    """Compare ours with the plain MMoE in float64, without dropout.

    Returns:
        The largest difference in any logit, or in any gradient of the loss, in training.
    """
    settings = replace(settings, dropout=0.0)
    with Key.from_seed(0).torch_rng():
        plain, ours = PlainMMoE(schema, settings).double(), MMoE(schema, settings).double()
    ours.load_state_dict(plain.as_ours(lambda parameter: parameter.detach()), strict=False)
    found: list[Tensor] = []
    for network in (plain, ours):
        network.loss(batch).backward()
        found.append(network.logits(batch))
    theirs = plain.as_ours(lambda parameter: parameter.grad)
    gradients = [
        (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad) - theirs[name]
        for name, parameter in ours.named_parameters()
    ]
    return max(float(each.detach().abs().max()) for each in [found[0] - found[1], *gradients])
