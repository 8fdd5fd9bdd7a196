"""Folders of models: whether one is whole before it is loaded, and writing its tensors.

A clone without git-lfs, a download that was cut off, an adapter in the place of its model: the
libraries fail on some of these from deep within, and load others as something else.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from coterie.core.errors import UserError
from coterie.core.files import writing

_POINTER = b"version https://git-lfs.github.com/spec/"
_JSON = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_BESIDE = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "merges.txt")
_TOKENIZERS = ("tokenizer.json", "vocab*", "*.model", "*.spm", "tekken.json")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # in the order in which they are looked for
_NUMBERS = ("F16", "BF16", "F32", "F64")
_AGAIN = "fetch the whole again, as by `hf download NAME --local-dir"


def check_folder(folder: Path) -> None:
    """Refuse a folder that transformers would not read as the whole model that it stands for.

    Args:
        folder: a folder of transformers: configuration, weights, tokenizer.

    Raises:
        UserError: it is a file, an adapter or quantised, or a file of it is missing, empty, cut
            off or a pointer of git-lfs.
    """
    check_pieces(folder)
    if (folder / "adapter_config.json").exists():
        raise UserError(
            f"{folder} holds an adapter of peft, which is no model by itself: merge it first, by "
            "merge_and_unload() and save_pretrained(), or `coterie llm export --merged`, and give "
            "that folder"
        )
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} has no config.json: give the folder of a model of transformers")
    if not any(any(folder.glob(pattern)) for pattern in _TOKENIZERS):
        raise UserError(
            f"{folder} has no tokenizer, such as tokenizer.json: save the model's own beside the "
            "weights, by save_pretrained()"
        )
    check_unquantised(json.loads((folder / "config.json").read_bytes()), folder)
    for file in _weights(folder):
        _check_weights(file)


def check_pieces(folder: Path) -> None:
    """Refuse a folder whose configuration or tokenizer are not whole; weights are not looked at.

    Raises:
        UserError: as `check_folder`.
    """
    if folder.is_file():
        raise UserError(f"{folder} is a file: give the folder of the model that it is in")
    for name in (*_JSON, *_BESIDE):
        file = folder / name
        if file.is_file():
            check_content(file)
        if file.is_file() and name in _JSON:
            _read_json(file)


def check_content(file: Path) -> None:
    """Refuse a file that is empty, or stands for one that git-lfs would fetch.

    Raises:
        UserError: it is.
    """
    with file.open("rb") as opened:
        start = opened.read(len(_POINTER))
    if not start:
        raise UserError(f"{file} is empty: {_AGAIN} {file.parent}`")
    if start == _POINTER:
        raise UserError(
            f"{file} is a pointer of git-lfs, not the file that it stands for: run `git lfs pull` "
            f"in {file.parent}"
        )


def check_unquantised(config: Mapping[str, Any], source: Path | str) -> None:
    """Refuse a configuration of quantised weights, which cannot be trained, split or compared.

    Raises:
        UserError: it is one.
    """
    how = config.get("quantization_config")
    if how:
        method = how.get("quant_method") if isinstance(how, Mapping) else None
        raise UserError(
            f"the weights of {source} are quantised ({method or 'of no known kind'}): give the "
            "model that they were made from, in float32, bfloat16 or float16"
        )


def _weights(folder: Path) -> Iterator[Path]:
    """The files of the weights, as transformers would find them."""
    for name in _WEIGHTS:
        if (folder / name).exists():
            yield folder / name
            return
        index = folder / f"{name}.index.json"
        if index.exists():
            check_content(index)
            yield from _shards(index)
            return
    others = [file.name for file in sorted(folder.glob("*.gguf"))]
    found = f"only {others[0]}, whose numbers are quantised" if others else "no weights"
    raise UserError(f"{folder} has {found}: it needs model.safetensors, or the shards of one")


def _shards(index: Path) -> Iterator[Path]:
    places = _read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise UserError(f"{index} names no file of weights: {_AGAIN} {index.parent}`")
    shards = [index.parent / str(name) for name in dict.fromkeys(places.values())]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise UserError(
            f"{index.parent} lacks {len(missing)} of the {len(shards)} files of its weights, "
            f"{missing[0]} among them: {_AGAIN} {index.parent}`"
        )
    yield from shards


def _check_weights(file: Path) -> None:
    """Read the names and kinds of the numbers in a file, by its head or without its data."""
    check_content(file)
    try:
        kinds = _kinds(file)
    except Exception as error:  # a pickle fails in as many ways as there are bytes
        raise damaged(file, error) from error
    for name, kind in kinds.items():
        # Numbers of position and the like are integers; a weight of integers is a coded one.
        if name.endswith("weight") and kind not in _NUMBERS:
            raise UserError(
                f"'{name}' of {file} is quantised ({kind}): give the model that it was made from, "
                "in float32, bfloat16 or float16"
            )


def _kinds(file: Path) -> dict[str, str]:
    if file.suffix != ".safetensors":
        import torch

        state = torch.load(file, map_location="meta", weights_only=True)
        return {name: _CODES.get(str(one.dtype), str(one.dtype)) for name, one in state.items()}
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        return {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118


_CODES = {
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.float32": "F32",
    "torch.float64": "F64",
}


def damaged(file: Path, error: Exception) -> UserError:
    """Say that a file cannot be read, and why, in one line."""
    why = " ".join(str(error).split())[:120]
    return UserError(f"{file} is damaged or was cut off ({why}): {_AGAIN} {file.parent}`")


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (ValueError, OSError) as error:
        raise damaged(file, error) from error
    if not isinstance(found, dict):
        raise UserError(f"{file} is no JSON object: {_AGAIN} {file.parent}`")
    return found


@contextmanager
def writing_tensors(path: Path) -> Iterator[None]:
    """Turn an error of the disk below ``path`` into one line, as `coterie.core.files.writing` does.

    Raises:
        UserError: the disk is full, or ``path`` cannot be written.
    """
    with writing(path):
        try:
            yield
        except SafetensorError as error:
            found = re.search(r"os error (\d+)", str(error))
            if found is None:
                raise
            number = int(found[1])
            raise OSError(number, os.strerror(number)) from error
