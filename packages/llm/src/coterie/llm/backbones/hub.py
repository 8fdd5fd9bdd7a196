"""Load from the Hugging Face hub or a folder, with one clear line where that fails."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from coterie.core.errors import UserError


def from_hub(kind: Any, name_or_path: str) -> Any:
    """Call ``kind.from_pretrained``: first from this machine, then from the hub.

    Args:
        kind: a class of transformers, such as ``AutoTokenizer``.
        name_or_path: a name on the hub, or a folder.

    Raises:
        UserError: it cannot be had, or is of no kind that transformers knows.
    """
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return _load(kind, str(path))
    if name_or_path.startswith(("/", ".", "~")):
        raise UserError(f"there is no folder {path}: check the path of the model")
    local = _unreachable() or _cached(name_or_path)
    return _load(kind, name_or_path, local_files_only=local)


def _load(kind: Any, name_or_path: str, **options: bool) -> Any:
    try:
        return kind.from_pretrained(name_or_path, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        why = " ".join(str(error).split()).split(". ")[0][:160]
        raise UserError(
            f"cannot load '{name_or_path}' by {kind.__name__} ({why}): check the name, fetch it "
            f"while online by `hf download {name_or_path}`, or give a folder; tiny-item and "
            "tiny-text need no download"
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
