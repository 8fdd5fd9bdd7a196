"""`tiny-item`: a small Llama whose tokens are the items; needs no text and no download."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from coterie.core.tensors.device import on_host
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.backbones.base import Backbone
from coterie.llm.data.examples import Examples

_IGNORED = -100  # the label that cross_entropy leaves out


class TinyItem(Backbone):
    """A Llama with one token an item, a start token and a padding token; input and output tied.

    Every position of a sequence is trained to predict the next one, the history as well as the
    target.

    Args:
        n_items: number of items; the start token is ``n_items``, padding ``n_items + 1``.
        width: hidden size h.
        layers: number N of decoder layers.
        heads: attention heads.
        context: most items of a history; older ones are not read.
        key: of the first parameters.

    Example:
        >>> model = TinyItem(5, width=8, layers=1, heads=2, context=10, key=Key.from_seed(0))
        >>> model.scores(Ragged.from_lists([[0, 3], []])).shape
        torch.Size([2, 5])
    """

    targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

    def __init__(
        self, n_items: int, *, width: int, layers: int, heads: int, context: int, key: Key
    ) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        self.n_items, self.hidden, self.context = n_items, width, context
        self._start, self._pad = n_items, n_items + 1
        config = LlamaConfig(
            vocab_size=n_items + 2,
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            max_position_embeddings=context + 2,
            tie_word_embeddings=True,
            pad_token_id=self._pad,
            bos_token_id=self._start,
            eos_token_id=None,
        )
        with key.fold("tiny-item").torch_rng():
            self.model = on_host(lambda: LlamaForCausalLM(config))

    @torch.no_grad()
    def start_items(self, vectors: Tensor) -> None:
        """Let the item embeddings start from vectors ``(n_items, h)``, as long as random ones."""
        table: Tensor = self.model.get_input_embeddings().weight
        scale = table[: self.n_items].norm() / vectors.norm()
        table[: self.n_items] = scale * vectors.to(table)

    def network_loss(self, examples: Examples) -> Tensor:
        """Mean cross entropy of the next item over all positions, ``()``."""
        target = Ragged.from_lengths(examples.target, torch.ones_like(examples.target))
        tokens, mask = self._tokens(examples.history.beside(target), self.context + 1)
        logits = self.model(input_ids=tokens, attention_mask=mask, use_cache=False).logits
        labels = tokens.masked_fill(tokens >= self.n_items, _IGNORED)
        return cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=_IGNORED
        )

    def network_scores(self, history: Ragged) -> Tensor:
        """Logits of the next item, ``(n, n_items)``."""
        if not len(history):
            return torch.empty(0, self.n_items)
        tokens, mask = self.tokens(history)
        output = self.model(
            input_ids=tokens, attention_mask=mask, use_cache=False, logits_to_keep=1
        )
        logits: Tensor = output.logits[:, -1, : self.n_items]
        return logits

    def tokens(self, history: Ragged) -> tuple[Tensor, Tensor]:
        """What is read of n histories to score after them, ``(n, T)``, and its mask."""
        return self._tokens(history, self.context)

    def _tokens(self, rows: Ragged, most: int) -> tuple[Tensor, Tensor]:
        """Start token and the newest items of every row, padded on the left; and the mask."""
        from_end = rows.lengths[rows.rows] - rows.positions  # 1 = the newest
        kept = from_end <= most
        length = int(rows.lengths.clamp(max=most).max()) + 1 if len(rows) else 1
        tokens = torch.full((len(rows), length), self._pad)
        tokens[rows.rows[kept], length - from_end[kept]] = rows.values[kept]
        first = length - 1 - rows.lengths.clamp(max=most)
        tokens[torch.arange(len(rows)), first] = self._start
        return tokens, (tokens != self._pad).long()
