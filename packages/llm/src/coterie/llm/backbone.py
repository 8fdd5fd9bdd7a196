"""Make the backbone of a run: built, pre-trained on the public slice, given its adapter."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from coterie.core.errors import UserError
from coterie.core.files import replacing, sha256
from coterie.core.settings.schema import values_of
from coterie.core.tensors.device import moved
from coterie.core.tensors.keys import Key
from coterie.core.tensors.saved import digest
from coterie.llm.backbone_settings import ModelSettings
from coterie.llm.backbones.base import Backbone
from coterie.llm.backbones.causal_text import load_causal_text, tiny_text
from coterie.llm.backbones.expert import ItemVectors, make_expert
from coterie.llm.backbones.folder import writing_tensors
from coterie.llm.backbones.pretraining import pretrain
from coterie.llm.backbones.text import bigrec_template, item_attributes
from coterie.llm.backbones.tiny_item import TinyItem
from coterie.llm.data.catalogue import Catalogue, ItemWords
from coterie.llm.settings import Settings

if TYPE_CHECKING:
    from coterie.llm.data.client_data import FederatedData
    from coterie.llm.halves import Halves


_HUB_NAME = re.compile(r"([\w-][\w.-]*/)?[\w-][\w.-]*")  # OWNER/MODEL, or MODEL; or a path
MINILM = "minilm"  # names all-MiniLM-L6-v2 in 'expert.vectors'
_SILENCE = 30.0  # seconds between two lines about pre-training
WEIGHTS = "backbone.safetensors"
"""In the folder of a client or server that runs apart: what the public pre-training made."""


def make_backbone(settings: Settings, data: FederatedData, cache: Path) -> Backbone:
    """Build and pre-train the backbone, or read it from the cache, and add the common adapter.

    It is where tensors are made by default. Runs of other methods with the same data, backbone and
    seed read the same file of the cache, a folder.
    """
    key = _key(settings)
    backbone = _untrained(settings, data.catalogue, key)
    if not settings.model.is_given:
        _pretrained(backbone, settings, data, cache, key)
    return _adapted(backbone, settings, data.catalogue, key)


def read_backbone(settings: Settings, public: Mapping[str, Any], folder: Path) -> Backbone:
    """Build the backbone from what everybody may know, with the weights in a folder.

    Args:
        settings: of the run; a path of the model is one in the folder, or a name on the hub.
        public: of the card: the items, and the digest of the model, or of the file `WEIGHTS`.
        folder: has that file, where the model is made here.

    Raises:
        UserError: the file is missing, or it or the model is another one.
    """
    settings = _in_folder(settings, folder)
    key = _key(settings)
    items = Catalogue(**public["items"])
    backbone = _untrained(settings, items, key)
    if not settings.model.is_given:
        path = folder / WEIGHTS
        if not path.is_file() or sha256(path) != public["backbone"]:
            raise UserError(f"{path} is not the backbone of the card: get the right file")
        if not _restored(backbone, path):
            raise UserError(f"{path} lacks weights of the backbone: get the right file")
    elif model_digest(backbone) != public["backbone"]:
        raise UserError(
            f"the model '{settings.model.path or 'all-MiniLM-L6-v2'}' here, or its tokenizer, is "
            "not that of the card: get the same files"
        )
    adapted = _adapted(backbone, settings, items, key)
    if adapted.constants().get("vectors") != public.get("vectors"):
        raise UserError(
            f"the encoder '{settings.expert.vectors}' of 'expert.vectors' here, or its tokenizer, "
            "is not that of the card: get the same files"
        )
    return adapted


def _in_folder(settings: Settings, folder: Path) -> Settings:
    """Name the models where a party has them.

    A name on the hub stays one: the card says by a digest which model it is. A path is one in the
    party's own folder, as is that of a published RecFormer, which is a file.
    """
    model, expert = settings.model, settings.expert
    if model.path is not None:
        path = _own_path(model.path, folder, is_file=model.name == "recformer")
        model = replace(model, path=path)
    if expert.vectors is not None:
        expert = replace(expert, vectors=_own_path(expert.vectors, folder))
    return replace(settings, model=model, expert=expert)


def _own_path(path: str, folder: Path, *, is_file: bool = False) -> str:
    named = not is_file and _HUB_NAME.fullmatch(path)
    return path if named and not (folder / path).exists() else str((folder / path).absolute())


def model_digest(backbone: Backbone) -> str:
    """Digest of a model that was given, and of what its tokenizer makes of the items."""
    return digest({**backbone.state_dict(), **backbone.reads()})


def halves_of(backbone: Backbone, settings: Settings) -> Halves | None:
    """Split a backbone as `coterie.llm.halves.split_backbone` does; None without a split."""
    if settings.split.k is None:
        return None
    from coterie.llm.halves import split_backbone  # grpc and transformers are heavy

    return split_backbone(backbone, settings)


def weights_file(settings: Settings, data: FederatedData, cache: Path) -> Path:
    """Where the cache has the weights of a backbone without a path."""
    return cache / f"{settings.model.name}-{_fingerprint(settings, data)}.safetensors"


def _key(settings: Settings) -> Key:
    return Key.from_seed(settings.seed).fold("backbone")


def _adapted(backbone: Backbone, settings: Settings, items: Catalogue, key: Key) -> Backbone:
    """Give a backbone what is not pre-trained: its adapter, and the expert beside it."""
    given = settings.model.is_given
    backbone.weights = model_digest(backbone) if given else digest(dict(backbone.state_dict()))
    if settings.model.trained == "lora":
        backbone.add_lora(settings.lora, key)
    vectors = None if settings.expert.vectors is None else item_vectors(settings, items)
    kind = settings.model.expert or "none"
    backbone.expert = make_expert(kind, items, settings.expert, vectors)
    backbone.to(torch.get_default_device(), getattr(torch, settings.engine.dtype)).settle()
    return backbone


def item_vectors(settings: Settings, items: Catalogue) -> ItemVectors:
    """Embed all items by the encoder that ``expert.vectors`` names; it is not kept.

    Raises:
        UserError: it cannot be had, is not whole, or is of another kind.
    """
    from coterie.llm.backbones.encoder import load_encoder, own_pooling

    path = settings.expert.vectors
    if path == MINILM and not Path(MINILM).is_dir():
        path = None
    pooling: Any = "mean" if path is None else own_pooling(path)
    how = ModelSettings(name="encoder", path=path, pooling=pooling)
    encoder = load_encoder(path, items.words(settings.expert.words), how)
    weights = model_digest(encoder)
    encoder.to(torch.get_default_device(), getattr(torch, settings.engine.dtype)).settle()
    encoder.prepare()
    return ItemVectors(encoder.catalogue(), weights)


def _untrained(settings: Settings, items: Catalogue, key: Key) -> Backbone:
    """Build the backbone of that name; one with a path comes pre-trained."""
    model, history = settings.model, settings.data.max_history
    practises = settings.train.on_inputs
    match model.name:
        case "tiny-item":
            size = {"width": model.width, "layers": model.layers, "heads": model.heads}
            found = TinyItem(items.n_items, **size, context=history, key=key)
            if model.items == "words":
                how = settings.expert
                words = ItemWords(items.words(how.words), how.min_items)
                found.start_items(words.dense(model.width, key.fold("words")))
            return found
        case "tiny-text":
            titles = items.require_titles()
            return tiny_text(titles, model, key, settings.generation, on_inputs=practises)
        case "llama":
            template = bigrec_template(model.noun) if model.prompt == "bigrec" else None
            return load_causal_text(
                str(model.path),
                items.require_titles(),
                template,
                settings.generation,
                model.context,
                on_inputs=practises,
            )
        case "encoder":
            from coterie.llm.backbones.encoder import load_encoder

            return load_encoder(model.path, items.words(settings.expert.words), model)
        case "recformer":
            from coterie.llm.backbones.recformer import load_recformer, small_recformer

            attributes = item_attributes(items)
            if model.path is not None:
                return load_recformer(model.path, attributes, model.base)
            return small_recformer(attributes, model, key, items=history)


def _pretrained(
    backbone: Backbone, settings: Settings, data: FederatedData, cache: Path, key: Key
) -> None:
    path = weights_file(settings, data, cache)
    try:
        if _restored(backbone, path):
            return
    except (OSError, SafetensorError, RuntimeError):
        pass  # absent, or half of it: made again
    most, examples = settings.pretrain.steps, len(data.public.train)
    # What takes minutes, said beside what a command prints for programs.
    _say(
        f"pre-training {settings.model.name} on {examples:,} public examples, {most} steps at "
        "most; it is kept"
    )
    public, limit = moved(data.public, torch.get_default_device()), settings.data.max_history
    shown = _progress(most) if settings.run.progress else None
    pretrain(backbone, public.train, public.held_out, settings.pretrain, key, limit, shown)
    with writing_tensors(path):
        cache.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            held = backbone.state_dict().items()
            tied = {name: value.detach().cpu().clone() for name, value in held}
            save_file(tied, temporary)


def _restored(backbone: Backbone, path: Path) -> bool:
    """Load what was pre-trained; whether it is all that there is in the backbone."""
    return not backbone.load_state_dict(load_file(path), strict=False).missing_keys


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _progress(
    most: int, clock: Callable[[], float] = time.monotonic
) -> Callable[[int, float | None], None]:
    """Makes what says how far pre-training is, twice a minute at most."""
    began = clock()
    said = began

    def shown(step: int, loss: float | None) -> None:
        nonlocal said
        now = clock()
        if now - said < _SILENCE:
            return
        said = now
        held_out = "" if loss is None else f", held-out loss {loss:.3f}"
        _say(f"pre-training step {step} of {most}, {now - began:.0f} s{held_out}")

    return shown


def _fingerprint(settings: Settings, data: FederatedData) -> str:
    """Digest of all that pre-training depends on."""
    values = values_of(settings)
    named = {n: v for n, v in values.items() if n.split(".")[0] in ("model", "pretrain", "seed")}
    for unread in ("trained", "base", "expert", "pooling", "space", "decay"):
        del named[f"model.{unread}"]
    if named["model.prompt"] != "bigrec":  # what it was before there was a choice
        del named["model.prompt"]
    named["max_history"] = settings.data.max_history
    if not settings.train.on_inputs:
        named["on_inputs"] = False
    if settings.model.items == "words":
        named["words"] = settings.expert.words
        if settings.expert.min_items > 1:
            named["min_items"] = settings.expert.min_items
    digest = hashlib.sha256(json.dumps(named, sort_keys=True, default=str).encode())
    public = data.public
    for examples in (public.train, public.held_out):
        for tensor in (examples.history.values, examples.history.offsets, examples.target):
            digest.update(tensor.numpy().tobytes())
    digest.update(json.dumps(data.interactions.titles or data.n_items).encode())
    return digest.hexdigest()[:16]
