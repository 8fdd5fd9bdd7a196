"""What the hardware allows: the time that a round's arithmetic and its data alone would take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from coterie.continual.bench.rounds import Engine
from coterie.core.bench.hardware import Limits


def bounds(limits: Limits, engine: Engine) -> Iterator[dict[str, Any]]:
    """Two bounds on one round: its three matrix products, and its data moved once.

    Args:
        limits: of this machine.
        engine: of the round.
    """
    data, model = engine.work.blocks[engine.block], engine.settings.model
    table = engine.down().items
    samples = data.train.lengths * (1 + model.negatives)
    batches = int(((samples + model.batch_size - 1) // model.batch_size).sum())
    # Scores, gradients of users and changes of items: (batches, n_items) x (n_items, d) each.
    operations = 3 * 2 * batches * table.numel() * model.epochs
    vectors = data.ids.numel() * table.shape[1]
    once = int(samples.sum()) * (8 + table.element_size()) * model.epochs
    moved = once + 2 * (table.numel() + vectors) * table.element_size()
    rate = f"{limits.flops / 1e9:.0f} GFLOP/s"
    yield _row(f"  its matrix products at {rate}", 1e3 * operations / limits.flops)
    rate = f"{limits.bandwidth / 1e9:.1f} GB/s"
    yield _row(f"  its samples and tables moved once at {rate}", 1e3 * moved / limits.bandwidth)


def _row(name: str, reference: float) -> dict[str, Any]:
    row = dict.fromkeys(("name", "unit", "ours", "reference", "ratio", "max_abs_diff"))
    return row | {"name": name, "unit": "CPU ms a round", "reference": reference}
