"""Floating-point operations in the matrix products of a training step."""

from __future__ import annotations

from itertools import pairwise

from coterie.msmt.data.task import Schema
from coterie.msmt.models.fast.fields import Plan
from coterie.msmt.settings import ModelSettings

_FORWARD, _TRAINED = 2, 6
"""Operations a weight and sample: forward, and with both gradients."""
_NO_INPUT = 4
"""The same without the gradient of the input."""


def plain(schema: Schema, settings: ModelSettings) -> float:
    """Operations a sample of MMoE on embeddings."""
    d = settings.embedding
    first = d * schema.n_inputs * _columns(schema, settings)
    rest = settings.experts * _behind(settings) + _towers(schema, settings)
    return _TRAINED * (first + rest) + _NO_INPUT * schema.n_numbers * d


def projected(schema: Schema, settings: ModelSettings, batch: int, expert_passes: int = 1) -> float:
    """Operations a sample of MMoE on projected tables.

    Args:
        schema: form of the samples.
        settings: sizes.
        batch: samples of a step, which share the projection.
        expert_passes: how often experts are run, each time with other first layers: once, or for
            each task.
    """
    d, plan = settings.embedding, Plan(schema.vocabularies, schema.n_numbers, settings.embedding)
    rows = sum(schema.vocabularies[f] for f in plan.small) + schema.n_numbers * len(plan.linear)
    looked_up, columns = d * len(plan.large), _columns(schema, settings, expert_passes)
    first = (_NO_INPUT * rows + _TRAINED * looked_up) * columns
    # A template's experts are mapped from a common table and one a pass.
    tables = 1 if expert_passes == 1 else 1 + expert_passes
    projection = _TRAINED * rows * d * _columns(schema, settings, tables) / batch
    rest = expert_passes * settings.experts * _behind(settings) + _towers(schema, settings)
    return first + projection + _TRAINED * rest


def _columns(schema: Schema, settings: ModelSettings, passes: int = 1) -> int:
    """Outputs of all that looks at the input: experts and gates."""
    return settings.experts * (passes * settings.expert_layers[0] + schema.n_tasks)


def _behind(settings: ModelSettings) -> int:
    """Weights of an expert behind its first layer."""
    return sum(before * after for before, after in pairwise(settings.expert_layers))


def _towers(schema: Schema, settings: ModelSettings) -> int:
    widths = (settings.expert_layers[-1], *settings.tower_layers, 1)
    return schema.n_tasks * sum(before * after for before, after in pairwise(widths))
