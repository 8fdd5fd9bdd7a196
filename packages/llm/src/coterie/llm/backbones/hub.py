"""Load from the Hugging Face hub or a folder, with one clear line where that fails."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from coterie.core.errors import UserError
from coterie.llm.backbones.folder import check_pieces


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
    local = _unreachable() or _cached(name_or_path)
    return _load(kind, name_or_path, _ON_HUB, {**options, "local_files_only": local})


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


def _unreachable() -> bool:
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
