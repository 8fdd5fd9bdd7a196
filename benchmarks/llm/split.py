"""Training steps of a split model against those of the whole one, in one interleaved run."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.core.timing import Row, in_turns, row
from benchmarks.llm.federation import Shape
from coterie.core.errors import UserError
from coterie.core.local_training.row_adam import RowAdam
from coterie.core.local_training.row_optimizer import RowState
from coterie.core.tables.stopwatch import one_thread
from coterie.llm.adapter import Adapter
from coterie.llm.backbone_settings import LoraSettings
from coterie.llm.split.channel import Channel
from coterie.llm.split.cut import Cut, cut
from coterie.llm.split.middle import Middle, Training
from coterie.llm.split.remote.channel import GrpcSessions
from coterie.llm.split.remote.link import Link
from coterie.llm.split.remote.server import MiddleServer
from coterie.llm.split.remote.tokens import client_token, make_secret

_LR = 1e-3
_PATIENCE = 120.0  # seconds to wait for the server process


_LORA = LoraSettings(dropout=0.0)
Sizes = Mapping[int, Shape]
SIZES: Sizes = {
    1: Shape(4, 128, batch=32, history=62, lora=_LORA),
    2: Shape(8, 256, batch=32, history=62, lora=_LORA),
}


def split(sizes: Sizes = SIZES, turns: int = 9) -> Iterator[Row]:
    """Measure training steps: the whole model, split in this process, and over loopback gRPC.

    One thread each; the three take turns, and wall times are medians, so that what disturbs one
    disturbs all. The server is another process, which computes while this one waits. The reference
    is the whole model, the difference that of the losses of all steps.

    Args:
        sizes: k, the layers below the middle, -> model and batch.
        turns: steps of each that are measured, after one to warm up.
    """
    with one_thread():
        for k, shape in sizes.items():
            yield from _compare(shape, k, turns)


def _compare(shape: Shape, k: int, turns: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, _served(shape, k, Path(folder)) as address:
        secret = make_secret(Path(folder) / "secret")
        steps = {
            "whole": _Whole(shape).step,
            "in this process": _Split(shape, k).local().step,
            "over gRPC": _Split(shape, k).remote(address, secret, None).step,
            "over gRPC, bfloat16": _Split(shape, k).remote(address, secret, "bfloat16").step,
        }
        losses: dict[str, list[float]] = {name: [] for name in steps}

        def noted(name: str, step: Callable[[], Tensor]) -> None:
            losses[name].append(float(step()))

        works = {name: partial(noted, name, step) for name, step in steps.items()}
        times = in_turns(works, turns, time.perf_counter)
    medians = {name: statistics.median(of) for name, of in times.items()}
    whole, exact = medians.pop("whole"), losses.pop("whole")
    # A start token and a target stand beside the history.
    of = f"{shape.layers} x {shape.width}, k = {k}, {shape.batch} x {shape.history + 2} tokens"
    for name, ours in medians.items():
        difference = max(abs(a - b) for a, b in zip(losses[name], exact, strict=True))
        yield row(f"split step {name}, {of}", "ms a step", ours, whole, difference, share=True)


class _Whole:
    """Training steps on the client's own layers, be it all of them."""

    def __init__(self, shape: Shape) -> None:
        self.backbone, self.examples = shape.backbone(), shape.examples(shape.batch, seed=0)
        self._prepare()
        self.adapter = Adapter(self.backbone.named_parameters())
        self._optimizer = RowAdam()
        self._row = {"row": self.adapter.row()[None]}
        self._state: RowState = self._optimizer.begin(self._row)

    def _prepare(self) -> None:
        """Do what comes before the adapter is read."""

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

    def __init__(self, shape: Shape, k: int) -> None:
        self._k = k
        super().__init__(shape)

    def _prepare(self) -> None:
        self.parts = cut(self.backbone, self._k)

    def local(self) -> _Split:
        """Have the middle in this process."""
        return self._begin(Channel(_middle(self.parts, 1)), 0)

    def remote(self, address: str, secret: str, wire: str | None) -> _Split:
        """Have it behind gRPC; each number format is a client of its own."""
        sessions = GrpcSessions(Link(address), self.parts.model, partial(client_token, secret))
        return self._begin(Channel(sessions, wire), 0 if wire is None else 1)

    def _begin(self, channel: Channel, client: int) -> _Split:
        self.channel = channel
        self.parts.connect(channel)
        self.parts.release()
        channel.open(client, training=True)
        return self

    def step(self) -> Tensor:
        loss = super().step()
        self.channel.step()
        return loss


def _middle(parts: Cut, clients: int) -> Middle:
    assert parts.stack is not None
    middle = Middle(parts.stack, Training(_LR))
    middle.use(middle.start(clients, optimizer=False))
    return middle


@contextmanager
def _served(shape: Shape, k: int, folder: Path) -> Iterator[str]:
    """Run a server process; give its address."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=_serve, args=(shape, k, str(folder), its), daemon=True)
    process.start()
    try:
        if not mine.poll(_PATIENCE):
            raise UserError(f"the server process has not started in {_PATIENCE:g} s")
        yield mine.recv()
    finally:
        process.terminate()
        process.join()


def _serve(shape: Shape, k: int, folder: str, connection: Any) -> None:
    torch.set_num_threads(1)
    parts = cut(shape.backbone(), k)
    home = Path(folder)
    server = MiddleServer(_middle(parts, 2), parts.model, make_secret(home / "secret"), home)
    server.start()
    connection.send(server.address)
    server.wait()
