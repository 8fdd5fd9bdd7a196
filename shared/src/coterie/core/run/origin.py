"""Where numbers come from: the commits of the code that made them. Torch-free."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from coterie.core.terminal import one_line

_SECONDS = 5.0
_CORE = Path(__file__).resolve()


def commits() -> dict[str, str | None]:
    """The git commits of the working directory and of coterie, by ``working`` and ``coterie``.

    None where there is none: no git, no repository, or coterie is installed from a package. Nothing
    that git meets is an error here.
    """
    return {"working": commit_of(Path.cwd()), "coterie": commit_of(_CORE.parent, _CORE.name)}


def commit_of(folder: Path, holding: str | None = None) -> str | None:
    """The commit that is checked out in a folder; None where there is none.

    What was changed since, and is not committed, is marked by ``+``.

    Args:
        folder: in a repository or not.
        holding: a file of the folder that must be one of the repository: a package that somebody
            installed below a repository of theirs is none of it.
    """
    if holding is not None and _git(folder, "ls-files", "--error-unmatch", holding) is None:
        return None
    found = _git(folder, "rev-parse", "HEAD")
    if found is None or not re.fullmatch("[0-9a-f]{40,64}", found):
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return found + "+" * bool(changed)


def _git(folder: Path, *words: str) -> str | None:
    """What git prints; None where it cannot say."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return one_line(done.stdout.decode(errors="replace").strip())
