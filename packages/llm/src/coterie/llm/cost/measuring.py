"""What a client's steps cost, measured: time, memory, and the tokens that pass between layers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.local_training.row_adam import RowAdam
from coterie.core.style import Roles
from coterie.core.tables.paired import spread
from coterie.core.tables.plots import Lines
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.adapter import Adapter
from coterie.llm.backbone_settings import GenerationSettings
from coterie.llm.backbones.base import Backbone
from coterie.llm.backbones.causal_text import CausalText
from coterie.llm.backbones.item_embedding import EmbedsItems
from coterie.llm.backbones.text import PromptTokens, bigrec_template
from coterie.llm.cost.formulas import MEGA
from coterie.llm.data.examples import Examples, Queries
from coterie.llm.quality import measure_users
from coterie.llm.split.channel import Channel, Context
from coterie.llm.split.cut import cut, uncut
from coterie.llm.split.middle import Middle, Training

_ADAM = 3  # numbers beside each trained one: its gradient and two moments
_MILLI = 1e-3


@dataclass(frozen=True)
class StepCost:
    """Of one training step of a client.

    Attributes:
        k: layers below the server's; None where the client holds all.
        seconds: that the client computes, without the server's part; one a repetition.
        server_seconds: that the server computes in the same steps.
        model: bytes of the client's parameters.
        optimizer: bytes of the gradients and of Adam's moments.
        activations: bytes that the client's part of the graph keeps for the backward pass.
    """

    k: int | None
    seconds: tuple[float, ...]
    server_seconds: tuple[float, ...]
    model: int
    optimizer: int
    activations: int

    @property
    def memory(self) -> int:
        """Bytes that the client needs in a step."""
        return self.model + self.optimizer + self.activations

    def plain(self) -> dict[str, Any]:
        """Give the columns of a table for programs, in seconds and bytes."""
        return {**vars(self), "memory": self.memory}

    def shown(self) -> dict[str, Any]:
        """Give the columns of a table for people; times are medians over the repetitions."""
        return {
            "k": "all (FedAvg)" if self.k is None else str(self.k),
            "client ms": statistics.median(self.seconds) / _MILLI,
            "server ms": statistics.median(self.server_seconds) / _MILLI,
            "model MB": self.model / MEGA,
            "optimizer MB": self.optimizer / MEGA,
            "activations MB": self.activations / MEGA,
            "memory MB": self.memory / MEGA,
        }


def step_panels(found: Sequence[StepCost], whole: str) -> list[Lines]:
    """Make plots of time and memory over k; ``whole`` names the line of the whole model."""
    one, split = found[0], found[1:]
    k = [step.k for step in split if step.k is not None]
    measures: dict[str, Callable[[StepCost], list[float]]] = {
        "time of a step (ms)": lambda step: [t / _MILLI for t in step.seconds],
        "memory of a step (MB)": lambda step: [step.memory / MEGA],
    }
    return [
        Lines(
            "k, layers below the server's",
            k,
            {"PPLR": [spread(of(step)) for step in split], whole: [spread(of(one))] * len(k)},
            y_label=label,
            roles=Roles("PPLR", better="lower"),
            bounds=(0.0, None),
        )
        for label, of in measures.items()
    ]


def measure_steps(
    backbone: Backbone, batch: Examples, splits: Sequence[int], repeats: int, key: Key
) -> list[StepCost]:
    """Measure the whole model first, then every k; all take turns, so that noise hits all alike.

    The server's part runs in this process; its time and its graph are left out of the client's. The
    backbone is as before afterwards; ``key`` is that of dropout.

    Raises:
        UserError: the backbone cannot be split at one of them.
    """
    found: dict[int | None, list[StepCost]] = {None: [], **{k: [] for k in splits}}
    for repeat in range(repeats + 1):
        for k, steps in found.items():
            with _client(backbone, k, key) as channel:
                _step(backbone, batch, channel, key)  # caches warm again after the others' turns
                steps.append(_step(backbone, batch, channel, key))
        if repeat == 0:  # the first turn pays for what is set up once
            for steps in found.values():
                steps.clear()
    return [
        replace(
            steps[0],
            k=k,
            seconds=sum((step.seconds for step in steps), ()),
            server_seconds=sum((step.server_seconds for step in steps), ()),
        )
        for k, steps in found.items()
    ]


class _Meter:
    """Takes the time of a step and adds up what its graph keeps, but for what is done elsewhere.

    What is ``held``, parameters, is there anyway.
    """

    def __init__(self, held: Iterable[Tensor] = ()) -> None:
        self.bytes, self.elsewhere, self._active = 0, 0.0, True
        self._known = {_storage(tensor) for tensor in held}
        self._kept: list[Tensor] = []

    def add(self, tensor: Tensor) -> Tensor:
        """Count a tensor that the graph keeps, each storage once."""
        if self._active and _storage(tensor) not in self._known:
            self._known.add(_storage(tensor))
            self._kept.append(tensor)  # else its address could be given to another one
            self.bytes += tensor.untyped_storage().nbytes()
        return tensor

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Note the time of a block that is not the client's."""
        begun, self._active = _now(), False
        try:
            yield
        finally:
            self._active = True
            self.elsewhere += _now() - begun


class _Metered(Middle):
    """Keeps its time and graph apart from the client's."""

    meter = _Meter()

    def forward(self, session: str, hidden: Tensor, context: Context) -> tuple[Tensor, int]:
        with self.meter.paused():
            return super().forward(session, hidden, context)

    def backward(self, session: str, call: int, grad: Tensor) -> Tensor | None:
        with self.meter.paused():
            return super().backward(session, call, grad)

    def step(self, session: str) -> None:
        with self.meter.paused():
            super().step(session)


@contextmanager
def _client(backbone: Backbone, k: int | None, key: Key) -> Iterator[Channel | None]:
    """Make the backbone that of a client inside the block."""
    if k is None:
        yield None
        return
    parts = cut(backbone, k)
    try:
        assert parts.stack is not None  # the backbone is whole
        middle = _Metered(parts.stack, Training(lr=1e-3))
        middle.use(middle.start(1, optimizer=False))
        channel = Channel(middle)
        parts.connect(channel)
        with channel.session(0, training=True, key=key):
            yield channel
    finally:
        uncut(parts)


def _step(backbone: Backbone, batch: Examples, channel: Channel | None, key: Key) -> StepCost:
    adapter, optimizer = Adapter(backbone.named_parameters()), RowAdam()
    row = {"row": adapter.row()[None]}
    state: Any = optimizer.begin(row)
    parameters = list(backbone.parameters())
    backbone.train()
    backbone.prepare()
    meter = _Meter([*parameters, *backbone.buffers()])
    if channel is not None:
        assert isinstance(channel.middle, _Metered)
        channel.middle.meter = meter
    begun = _now()
    with key.torch_rng(), torch.autograd.graph.saved_tensors_hooks(meter.add, lambda kept: kept):
        backbone.loss(batch).backward()
    if channel is not None:
        channel.step()
    optimizer.step(row, {"row": adapter.gradient()[None]}, state, 1e-3)
    seconds = _now() - begun
    adapter.clear()
    size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    trained = sum(p.numel() * p.element_size() for p in adapter.parameters)
    own, elsewhere = (seconds - meter.elsewhere,), (meter.elsewhere,)
    return StepCost(None, own, elsewhere, size, _ADAM * trained, meter.bytes)


def _now() -> float:
    """Seconds, after all that an accelerator has been asked to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


# How many tokens pass from layer to layer, which is what a split model sends.

_CONTEXT, _ANSWER = 512, 128  # BIGRec's
_CHARACTERS = 4  # of English text in a token, by and large
_SAMPLE = 512  # examples or texts that stand for all


@dataclass(frozen=True)
class CatalogueTokens:
    """Tokens of the texts of all items, which pass forward only.

    Attributes:
        validation: embedded before a client is validated with a new adapter, or at each time.
        once: embedded when items are first scored, and kept.
    """

    validation: int = 0
    once: int = 0


class _Counted(Exception):
    """Raised in place of the layers: nothing behind them need run."""


class _Counter(nn.Module):
    """Stands for all layers of a backbone in a ``with`` block, and counts tokens that reach it.

    Args:
        backbone: as before afterwards.
        ends: whether a pass, and the block, end there; otherwise it goes on without layers.
    """

    def __init__(self, backbone: Backbone, *, ends: bool = True) -> None:
        super().__init__()
        self.tokens = 0
        below_last = list(backbone.layers)[:-1]
        self.trained_elsewhere = any(
            p.requires_grad for one in below_last for p in one.parameters()
        )
        # In a tuple, or the backbone would be a part of what stands in it.
        self._of, self._ends = (backbone, list(backbone.layers)), ends

    def __enter__(self) -> _Counter:
        self._of[0].use_layers([self])
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> bool:
        self._of[0].use_layers(self._of[1])
        return kind is _Counted

    def forward(self, hidden_states: Tensor, *given: Any, **named: Any) -> Tensor | tuple[Tensor]:
        """Count ``(B, T, h)``."""
        self.tokens += hidden_states.shape[0] * hidden_states.shape[1]
        if self._ends:
            raise _Counted
        return hidden_states if hasattr(self._of[1][0], "self_attn") else (hidden_states,)


@torch.no_grad()
def catalogue_tokens(backbone: Backbone) -> CatalogueTokens:
    """Count the tokens by which a backbone embeds all items, padding included.

    What it keeps then are embeddings of a network without layers: prepare it anew.
    """
    nothing = Ragged.from_lists([])
    with _Counter(backbone, ends=False) as counter:
        backbone.prepare()
        backbone.scores(nothing)
        first = counter.tokens
        if isinstance(backbone, EmbedsItems):
            backbone.forget()  # the adapter is another one
        backbone.prepare()
        backbone.scores(nothing)
        again = counter.tokens - first
    return CatalogueTokens(again, first - again)


@torch.no_grad()
def training_tokens(backbone: Backbone, examples: Examples, batch_size: int) -> int:
    """Count the tokens of one epoch, padding included; the examples run through no layer.

    What a RecFormer reads to embed its items is counted by `catalogue_tokens`.
    """
    if len(examples):
        backbone.prepare()
    batches = [examples.take(i) for i in torch.arange(len(examples)).split(batch_size)]
    if isinstance(backbone, EmbedsItems):  # its items pass in several calls, some of them once
        with _Counter(backbone, ends=False) as passes:
            backbone.prepare()
            before = passes.tokens
            for batch in batches:
                backbone.loss(batch)
        return passes.tokens - before
    counter = _Counter(backbone)
    for batch in batches:
        with counter:
            backbone.loss(batch)
    return counter.tokens


def validation_tokens(backbone: Backbone, queries: Queries) -> float:
    """Count the tokens of a client's users when all are recommended to, without the items' texts.

    Where titles are written, it is as many as can be, see `generated_tokens`. The backbone is
    prepared.
    """
    found = 0.0

    def score(part: Queries) -> Tensor:
        nonlocal found
        found += recommending_tokens(backbone, part.history)
        return torch.zeros(len(part), backbone.n_items)

    measure_users(score, queries)
    return found


@torch.no_grad()
def recommending_tokens(backbone: Backbone, history: Ragged) -> float:
    """Count the tokens by which a prepared backbone scores all items, without the items' texts."""
    if isinstance(backbone, CausalText):
        rows, batch = backbone.text.prompts(history), backbone.generation.batch
        parts = [rows[start : start + batch] for start in range(0, len(rows), batch)]
        sizes = [len(part) * max(map(len, part)) for part in parts]  # padded
        return generated_tokens(sum(sizes), len(rows), backbone.generation)
    with _Counter(backbone) as counter:
        backbone.scores(history)
    return counter.tokens


def generated_tokens(prompts: float, queries: float, how: GenerationSettings) -> float:
    """Count the tokens of writing titles to the full length and embedding what was written.

    Every beam reads the prompt, and then its own tokens but the last. A text that is no title is
    embedded by itself, in as many tokens, start token included. How soon texts end depends on the
    model and cannot be known before. Of so many queries the prompts have ``prompts`` tokens.

    Example:
        >>> generated_tokens(100, 1, GenerationSettings(beams=4, max_new_tokens=6))
        426
    """
    written = how.beams * (how.max_new_tokens - 1)
    embedded = how.candidates * how.max_new_tokens  # without the end token, with that of the start
    return how.beams * prompts + queries * (written + embedded)


def prompt_tokens(examples: Examples, titles: Sequence[str], tokenizer: Any) -> float:
    """Count the tokens of a BIGRec prompt with its answer, a mean without padding.

    Args:
        examples: histories and targets; at least one.
        titles: of all items.
        tokenizer: of the model; None estimates four characters a token.
    """
    part = examples.take(torch.arange(min(len(examples), _SAMPLE)))
    template = bigrec_template()
    if tokenizer is not None:
        text = PromptTokens(template, tokenizer, titles, _CONTEXT, _ANSWER)
        rows = [*text.prompts(part.history), *text.answers(part.target)]
        return sum(map(len, rows)) / len(part)
    pairs = zip(part.history.tolists(), part.target.tolist(), strict=True)
    texts = [
        template.prompt([titles[item] for item in items]) + template.answer(titles[target])
        for items, target in pairs
    ]
    return sum(map(len, texts)) / _CHARACTERS / len(part)
