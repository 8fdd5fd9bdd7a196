"""A server process for the tests: the middle of a tiny backbone."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from tests.llm.tiny_split import Tiny, TinyLlama, TinyLongformer

from benchmarks.llm import memory  # noqa: F401 (what a fork runs is imported before)
from coterie.llm.commands.serve import run as serve
from coterie.llm.experiment import Experiment  # noqa: F401
from coterie.llm.split.cut import cut
from coterie.llm.split.middle import Middle, Training
from coterie.llm.split.remote.server import MiddleServer
from coterie.llm.split.remote.tokens import make_secret

MAX_BYTES = 1 << 20
TRAINING = Training(lr=0.01)


class Slow(Middle):
    """Takes its time in backward, so that it can be killed in the middle of it."""

    seconds = 0.0
    say = print

    def backward(self, *arguments):
        Slow.say("backward")
        time.sleep(self.seconds)
        return super().backward(*arguments)


def tiny(kind: str, n_layers: int, dtype: str) -> Tiny:
    """Make a backbone, the same one in every process."""
    made = TinyLongformer(n_layers) if kind == "longformer" else TinyLlama(n_layers)
    return made.to(getattr(torch, dtype))


def command(words: list[str], out: Connection) -> None:
    """Do what `coterie llm serve` does, printing to a pipe."""
    os.dup2(out.fileno(), 1)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    serve(words)


def calls(function: Callable[..., Any], given: Sequence[Any], out: Connection) -> None:
    """Send what a function gives."""
    out.send(function(*given))


def main(words: list[str], out: Connection) -> None:
    """Serve N_LAYERS K STATE [--kind longformer] [--dtype bfloat16] [--slow SECONDS] for good."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("n_layers", type=int)
    parser.add_argument("k", type=int)
    parser.add_argument("state", type=Path)
    parser.add_argument("--kind", default="llama")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--slow", type=float, default=0.0)
    given = parser.parse_args(words)
    Slow.seconds, Slow.say = given.slow, out.send
    parts = cut(tiny(given.kind, given.n_layers, given.dtype), given.k)
    middle = Slow(parts.stack, TRAINING)
    secret = make_secret(given.state / "secret")
    kept = given.state / "kept"
    server = MiddleServer(middle, parts.model, secret, kept, max_bytes=MAX_BYTES)
    server.start()
    out.send(server.address)
    server.wait()
