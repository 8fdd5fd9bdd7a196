"""Training steps of a split model against those of the whole one, in one interleaved run."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.core.bench.timing import Row, in_turns, one_thread, row
from coterie.core.errors import UserError
from coterie.core.local_training.row_optimizer import RowAdam, RowState
from coterie.llm.adapter import Adapter
from coterie.llm.bench.federation import Shape
from coterie.llm.settings.backbone import LoraSettings
from coterie.llm.split.channel import Channel, LocalChannel
from coterie.llm.split.cut import cut
from coterie.llm.split.middle import Middle, Training
from coterie.llm.split.part import Part
from coterie.llm.split.remote.channel import GrpcChannel
from coterie.llm.split.remote.link import Link
from coterie.llm.split.remote.server import MiddleServer
from coterie.llm.split.remote.tokens import client_token, make_secret

_LR = 1e-3
_PATIENCE = 120.0  # seconds to wait for the server process


@dataclass(frozen=True)
class Size:
    """A model over item tokens, a batch of it, and where it is cut.

    Attributes:
        shape: of the whole; a start token and a target stand beside its history.
        k: layers below the middle.
    """

    shape: Shape
    k: int = 1

    def __str__(self) -> str:
        s = self.shape
        return f"{s.layers} x {s.width}, k = {self.k}, {s.batch} x {s.history + 2} tokens"


_LORA = LoraSettings(dropout=0.0)
SIZES = (
    Size(Shape(4, 128, batch=32, history=62, lora=_LORA)),
    Size(Shape(8, 256, batch=32, history=62, lora=_LORA), k=2),
)


def split(sizes: tuple[Size, ...] = SIZES, turns: int = 9) -> Iterator[Row]:
    """Measure training steps: the whole model, split in this process, and over loopback gRPC.

    One thread each; the three take turns, and wall times are medians, so that what disturbs one
    disturbs all. The server is another process, which computes while this one waits.

    Args:
        sizes: models and batches.
        turns: steps of each that are measured, after one to warm up.

    Yields:
        Rows with ``name, unit, ours, reference, ratio, max_abs_diff``: the reference is the whole
        model, the difference that of the losses of all steps.
    """
    with one_thread():
        for size in sizes:
            yield from _compare(size, turns)


def _compare(size: Size, turns: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, _served(size, Path(folder)) as address:
        secret = make_secret(Path(folder) / "secret")
        steps = {
            "whole": _Whole(size).step,
            "in this process": _local(size).step,
            "over gRPC": _remote(size, address, secret, None).step,
            "over gRPC, bfloat16": _remote(size, address, secret, "bfloat16").step,
        }
        losses: dict[str, list[float]] = {name: [] for name in steps}

        def noted(name: str, step: Callable[[], Tensor]) -> None:
            losses[name].append(float(step()))

        works = {name: partial(noted, name, step) for name, step in steps.items()}
        times = in_turns(works, turns, time.perf_counter)
    medians = {name: statistics.median(of) for name, of in times.items()}
    whole, exact = medians.pop("whole"), losses.pop("whole")
    for name, ours in medians.items():
        difference = max(abs(a - b) for a, b in zip(losses[name], exact, strict=True))
        yield row(f"split step {name}, {size}", "ms a step", ours, whole, difference, share=True)


class _Whole:
    """Training steps on the client's own layers, be it all of them."""

    def __init__(self, size: Size, k: int | None = None) -> None:
        shape = size.shape
        self.backbone, self.examples = shape.backbone(), shape.examples(shape.batch, seed=0)
        self.parts = None if k is None else cut(self.backbone, k)
        self.adapter = Adapter(self.backbone.named_parameters())
        self._optimizer = RowAdam()
        self._row = {"row": self.adapter.row()[None]}
        self._state: RowState = self._optimizer.begin(self._row)

    def step(self) -> Tensor:
        loss = self.backbone.loss(self.examples)
        loss.backward()
        grads = {"row": self.adapter.gradient()[None]}
        self.adapter.clear()
        self._row, self._state = self._optimizer.step(self._row, grads, self._state, _LR)
        self.adapter.load(self._row["row"][0])
        return loss.detach()


class _Split(_Whole):
    """Training steps with the middle behind a channel."""

    channel: Channel

    def begin(self, channel: Channel, client: int) -> None:
        self.channel = channel
        assert self.parts is not None
        self.parts.connect(channel)
        self.parts.release()
        channel.open(client, training=True)

    def step(self) -> Tensor:
        loss = super().step()
        self.channel.step()
        return loss


def _local(size: Size) -> _Split:
    part = _Split(size, size.k)
    assert part.parts is not None
    assert part.parts.stack is not None
    middle = Middle(part.parts.stack, Training(_LR))
    middle.lend(0, Part(middle.adapter.row()[None]))
    part.begin(LocalChannel(middle), 0)
    return part


def _remote(size: Size, address: str, secret: str, wire: str | None) -> _Split:
    part = _Split(size, size.k)
    assert part.parts is not None
    link = Link(address)
    channel = GrpcChannel(link, part.parts.model, lambda client: client_token(secret, client), wire)
    part.begin(channel, 0 if wire is None else 1)
    return part


@contextmanager
def _served(size: Size, folder: Path) -> Iterator[str]:
    """Run a server process; give its address."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=_serve, args=(size, str(folder), its), daemon=True)
    process.start()
    try:
        if not mine.poll(_PATIENCE):
            raise UserError(f"the server process has not started in {_PATIENCE:g} s")
        yield mine.recv()
    finally:
        process.terminate()
        process.join()


def _serve(size: Size, folder: str, connection: Any) -> None:
    torch.set_num_threads(1)
    parts = cut(size.shape.backbone(), size.k)
    assert parts.stack is not None
    middle = Middle(parts.stack, Training(_LR))
    for client in (0, 1):
        middle.lend(client, Part(middle.adapter.row()[None]))
    server = MiddleServer(middle, parts.model, make_secret(Path(folder) / "secret"))
    server.start()
    connection.send(server.address)
    server.wait()
