"""The rows of ``coterie bench pplr``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.core.timing import Row
from benchmarks.llm.federation import Shape
from benchmarks.llm.memory import memory
from benchmarks.llm.split import split
from benchmarks.llm.switching import switching
from coterie.core.errors import UserError
from coterie.llm.settings import Settings


def bench(settings: Settings) -> Iterator[Row]:
    """Measure split training, then what a switch of clients costs, then memory as they grow.

    All models are Llamas over random items and all data are random, so no data set is read. Steps
    run on one thread and everything that is compared takes turns, in wall time. What the references
    are, is told by `split`, `switching` and `memory`.

    Raises:
        UserError: the backbone is none that can be built from nothing.
    """
    if settings.model.name != "tiny-item":
        raise UserError("the benchmark builds models over items: leave --model.name at tiny-item")
    yield from split()
    yield from switching(shapes(settings))
    yield from memory()


def shapes(settings: Settings) -> tuple[Shape, ...]:
    """Give the models on which clients are switched: the run's own, and larger ones."""
    model = settings.model
    more: Any = {"history": settings.data.max_history, "batch": settings.train.batch_size}
    more["lora"] = settings.lora
    return (
        Shape(model.layers, model.width, model.heads, "all", **more),
        Shape(model.layers, model.width, model.heads, "lora", **more),
        Shape(4, 128, **more),
        Shape(8, 256, **more),
    )
