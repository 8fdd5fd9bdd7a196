"""Load from the Hugging Face hub or a folder, with one clear line where that fails."""

from __future__ import annotations

from typing import Any

from coterie.core.errors import UserError


def from_hub(kind: Any, name_or_path: str, **options: Any) -> Any:
    """Call ``kind.from_pretrained``.

    Args:
        kind: a class of transformers, such as ``AutoTokenizer``.
        name_or_path: a name on the hub, or a folder.
        options: passed on.

    Raises:
        UserError: it cannot be had, or is of no kind that transformers knows.
    """
    try:
        return kind.from_pretrained(name_or_path, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        why = " ".join(str(error).split()).split(". ")[0][:160]
        raise UserError(
            f"cannot load '{name_or_path}' by {kind.__name__} ({why}): check the name, download "
            f"it while online (hf download {name_or_path}), or give a folder; tiny-item and "
            "tiny-text need no download"
        ) from error
