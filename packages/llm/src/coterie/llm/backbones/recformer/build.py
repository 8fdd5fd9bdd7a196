"""Make a RecFormer: a small one from nothing, or the published one from its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tensors.device import on_host
from coterie.core.tensors.keys import Key
from coterie.llm.backbones.folder import check_content, damaged
from coterie.llm.backbones.hub import from_hub
from coterie.llm.backbones.recformer.backbone import RecFormer
from coterie.llm.backbones.recformer.model import RecformerModel
from coterie.llm.backbones.recformer.tokens import Attributes, ItemTokens, Limits, texts
from coterie.llm.backbones.tokenizer import train_tokenizer
from coterie.llm.backbones.whole import check_finite, check_tokens
from coterie.llm.settings.backbone import ModelSettings

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
