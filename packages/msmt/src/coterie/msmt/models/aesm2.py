"""AESM²: each sample selects experts, for its scenario and for a task, by what gates say."""

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
    ScenarioEmbedding,
    cross_entropy,
    each_through,
    mix,
    mlp,
    towers_of,
)
from coterie.msmt.settings import ModelSettings


class Aesm2(MultiTask):
    """Automatic expert selection (Zou et al., SIGIR 2022): a scenario layer, then a task layer.

    Each layer has m gates over n experts, a gate for each scenario or task (`Selection`). The
    scenario layer's experts are those of `ModelSettings.expert_layers`; the task layer, whose
    experts all tasks share, has experts of one layer with as many units as the last of those. The
    task layer's gates see the scenario's and the task's embedding.

    Readings: the paper's numbers of selected experts and its weight of the losses on the selection
    were not to be had. The default shares half of the experts, as PLE does, and adds a quarter of
    them for the scenario or the task. The samples of all tasks pass the gates' normalisation as one
    batch: one task at a time, as in the public code, it would take the task's embedding out.

    Args:
        schema: form of the samples.
        settings: sizes; n experts in each layer.
        specific: experts that are selected as the scenario's or the task's own; None = n / 4, at
            least one.
        shared: experts that are selected as shared; None = n / 2, at least one.
        noise: c; in training, normal numbers times c·n are added to the gates for the selection.
        selection: weight of the losses on the selection.

    Raises:
        UserError: more experts are to be selected than there are, or none.
    """

    def __init__(
        self,
        schema: Schema,
        settings: ModelSettings,
        specific: int | None = None,
        shared: int | None = None,
        noise: float = 0.1,
        selection: float = 0.01,
    ) -> None:
        super().__init__(schema)
        self.selection = selection
        self.inputs = Inputs(schema, settings.embedding)
        self.scenario = ScenarioEmbedding(schema, settings.embedding)
        self.task = nn.Parameter(torch.empty(schema.n_tasks, settings.embedding))
        nn.init.xavier_uniform_(self.task)
        first, width, d = self.inputs.n_features, settings.expert_layers[-1], settings.embedding
        n = settings.experts
        self.by_scenario = Selection(first + d, schema.n_scenarios, n, specific, shared, noise)
        self.by_task = Selection(width + 2 * d, schema.n_tasks, n, specific, shared, noise)
        self.scenario_experts = _experts(first, settings.expert_layers, settings)
        self.task_experts = _experts(width, (width,), settings)
        self.towers = towers_of(schema, settings)

    def logits(self, batch: Batch) -> Tensor:
        """Logits of the tasks' probabilities, ``(B, T)``."""
        return self._logits_and_divergence(batch)[0]

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy of all tasks, and the losses on the selection with their weight."""
        logits, divergence = self._logits_and_divergence(batch)
        loss = cross_entropy(logits, batch["labels"].to(logits.dtype))
        return loss + self.selection * divergence

    def _logits_and_divergence(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Give logits ``(B, T)``, and the sum ``()`` of both layers' losses on the selection."""
        x, own = self.inputs(batch), batch["scenario"]
        scenario = self.scenario(own)
        weights, divergence = self.by_scenario(torch.cat([x, scenario], dim=1), own)
        z = mix(weights, self.scenario_experts(x))
        seen, task = self._for_each_task(torch.cat([z, scenario], dim=1))
        weights, more = self.by_task(seen, task)
        outputs = self.task_experts(z)
        of_tasks = weights.reshape(len(self.task), z.shape[0], weights.shape[1])
        streams = [mix(of_task, outputs) for of_task in of_tasks]
        return each_through(self.towers, streams), divergence + more

    def _for_each_task(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Put samples beside each task: ``(T·B, …)`` with the task's embedding, its number."""
        task = torch.arange(len(self.task)).repeat_interleave(seen.shape[0])
        return torch.cat([seen.repeat(len(self.task), 1), self.task[task]], dim=1), task


class Selection(nn.Module):
    """The gates of a layer of AESM², and which experts they leave to each sample.

    G ``(B, m, n)`` are the gates' logits, P_e ∈ R^m the softmax over the gates of what they give
    expert e, j the sample's own gate. Selected are the experts whose P_e is the most like one-hot
    at j, and those whose P_e is the most like uniform. The own gate's softmax over the selected
    experts are their weights; those of the others are exactly 0 (the public code multiplies their
    logits by -10⁹ instead, which selects them where the logit is negative).

    Readings: with one gate (m = 1) nothing tells experts apart, and all are selected. The losses
    are of the noisy gates, as in the public code.

    Args:
        n_in: length of what the gates see.
        gates: m.
        experts: n.
        specific: how many are selected as the gate's own; None = n / 4, at least one.
        shared: how many are selected as shared; None = n / 2, at least one.
        noise: c; the noise in training is c·n times normal numbers.

    Raises:
        UserError: more experts are to be selected than there are, or none.
    """

    def __init__(
        self,
        n_in: int,
        gates: int,
        experts: int,
        specific: int | None = None,
        shared: int | None = None,
        noise: float = 0.1,
    ) -> None:
        super().__init__()
        self.specific = max(1, experts // 4) if specific is None else specific
        self.shared = max(1, experts // 2) if shared is None else shared
        if max(self.specific, self.shared) > experts or self.specific + self.shared < 1:
            raise UserError(
                f"AESM2 cannot select {self.specific} specific and {self.shared} shared of "
                f"{experts} experts: select at least one, and of each kind at most {experts}"
            )
        self.n_gates, self.n_experts, self.noise = gates, experts, noise
        # The bias is the normalisation's.
        self.gates = nn.Sequential(
            nn.Linear(n_in, gates * experts, bias=False), nn.BatchNorm1d(gates * experts)
        )

    def forward(self, seen: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Weigh the experts for samples.

        Args:
            seen: ``(B, n_in)``.
            own: ``(B,)`` int64, the sample's own gate.

        Returns:
            Weights ``(B, n)``; and the loss on the selection ``()``: the mean divergence of the
            selected specific experts from one-hot, plus that of the shared ones from uniform.
        """
        logits = self.gates(seen).unflatten(1, (self.n_gates, self.n_experts))
        noisy = logits
        if self.training and self.noise:
            noisy = logits + self.noise * self.n_experts * torch.randn_like(logits)
        selected, divergence = self.select(noisy, own)
        weights = _of_own(logits, own).masked_fill(~selected, -torch.inf).softmax(1)
        return weights, divergence

    def select(self, logits: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Select experts by gates' logits ``(B, m, n)``.

        Returns:
            ``(B, n)`` bool, which; and the loss on the selection, ``()``.
        """
        if self.n_gates == 1:
            everyone = torch.ones_like(logits[:, 0], dtype=torch.bool)
            return everyone, logits.new_zeros(())
        from_own, from_uniform = divergences(logits, own)
        selected = torch.zeros_like(from_own, dtype=torch.bool)
        loss = logits.new_zeros(())
        for divergence, many in ((from_own, self.specific), (from_uniform, self.shared)):
            if many:
                least, which = divergence.topk(many, dim=1, largest=False)
                selected = selected.scatter(1, which, torch.ones_like(which, dtype=torch.bool))
                loss = loss + least.mean()
        return selected, loss


def divergences(logits: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Kullback-Leibler divergences from each expert's distribution P_e over the gates.

    KL(one-hot at j ‖ P_e) = -log P_e[j], and KL(uniform ‖ P_e) = -log m - mean_i log P_e[i].

    Args:
        logits: ``(B, m, n)``, of m gates over n experts.
        own: ``(B,)`` int64, j.

    Returns:
        Both ``(B, n)``.

    Example:
        >>> equal = torch.zeros(1, 2, 3)
        >>> one_hot, uniform = divergences(equal, torch.tensor([0]))
        >>> bool(torch.allclose(one_hot.exp(), torch.tensor(2.0))), uniform.abs().max() < 1e-6
        (True, tensor(True))
    """
    log_p = logits.log_softmax(1)
    return -_of_own(log_p, own), -math.log(logits.shape[1]) - log_p.mean(1)


def _of_own(values: Tensor, own: Tensor) -> Tensor:
    """Take of ``(B, m, n)`` each sample's own gate ``(B,)``: ``(B, n)``."""
    index = own.view(-1, 1, 1).expand(-1, 1, values.shape[2])
    return values.gather(1, index).squeeze(1)


def _experts(n_in: int, widths: tuple[int, ...], settings: ModelSettings) -> Experts:
    return Experts(
        mlp(n_in, widths, settings.dropout, settings.mlp_norm) for _ in range(settings.experts)
    )
