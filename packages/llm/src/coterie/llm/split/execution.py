"""The middle's layers, apart from the rest of their model, and running them for one session."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import DynamicCache
from transformers.masking_utils import create_causal_mask

from coterie.core.errors import UserError
from coterie.core.tensors.device import moved
from coterie.core.wire.codec import ProtocolError
from coterie.llm.adapter import Adapter
from coterie.llm.backbones.base import base_model, first_of, hides_padding, number
from coterie.llm.split.channel import GLOBAL, MASKED, Context
from coterie.llm.split.sessions import Session


class Stack(nn.Module, ABC):
    """Consecutive layers of a transformer with what they need to run.

    Args:
        layers: from the input up.
        config: of the model; copied.
    """

    def __init__(self, layers: Sequence[nn.Module], config: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.config = copy.deepcopy(config)
        self.hidden: int = config.hidden_size

    @property
    def dtype(self) -> torch.dtype:
        """Of the hidden states."""
        return next(p.dtype for p in self.parameters() if p.is_floating_point())

    @property
    def device(self) -> torch.device:
        """Where the layers are."""
        return next(self.parameters()).device

    def check(self, hidden: Tensor, context: Context) -> None:
        """Refuse hidden states ``(B, T, h)`` or a context that cannot be run.

        Raises:
            ProtocolError: one line that says what does not fit.
        """
        if hidden.dim() != 3 or hidden.shape[2] != self.hidden or not hidden.numel():
            raise ProtocolError(
                f"hidden states are {tuple(hidden.shape)}, expected (sequences, tokens, "
                f"{self.hidden})"
            )
        context.check(*hidden.shape[:2])

    @abstractmethod
    def forward(self, hidden: Tensor, context: Context, cache: Any = None) -> Tensor:
        """Run the layers on ``(B, T, h)``; the cache, of tokens before, is extended in place."""

    def new_cache(self) -> Any:
        """Make an empty cache for generation.

        Raises:
            ProtocolError: these layers do not generate.
        """
        raise ProtocolError("an encoder has no cache")


class DecoderStack(Stack):
    """Layers as Llama has them: causal self-attention with rotary positions.

    Args:
        layers: from the input up; their places in the cache are numbered anew.
        config: of the model.
        rotary: makes cosines and sines of positions; copied.
    """

    def __init__(self, layers: Sequence[nn.Module], config: Any, rotary: nn.Module) -> None:
        super().__init__(layers, config)
        self.rotary = copy.deepcopy(rotary)
        number(layers)

    def check(self, hidden: Tensor, context: Context) -> None:
        """Refuse what cannot be run; see `Stack.check`."""
        super().check(hidden, context)
        if context.mask is not None and context.mask.dtype != torch.bool:
            raise ProtocolError("the mask of a decoder must be bool")

    def forward(self, hidden: Tensor, context: Context, cache: Any = None) -> Tensor:
        """Run the layers on hidden states ``(B, T, h)``; see `Stack.forward`."""
        positions = context.positions
        if positions is None:
            end = context.past + hidden.shape[1]
            positions = torch.arange(context.past, end, device=hidden.device)[None]
        positions = positions.long()
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=hidden,
            attention_mask=context.mask,
            past_key_values=cache,
        )
        rotary = self.rotary(hidden, position_ids=positions)
        for layer in self.layers:
            hidden = layer(
                hidden,
                attention_mask=mask,
                position_embeddings=rotary,
                position_ids=positions,
                past_key_values=cache,
                use_cache=cache is not None,
            )
        return hidden

    def new_cache(self) -> Any:
        """Make an empty cache for generation."""
        return DynamicCache()


class LongformerStack(Stack):
    """Layers as Longformer has them: a sliding window, and global attention at some tokens."""

    def check(self, hidden: Tensor, context: Context) -> None:
        """Refuse what cannot be run; see `Stack.check`."""
        super().check(hidden, context)
        if context.mask is None or context.mask.dtype != torch.int8:
            raise ProtocolError("Longformer needs an int8 mask")
        if not bool(((context.mask >= MASKED) & (context.mask <= GLOBAL)).all()):
            raise ProtocolError("the mask must hold 0 (masked), 1 (local) and 2 (global)")
        for layer in self.layers:
            window = 2 * layer.get_submodule("attention.self").one_sided_attn_window_size  # type: ignore[operator]
            if hidden.shape[1] % window:
                raise ProtocolError(
                    f"{hidden.shape[1]} tokens are no multiple of the attention window {window}"
                )

    def forward(self, hidden: Tensor, context: Context, cache: Any = None) -> Tensor:
        """Run the layers on hidden states ``(B, T, h)``; see `Stack.forward`."""
        if context.mask is None:
            raise ProtocolError("Longformer needs an int8 mask")
        masked, everywhere = context.mask == MASKED, context.mask == GLOBAL
        bounds = torch.finfo(hidden.dtype)
        extended = hidden.new_zeros(context.mask.shape)
        extended = extended.masked_fill(masked, bounds.min).masked_fill(everywhere, bounds.max)
        is_global = bool(everywhere.any())
        for layer in self.layers:
            hidden = layer(
                hidden,
                attention_mask=extended,
                is_index_masked=masked,
                is_index_global_attn=everywhere,
                is_global_attn=is_global,
                output_attentions=False,
            )[0]
        return hidden


class EncoderStack(Stack):
    """Layers as BERT has them: every token sees all that are not padding."""

    def check(self, hidden: Tensor, context: Context) -> None:
        """Refuse what cannot be run; see `Stack.check`."""
        super().check(hidden, context)
        if context.mask is not None and context.mask.dtype != torch.bool:
            raise ProtocolError("the mask of an encoder must be bool")
        if context.mask is not None and not bool(context.mask.any(1).all()):
            raise ProtocolError("a sequence is nothing but padding")

    def forward(self, hidden: Tensor, context: Context, cache: Any = None) -> Tensor:
        """Run the layers on hidden states ``(B, T, h)``; see `Stack.forward`."""
        mask = None if context.mask is None else hides_padding(context.mask, hidden)
        for layer in self.layers:
            hidden = first_of(layer(hidden, attention_mask=mask))
        return hidden


class Execution:
    """Run a stack with the row of a client in the place of its trainable parameters.

    A call has ``most_tokens`` at the most, cached ones included.
    """

    def __init__(self, stack: Stack, most_tokens: int) -> None:
        # As pre-training leaves the layers. A stack made of them would say that it is in training.
        self.stack = stack.eval()
        self.adapter = Adapter(stack.named_parameters(), may_be_empty=True)
        self._most_tokens = most_tokens
        self._draws = _has_dropout(stack)

    def run(self, one: Session, hidden: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Run the layers on ``(B, T, h)`` with the row, cache and draws of a session.

        Returns:
            The input, a leaf, and the output with its graph, both ``(B, T, h)``.

        Raises:
            ProtocolError: what came does not fit the layers or is not finite.
            UserError: there is dropout, but no key.
        """
        self._check(hidden, context)
        given = hidden.to(self.stack.device, self.stack.dtype).detach()
        given.requires_grad_(context.gradient and context.input_gradient)
        context = moved(context, self.stack.device)
        cache = self._cache(one, hidden, context)
        frozen = nullcontext() if context.adapted else base_model(self.stack)
        with torch.set_grad_enabled(context.gradient), self._dropout(one, context), frozen:
            out = functional_call(self.stack, self._parameters(one.row), (given, context, cache))
        return given, out

    def differentiate(
        self, row: Tensor, given: Tensor, out: Tensor, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """Go back through a run of ``row`` ``(d,)``, from what went out to what was given.

        Returns:
            The gradients of ``row`` and of ``given``; None where none is wanted.

        Raises:
            ProtocolError: the gradient is of another shape or not finite.
        """
        if grad.shape != out.shape or grad.dtype not in self._formats():
            raise ProtocolError(
                f"gradient is {grad.dtype} {tuple(grad.shape)}, expected {self.stack.dtype} "
                f"{tuple(out.shape)}"
            )
        _finite("gradient", grad)
        wanted = [leaf for leaf in (row, given) if leaf.requires_grad]
        got = list(torch.autograd.grad(out, wanted, grad.to(out))) if wanted else []
        of_row = got.pop(0) if row.requires_grad else None
        return of_row, got.pop() if got else None

    def _parameters(self, row: Tensor) -> dict[str, Tensor]:
        """The row as the stack's parameters, by name."""
        named, like = self.adapter.named_tensors(row), self.adapter.parameters
        made = [value.to(p) for value, p in zip(named.values(), like, strict=True)]
        # torch multiplies otherwise where no factor requires a gradient, and rounds the last bit
        # differently.
        leaves = [v if v.requires_grad else v.detach().requires_grad_() for v in made]
        return dict(zip(named, leaves, strict=True))

    def _formats(self) -> tuple[torch.dtype, ...]:
        return (self.stack.dtype, torch.bfloat16)

    def _check(self, hidden: Tensor, context: Context) -> None:
        if hidden.dtype not in self._formats():
            raise ProtocolError(f"hidden states are {hidden.dtype}, expected {self.stack.dtype}")
        self.stack.check(hidden, context)
        tokens = hidden.shape[0] * (context.past + hidden.shape[1])
        if tokens > self._most_tokens:
            raise ProtocolError(f"{tokens} tokens in a call, {self._most_tokens} are the most")
        _finite("hidden states", hidden)

    def _cache(self, session: Session, hidden: Tensor, context: Context) -> Any:
        """The session's cache, brought to where the client is."""
        if context.cache is None:
            return None
        batch = hidden.shape[0]
        if not context.past:
            session.cache = (context.cache, batch, self.stack.new_cache())
            return session.cache[2]
        number, before, cache = session.cache or (None, 0, None)
        surplus = 0 if cache is None else cache.get_seq_length() - context.past
        if cache is None or number != context.cache or surplus < 0:
            raise ProtocolError("the cache is unknown: generate anew, one generation at a time")
        if surplus:
            cache.crop(-surplus)
        if context.order is None and batch != before:
            raise ProtocolError(f"{batch} sequences, but {before} are in the cache")
        if context.order is not None:
            order = context.order.long()
            if not 0 <= int(order.min()) <= int(order.max()) < before:
                raise ProtocolError(f"order names a sequence outside 0..{before - 1}")
            cache.batch_select_indices(order)
        session.cache = (context.cache, batch, cache)
        return cache

    @contextmanager
    def _dropout(self, session: Session, context: Context) -> Iterator[None]:
        """Switch dropout on or off; each call draws by its own key."""
        if self.stack.training != context.dropout:
            self.stack.train(context.dropout)
        if not (context.dropout and self._draws):
            yield
            return
        if session.key is None:
            raise UserError("the middle has dropout: open the session with a key to draw from")
        # Calls without dropout do not count: how many there are depends on what the client keeps.
        own = session.key.fold("middle", session.drawn)
        session.drawn += 1
        with own.torch_rng(), _device_rng(self.stack.device):
            yield


@contextmanager
def _device_rng(device: torch.device) -> Iterator[None]:
    """Keep the draws of a GPU apart from others; its generator is seeded from the CPU's."""
    if device.type != "cuda":
        yield
        return
    index = torch.cuda.current_device() if device.index is None else device.index
    with torch.random.fork_rng(devices=[index]):
        seed = int(torch.randint(1 << 31, ()))
        torch.cuda.default_generators[index].manual_seed(seed)
        yield


def _has_dropout(stack: Stack) -> bool:
    named = ("attention_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob")
    rates = [getattr(stack.config, name, 0.0) for name in named]
    rates += [module.p for module in stack.modules() if isinstance(module, nn.Dropout)]
    return any(rates)


def _finite(what: str, tensor: Tensor) -> None:
    if not bool(torch.isfinite(tensor).all()):
        raise ProtocolError(f"{what}: not every number is finite")
