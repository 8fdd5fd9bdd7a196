"""RecFormer (Li et al., KDD 2023, arXiv 2305.13731): a Longformer over the text of items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import (
    LongformerEncoder,
    LongformerPreTrainedModel,
)

from coterie.core.errors import UserError
from coterie.core.tensors.device import on_host
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.backbone_settings import ModelSettings
from coterie.llm.backbones.folder import check_content, damaged
from coterie.llm.backbones.hub import check_finite, check_tokens, from_hub
from coterie.llm.backbones.item_embedding import EmbedsItems
from coterie.llm.backbones.text import (
    TOKEN_TYPES,
    Attributes,
    Encoded,
    ItemTokens,
    Limits,
    texts,
    train_tokenizer,
)
from coterie.llm.data.examples import Examples

# RecFormer's network: four summed embeddings under a Longformer encoder.


class RecformerEmbeddings(nn.Module):
    """Sum of word, position, token type and item position, normalised (section 2.2.2).

    The names of the parameters are those of the public checkpoint; arguments as of the model.
    """

    def __init__(self, config: LongformerConfig, item_positions: int) -> None:
        super().__init__()
        width, pad = config.hidden_size, config.pad_token_id or 0
        self.pad = pad
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=pad)
        self.position_embeddings = nn.Embedding(
            config.max_position_embeddings, width, padding_idx=pad
        )
        self.token_type_embeddings = nn.Embedding(TOKEN_TYPES, width)
        self.item_position_embeddings = nn.Embedding(item_positions, width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, batch: Encoded) -> Tensor:
        """Embed tokens, ``(B, T, h)``. Positions count from the padding number + 1."""
        position = batch.mask.cumsum(1) * batch.mask + self.pad
        total = (
            self.word_embeddings(batch.token)
            + self.position_embeddings(position)
            + self.token_type_embeddings(batch.kind)
            + self.item_position_embeddings(batch.item)
        )
        return self.dropout(self.LayerNorm(total))


class RecformerModel(LongformerPreTrainedModel):
    """A Longformer whose start token, which attends to all others, stands for the sequence.

    Args:
        config: of the Longformer; with one attention window a layer.
        item_positions: number of item positions, that of the start token included.
    """

    def __init__(self, config: LongformerConfig, item_positions: int) -> None:
        super().__init__(config)
        if isinstance(config.attention_window, int):
            config.attention_window = [config.attention_window] * config.num_hidden_layers
        self.window = max(config.attention_window)
        self.embeddings = RecformerEmbeddings(config, item_positions)
        self.encoder = LongformerEncoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """Give the word embeddings."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: Any) -> None:
        """Replace the word embeddings."""
        self.embeddings.word_embeddings = value

    def forward(self, batch: Encoded) -> Tensor:
        """Embed sequences, ``(B, h)``; T must be a multiple of `window`."""
        hidden = self.embeddings(batch)
        return self.encoder(hidden, attention_mask=self._mask(batch, hidden))[0][:, 0]

    @staticmethod
    def _mask(batch: Encoded, hidden: Tensor) -> Tensor:
        """What the encoder of transformers 5 takes: below 0 masked, 0 local, above 0 global."""
        bounds = torch.finfo(hidden.dtype)
        mask = hidden.new_zeros(batch.mask.shape).masked_fill(batch.mask == 0, bounds.min)
        mask[:, 0] = bounds.max
        return mask


_FRESH_ITEMS = 128  # that pre-training embeds in a step, beside the batch's targets


class RecFormer(EmbedsItems):
    """Score items by the cosine of a history's and an item's embedding, divided by 0.05.

    Training is a softmax over all items against a catalogue of item embeddings that gives no
    gradient (section 2.4). In stage 1 `prepare` embeds the catalogue by the row that is loaded; in
    stage 2 it is given, as `frozen_items`.
    """

    place = "encoder.layer"
    above = ()
    targets = ("query", "value", "query_global", "value_global")

    def __init__(self, model: RecformerModel, items: ItemTokens, temperature: float = 0.05) -> None:
        super().__init__(items.items)
        self.model, self.items, self.temperature = model, items, temperature
        self.reader = items
        self.hidden = int(model.config.hidden_size)
        self._targets = torch.zeros(self.n_items, dtype=torch.int64)  # seen in pre-training

    def network_loss(self, examples: Examples) -> Tensor:
        """Mean cross entropy of the next item among all, ``()``."""
        return cross_entropy(self._logits(examples.history, self.catalogue()), examples.target)

    def pretraining_loss(self, examples: Examples) -> Tensor:
        """Loss among the batch's targets and some others, all with gradients, ``()``.

        From a random start the embeddings of items have to be learnt too, and in a mixture of new
        and old ones a model learns to tell new from old. Logits are corrected for how often an
        item is among those embedded, so popular ones are not taught to be rare (sampled softmax).
        The other items are drawn from torch's generator, as dropout is.
        """
        n, target = self.n_items, examples.target
        self._targets += torch.bincount(target, minlength=n)
        others = torch.randperm(n)[:_FRESH_ITEMS]
        items = torch.cat([target, others]).unique()
        place = torch.empty(n, dtype=torch.int64).index_copy_(0, items, torch.arange(len(items)))
        missed = 1.0 - self._targets[items].double() / self._targets.sum()
        chance = 1.0 - (1.0 - len(others) / n) * missed ** len(examples)
        logits = self._logits(examples.history, self.embed_items(items))
        return cross_entropy(logits - chance.log().to(logits), place[target])

    def network_scores(self, history: Ragged) -> Tensor:
        """Cosines divided by the temperature, ``(n, n_items)``."""
        return self._logits(history, self.catalogue())

    def _logits(self, history: Ragged, catalogue: Tensor) -> Tensor:
        if not len(history):
            return catalogue.new_empty(0, len(catalogue))
        return self._embed(history) @ catalogue.T / self.temperature

    def reads(self) -> dict[str, Tensor]:
        """Give the items' attributes as tokens."""
        rows = Ragged.from_lists([[n for pair in item for n in pair] for item in self.items.items])
        return {"tokens": rows.values, "offsets": rows.offsets}

    def embed_items(self, items: Tensor) -> Tensor:
        """Embed items ``(m,)``, each as a sequence of one, ``(m, h)`` of length 1."""
        return self._embed(Ragged.from_lengths(items, torch.ones_like(items)))

    def _embed(self, history: Ragged) -> Tensor:
        """Embeddings of sequences, ``(n, h)`` of length 1."""
        batch = self.items.encode(history, self.model.window)
        return normalize(self.model(batch), dim=1)


# Of the checkpoints that the public code writes: as trained, for ranking, and bare.
_PREFIXES = ("_forward_module.model.longformer.", "longformer.", "")
_ITEM_POSITIONS, _WINDOW = 51, 64
_TEXT_WEIGHT = 3.0


def small_recformer(
    attributes: Sequence[Attributes],
    size: ModelSettings,
    key: Key,
    *,
    items: int = 20,
    window: int = 16,
) -> RecFormer:
    """Build an untrained small RecFormer and its tokenizer; train it by `pretraining.pretrain`.

    Args:
        attributes: of all items.
        size: of the network; its context is the most tokens of a history.
        key: of the first parameters.
        items: most items of a history.
        window: width of the attention window, even.
    """
    from transformers import LongformerConfig

    tokenizer = train_tokenizer(texts(attributes), size.vocabulary)
    config = LongformerConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.width,
        max_position_embeddings=size.context + tokenizer.pad_token_id + 1,
        attention_window=[window] * size.layers,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        sep_token_id=tokenizer.eos_token_id,
        layer_norm_eps=1e-5,
        initializer_range=size.width**-0.5,
    )
    with key.fold("recformer").torch_rng():
        model = on_host(lambda: RecformerModel(config, items + 1))
    # All texts begin with the start token. Untrained, they would hardly differ, and training at a
    # small temperature would make them equal: what it reads must outweigh the token itself.
    layers: Any = model.encoder.layer
    for layer in layers:
        layer.attention.output.dense.weight.data *= _TEXT_WEIGHT
    limits = Limits(items=items, tokens=size.context)
    return RecFormer(model, ItemTokens(attributes, tokenizer, limits))


def load_recformer(
    checkpoint: str | Path, attributes: Sequence[Attributes], base: str
) -> RecFormer:
    """Load the published RecFormer, or one fine-tuned by the public code.

    Args:
        checkpoint: file of the parameters, ``.bin``, ``.pt`` or ``.safetensors``.
        attributes: of all items.
        base: name or path of the Longformer whose shape and tokenizer it has.

    Raises:
        UserError: a file or the base is missing, or the parameters do not fit.
    """
    from transformers import AutoConfig, AutoTokenizer, LongformerConfig

    path = Path(checkpoint).expanduser()
    state = _read(path)
    config = from_hub(AutoConfig, base)
    if not isinstance(config, LongformerConfig):
        raise UserError(
            f"'{base}' is a {config.model_type}, not a Longformer: name by 'model.base' the one "
            "that the checkpoint was trained from"
        )
    config.attention_window = [_WINDOW] * config.num_hidden_layers
    model = RecformerModel(config, _ITEM_POSITIONS)
    load_public(model, state, str(path))
    tokenizer = from_hub(AutoTokenizer, base)
    check_tokens(tokenizer, config.vocab_size, base, ("bos", "pad"))
    return RecFormer(model, ItemTokens(attributes, tokenizer, Limits(items=_ITEM_POSITIONS - 1)))


def load_public(model: RecformerModel, state: Mapping[str, Tensor], source: str) -> None:
    """Load parameters by the names of the public checkpoints.

    These begin with ``longformer.`` (for ranking) or with the bare name, as
    ``embeddings.word_embeddings.weight``. What the model has no place for (the head of masked
    language modelling, item embeddings, position numbers) is left aside.

    Raises:
        UserError: a parameter is missing or of another shape; the model is then as before.
    """
    own = model.state_dict()
    prefix = next(
        (p for p in _PREFIXES if p + "embeddings.word_embeddings.weight" in state), _PREFIXES[-1]
    )
    for name, value in own.items():
        given = state.get(prefix + name)
        if given is None:
            raise UserError(f"{source} has no '{prefix + name}': is it a checkpoint of RecFormer?")
        if given.shape != value.shape:
            raise UserError(
                f"'{prefix + name}' of {source} is {tuple(given.shape)}, the model's is "
                f"{tuple(value.shape)}: choose the Longformer that it was trained from"
            )
    check_finite(((prefix + name, state[prefix + name]) for name in own), source)
    model.load_state_dict({name: state[prefix + name] for name in own})


def _read(path: Path) -> dict[str, Any]:
    import torch
    from safetensors.torch import load_file

    if path.is_dir():
        raise UserError(f"{path} is a folder: give the file of the checkpoint that is in it")
    if not path.is_file():
        raise UserError(f"there is no checkpoint {path}: check the path")
    check_content(path)
    try:
        if path.suffix == ".safetensors":
            found = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # a pickle fails in as many ways as there are bytes
        raise damaged(path, error) from error
    if not isinstance(found, dict):
        raise UserError(f"{path} is no checkpoint of parameters by their names: give another file")
    return found
