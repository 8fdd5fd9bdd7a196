"""Load a model from the Hugging Face hub or a folder, and see that it is the one that was saved."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.llm.backbones.folder import check_folder, check_pieces, check_unquantised


def from_hub(kind: Any, name_or_path: str, **options: Any) -> Any:
    """Call ``kind.from_pretrained``: first from this machine, then from the hub.

    Code that comes with a model is not run.

    Args:
        kind: a class of transformers, such as ``AutoTokenizer``.
        name_or_path: a name on the hub, or a folder.
        options: of ``from_pretrained``.

    Raises:
        UserError: it cannot be had, is not whole, or is of no kind that transformers knows.
    """
    path, options = Path(name_or_path).expanduser(), {**options, "trust_remote_code": False}
    if path.is_dir():
        check_pieces(path)
        return _load(kind, str(path), _IN_FOLDER, options)
    if path.is_file():
        if kind.__name__ != "AutoConfig":
            check_pieces(path)
        return _load(kind, str(path), _IN_FOLDER, options)
    if name_or_path.startswith(("/", ".", "~")):
        raise UserError(f"there is no folder {path}: check the path of the model")
    local = offline() or _cached(name_or_path)
    return _load(kind, name_or_path, _ON_HUB, {**options, "local_files_only": local})


def beside(name_or_path: str, file: str) -> Path | None:
    """Find a file that may lie beside a model, in its folder or on the hub; None without."""
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        return folder / file if (folder / file).is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    local = offline() or _cached(name_or_path)
    try:
        return Path(hf_hub_download(name_or_path, file, local_files_only=local))
    except EntryNotFoundError:  # nor is it in what is here of the model
        return None


_IN_FOLDER = (
    "see whether the folder is whole, with config.json, weights and tokenizer, and of such a model"
)
_ON_HUB = (
    "check the name, fetch it while online by `hf download {name}`, or give a folder; tiny-item "
    "and tiny-text need no download"
)


def _load(kind: Any, name_or_path: str, remedy: str, options: dict[str, Any]) -> Any:
    try:
        return kind.from_pretrained(name_or_path, **options)
    except MemoryError:
        raise
    except Exception as error:  # of four libraries, with classes of their own or none
        if isinstance(error, RuntimeError) and "memory" in str(error):
            raise
        why = " ".join(str(error).split()).split(". ")[0][:160]
        raise UserError(
            f"cannot load '{name_or_path}' by {kind.__name__} ({why}): "
            + remedy.format(name=name_or_path)
        ) from error


def _cached(name: str) -> bool:
    """Whether a snapshot of the repository is on this machine."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        snapshot_download(name, local_files_only=True)
    except (LocalEntryNotFoundError, HFValidationError):
        return False
    return True


def offline() -> bool:
    """Whether the hub's name does not resolve; its client would retry for most of a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return True
    if getproxies():
        return False
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return True
    return False


# Whether a model that was loaded is the one that was saved: all weights, all tokens, no NaN.

_LIKE_LLAMA = "use a causal language model built like Llama (Llama, Qwen, Mistral, Gemma)"


def check_source(name_or_path: str) -> None:
    """Refuse a folder that does not hold a whole model; a name on the hub is not looked up.

    Raises:
        UserError: as `check_folder`.
    """
    path = Path(name_or_path).expanduser()
    if path.exists():
        check_folder(path)


def causal_model(name_or_path: str) -> Any:
    """Load a causal language model, on the condition that every weight of it comes from its files.

    What transformers does not find in them it would draw at random, by the global generator.

    Args:
        name_or_path: a name on the hub, or a folder.

    Raises:
        UserError: it cannot be had, is of another kind, has an adapter on top or quantised
            weights, lacks a weight or has one that has no place, or has one that is no number.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = from_hub(AutoConfig, name_or_path)
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise UserError(
            f"'{name_or_path}' is a {config.model_type}, which writes no text: {_LIKE_LLAMA}"
        )
    model, found = _loaded(AutoModelForCausalLM, name_or_path, config)
    check_layers(model)
    check_loaded(model, found, name_or_path)
    check_finite(model.named_parameters(), name_or_path)
    return model


def encoder_model(name_or_path: str) -> Any:
    """Load an encoder without its pooler, on the same conditions as `causal_model`.

    Raises:
        UserError: as there, or it has no ``encoder.layer``.
    """
    from transformers import AutoConfig, AutoModel

    config = from_hub(AutoConfig, name_or_path)
    model, found = _loaded(AutoModel, name_or_path, config)
    layers = getattr(getattr(model, "encoder", None), "layer", None)
    if not isinstance(layers, nn.ModuleList) or not hasattr(model, "embeddings"):
        raise UserError(
            f"'{name_or_path}' is a {config.model_type}, a {type(model).__name__} without "
            "'encoder.layer': use an encoder like BERT, RoBERTa or MPNet"
        )
    model.pooler = None  # made for other uses, and often absent: item embeddings are without it
    missing = found.get("missing_keys") or ()
    own = [name for name in missing if not name.startswith("pooler.")]
    check_loaded(model, {**found, "missing_keys": own}, name_or_path)
    check_finite(model.named_parameters(), name_or_path)
    return model


def _loaded(kind: Any, name_or_path: str, config: Any) -> tuple[Any, Mapping[str, Any]]:
    """Load a model, and what transformers says of its weights."""
    check_unquantised(config.to_dict(), name_or_path)
    options = {"config": config, "output_loading_info": True, "ignore_mismatched_sizes": True}
    with _reported_here(name_or_path):
        model, found = from_hub(kind, name_or_path, **options)
    if getattr(model, "peft_config", None):
        raise UserError(
            f"'{name_or_path}' is an adapter of peft, which is no model by itself: merge it first, "
            "by merge_and_unload() and save_pretrained(), and give that folder"
        )
    return model, found


def check_layers(model: Any) -> None:
    """Refuse a model that is not built like Llama.

    Raises:
        UserError: it has no ``model.layers``.
    """
    if not isinstance(getattr(getattr(model, "model", None), "layers", None), nn.ModuleList):
        raise UserError(f"a {type(model).__name__} has no 'model.layers': {_LIKE_LLAMA}")


def check_loaded(model: nn.Module, found: Mapping[str, Any], source: str) -> None:
    """Refuse a model that is not what its files hold.

    Weights that are tied to others need not be there, and files may hold more than the model: a
    head for another purpose. A weight without a place in a part that the model does have is a sign
    that it is another model than its configuration says, such as one of more layers.

    Args:
        model: as loaded.
        found: what transformers says of it by ``output_loading_info``.
        source: its name or folder.

    Raises:
        UserError: a weight is missing, of another shape, or has no place.
    """
    missing = sorted(found.get("missing_keys") or ())
    if missing:
        raise UserError(
            f"'{source}' has no weights for {_some(missing)}: save the whole model, head included, "
            "as by AutoModelForCausalLM, or mend its config.json"
        )
    # By version of transformers a name, or a name with both shapes.
    others = [one if isinstance(one, str) else one[0] for one in found.get("mismatched_keys") or ()]
    if others:
        raise UserError(
            f"'{source}' has weights of other sizes than its config.json says, {_some(others)}: "
            "give the config.json that they were saved with"
        )
    own = _parts(model)
    extra = sorted(n for n in found.get("unexpected_keys") or () if n.partition(".")[0] in own)
    if extra:
        raise UserError(
            f"'{source}' has weights that its config.json has no place for, {_some(extra)}: give "
            "the config.json that they were saved with"
        )


def check_finite(weights: Iterable[tuple[str, Tensor]], source: str) -> None:
    """Refuse weights that are not numbers: every loss would be NaN.

    Raises:
        UserError: one is NaN or infinite.
    """
    for name, value in weights:
        if not bool(torch.isfinite(value).all()):
            raise UserError(
                f"'{name}' of '{source}' has numbers that are NaN or infinite: its training went "
                "astray, or it was saved in too coarse a format; give another checkpoint"
            )


def check_tokens(tokenizer: Any, embeddings: int, source: str, needed: Sequence[str]) -> None:
    """Refuse a tokenizer that gives numbers of which a model knows nothing.

    Args:
        tokenizer: of Hugging Face.
        embeddings: rows of the model's table.
        source: name or folder of both.
        needed: kinds of special tokens that must be there, such as "eos".

    Raises:
        UserError: it has more tokens than the model, or lacks a special one.
    """
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= embeddings:
        raise UserError(
            f"the tokenizer of '{source}' has tokens up to number {largest}, the model embeds "
            f"{embeddings}: give the tokenizer that it was saved with, or add rows for the new "
            "tokens by resize_token_embeddings() and train them"
        )
    lacking = [kind for kind in needed if getattr(tokenizer, f"{kind}_token_id") is None]
    if lacking:
        raise UserError(
            f"the tokenizer of '{source}' has no '{lacking[0]}_token': name one in its "
            "tokenizer_config.json"
        )


def _parts(model: nn.Module) -> set[str]:
    """How the names of the weights of a model's own parts may begin, with and without its base."""
    prefix = getattr(model, "base_model_prefix", "")
    base = getattr(model, prefix, None) if prefix else None
    inner = base.named_children() if isinstance(base, nn.Module) else ()
    return {name for name, _ in (*model.named_children(), *inner)}


def _some(names: Sequence[str]) -> str:
    more = len(names) - 1
    return f"'{names[0]}'" + (f" and {more} more" if more else "")


@contextmanager
def _reported_here(source: str) -> Iterator[None]:
    """Keep transformers' table of missing weights off the screen: an error says it in one line.

    So are the bars of what is read from a folder; of a download they tell how long it takes.
    """
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    downloads = not are_progress_bars_disabled()
    logging.set_verbosity_error()
    if Path(source).expanduser().exists():
        logging.disable_progress_bar()  # the hub's too
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars and not logging.is_progress_bar_enabled():
            logging.enable_progress_bar()
        if downloads == are_progress_bars_disabled():
            (enable_progress_bars if downloads else disable_progress_bars)()
