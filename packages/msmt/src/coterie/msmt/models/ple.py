"""PLE: experts that all tasks share, and experts of each task's own."""

from __future__ import annotations

from itertools import chain

from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.msmt.data.task import Schema
from coterie.msmt.models.base import (
    Batch,
    Experts,
    Inputs,
    MultiTask,
    each_through,
    expert,
    mix,
    towers_of,
)
from coterie.msmt.settings import ModelSettings


class Ple(MultiTask):
    """Progressive layered extraction (Tang et al., RecSys 2020); with one level it is CGC.

    On each level task k has ``specific`` experts of its own, and all tasks have ``shared`` ones.
    Task k's gate weighs its own and the shared experts, and never sees another task's. The next
    level's experts and gate of task k take what came out for task k; a gate over all experts makes
    the stream of the next level's shared experts, and there is none at the last level.

    PF-MSMTrec (section 4.1.4) has four experts in all, of which two are shared, thus one is of
    each of the two tasks. For other numbers N and T a task gets N // 2T experts, at least one, and
    the rest, at least one, is shared.

    Args:
        schema: form of the samples.
        settings: sizes; ``experts`` counts a level's experts, shared and all tasks' own.
        levels: number of levels.
        specific: a task's own experts on a level; None = by the rule above, 0 = none (MMoE).

    Raises:
        UserError: so many experts leave none to share.
    """

    def __init__(
        self, schema: Schema, settings: ModelSettings, levels: int = 1, specific: int | None = None
    ) -> None:
        super().__init__(schema)
        self.inputs = Inputs(schema, settings.embedding)
        if specific is None:
            specific = max(1, settings.experts // (2 * schema.n_tasks))
        shared = settings.experts - schema.n_tasks * specific
        if shared < 1:
            raise UserError(
                f"PLE has {specific} experts of each of {schema.n_tasks} tasks and at least one "
                f"that they share: 'model.experts' must be {schema.n_tasks * specific + 1} or more"
            )
        widths = [self.inputs.n_features] + [settings.expert_layers[-1]] * levels
        self.levels = nn.ModuleList(
            Level(width, settings, schema.n_tasks, specific, shared, last=number == levels - 1)
            for number, width in enumerate(widths[:-1])
        )
        self.towers = towers_of(schema, settings)

    def logits(self, batch: Batch) -> Tensor:
        """Logits of the tasks' probabilities, ``(B, T)``."""
        streams = [self.inputs(batch)] * (self.schema.n_tasks + 1)
        for level in self.levels:
            streams = level(streams)
        return each_through(self.towers, streams)


class Level(nn.Module):
    """One level of PLE.

    Args:
        n_in: length of what comes in.
        settings: sizes of the experts.
        n_tasks: T.
        specific: experts of each task's own.
        shared: experts that all tasks share.
        last: whether no level follows, so that nothing comes out for shared experts.
    """

    def __init__(
        self,
        n_in: int,
        settings: ModelSettings,
        n_tasks: int,
        specific: int,
        shared: int,
        last: bool,
    ) -> None:
        super().__init__()
        self.own = nn.ModuleList(
            Experts(expert(n_in, settings) for _ in range(specific)) for _ in range(n_tasks)
        )
        self.shared = Experts(expert(n_in, settings) for _ in range(shared))
        self.gates = nn.ModuleList(nn.Linear(n_in, specific + shared) for _ in range(n_tasks))
        self.shared_gate = None if last else nn.Linear(n_in, n_tasks * specific + shared)

    def forward(self, streams: list[Tensor]) -> list[Tensor]:
        """Mix experts for the streams of the tasks and of what they share.

        Args:
            streams: T of the tasks, then the shared one, each ``(B, n_in)``.

        Returns:
            As many, each ``(B, h)``; without the shared one at the last level.
        """
        *of_tasks, of_all = streams
        shared = self.shared(of_all)
        own = [experts(x) for experts, x in zip(self.own, of_tasks, strict=True)]
        found = [
            mix(gate(x).softmax(1), experts + shared)
            for gate, x, experts in zip(self.gates, of_tasks, own, strict=True)
        ]
        if self.shared_gate is not None:
            weights = self.shared_gate(of_all).softmax(1)
            found.append(mix(weights, [*chain(*own), *shared]))
        return found
