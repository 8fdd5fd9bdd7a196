"""The rows of ``coterie bench pf-msmtrec``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.core.machine import Limits
from benchmarks.core.timing import Row, in_turns, row
from benchmarks.msmt.federation import coordination, rounds
from benchmarks.msmt.loading import loading
from benchmarks.msmt.operations import plain, projected
from benchmarks.msmt.plain import PlainMMoE
from benchmarks.msmt.steps import ALIEXPRESS, PAPER, Trained, draw, largest_difference
from coterie.core.tables.stopwatch import one_thread
from coterie.core.tensors.keys import Key
from coterie.msmt.data.task import Schema
from coterie.msmt.models.mmoe import MMoE
from coterie.msmt.models.template import TemplateMMoE
from coterie.msmt.settings import ModelSettings, Settings

STEP_MS = "CPU ms a step"
_COMPARED = 256  # samples on which results are compared in float64


def bench(settings: Settings) -> Iterator[Row]:
    """Measure the training step of a scenario, rounds, the server's part, and loading.

    Everything runs on one thread and is given in CPU time, the least of several turns in one run.

    Args:
        settings: of a run, of which nothing counts: sizes are the paper's.

    Yields:
        Rows with ``name, unit, ours, reference, ratio, max_abs_diff``; the ratio is that of
        reference to ours.
    """
    with one_thread():
        yield from local_steps()
        yield from rounds()
        yield from coordination()
    yield from loading()


def local_steps(
    schema: Schema = ALIEXPRESS,
    sizes: ModelSettings = PAPER,
    batch_size: int = 2048,
    turns: int = 7,
) -> Iterator[Row]:
    """Compare a step of MMoE with the plain one, PF-MSMTrec's with MMoE's, and with the hardware.

    The difference is the largest in logits or gradients, in float64 and without dropout.

    Args:
        schema: form of the samples, which are random.
        sizes: of the networks.
        batch_size: B.
        turns: of each way; the fastest counts.
    """
    bare = replace(sizes, mlp_norm=False, dropout=0.0)
    batch = draw(schema, batch_size, Key.from_seed(0).fold("batch"))
    few = {name: value[:_COMPARED] for name, value in batch.items()}
    with Key.from_seed(0).torch_rng():
        trained = {
            "ours": Trained(MMoE(schema, sizes), batch),
            "plain": Trained(PlainMMoE(schema, sizes), batch, fused=False),
            "ours, bare": Trained(MMoE(schema, bare), batch),
            "plain, bare": Trained(PlainMMoE(schema, bare), batch, fused=False),
            "template": Trained(TemplateMMoE(schema, sizes), batch),
        }
        works = {name: one.step for name, one in trained.items()}
        works |= {f"{name}, evaluated": one.evaluate for name, one in trained.items()}
        works |= {f"{name}, Adam": one.adam.step for name, one in trained.items()}
        found = {name: min(times) for name, times in in_turns(works, turns).items()}
    what = f"MMoE, {sizes.experts} experts, batch {batch_size:,}"
    for name, end, form in (
        ("", "", sizes),
        (", bare", ", neither normalisation nor dropout", bare),
    ):
        apart = largest_difference(schema, form, few)
        ours, reference = found[f"ours{name}"], found[f"plain{name}"]
        yield row(f"a step of {what}{end}; plain torch", STEP_MS, ours, reference, apart)
    yield from _limits(schema, sizes, batch_size, found)
    yield row("  Adam; torch's default", STEP_MS, found["ours, Adam"], found["plain, Adam"])
    ours, reference = found["ours, evaluated"], found["plain, evaluated"]
    yield row(f"evaluation, {what}; plain torch", STEP_MS, ours, reference)
    for name, end in (("a step", ""), ("evaluation", ", evaluated")):
        ours, reference = found[f"template{end}"], found[f"ours{end}"]
        yield row(f"{name} of PF-MSMTrec's network; our MMoE", STEP_MS, ours, reference)


def _limits(
    schema: Schema, sizes: ModelSettings, batch_size: int, found: dict[str, float]
) -> Iterator[Row]:
    """Give what the matrix products alone would take."""
    limits = Limits.measured()
    ways = {
        "ours": ("MMoE's products, projected", projected(schema, sizes, batch_size)),
        "plain": ("plain MMoE's products", plain(schema, sizes)),
        "template": (
            "PF-MSMTrec's products, projected",
            projected(schema, sizes, batch_size, schema.n_tasks),
        ),
    }
    for way, (name, operations) in ways.items():
        name = f"{name}, {operations / 1e6:.1f} MFLOP a sample, at"
        limit = limits.products(name, operations * batch_size, found[way])
        yield limit | {"unit": STEP_MS}
