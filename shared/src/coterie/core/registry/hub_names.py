"""Names of data sets on Hugging Face's hub, and where their copies are kept. Torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from coterie.core.errors import UserError

PREFIX = "hf:"

_FORM = re.compile(
    r"hf:(?P<repository>[\w.-]+/[\w.-]+)(?::(?P<config>[^:@#]+))?(?:@(?P<revision>[^:@#]+))?"
    r"(?:#(?P<split>\w[\w.-]*))?"
)


@dataclass(frozen=True)
class HubName:
    """A data set on the hub.

    Attributes:
        repository: ``OWNER/NAME``.
        config: one of its configurations; None where it has one only.
        revision: a commit, tag or branch; None for the newest.
        split: one of its splits; None where it has one only.
    """

    repository: str
    config: str | None = None
    revision: str | None = None
    split: str | None = None

    def __str__(self) -> str:
        marks = ((":", self.config), ("@", self.revision), ("#", self.split))
        return f"{PREFIX}{self.repository}" + "".join(f"{m}{v}" for m, v in marks if v)

    def folder(self, root: Path) -> Path:
        """Folder of its copy below the data root; another name, another folder."""
        return root / "hf" / quote(str(self).removeprefix(PREFIX), safe="@#=,")


def is_hub_name(name: str) -> bool:
    """Tell a name on the hub from those of known data sets and files.

    Example:
        >>> is_hub_name("hf:owner/name"), is_hub_name("owner/name")
        (True, False)
    """
    return name.startswith(PREFIX)


def hub_name(name: str) -> HubName:
    """Read ``hf:OWNER/NAME[:CONFIG][@REVISION][#SPLIT]``.

    Raises:
        UserError: it has another form.

    Example:
        >>> hub_name("hf:owner/name:small@1a2b#train")
        HubName(repository='owner/name', config='small', revision='1a2b', split='train')
    """
    found = _FORM.fullmatch(name)
    if found is None:
        raise UserError(
            f"'{name}' is no name on the hub: write hf:OWNER/NAME, and behind it :CONFIG, "
            "@REVISION and #SPLIT where they are needed, in this order"
        )
    return HubName(**found.groupdict())


def stem(name: str) -> str:
    """Short name of a data set, a file or a name on the hub, for folders of runs.

    Example:
        >>> stem("ml-1m"), stem("here/mine.csv.gz"), stem("hf:owner/name@1a2b#train")
        ('ml-1m', 'mine', 'name-train')
    """
    if not is_hub_name(name):
        return Path(name).name.split(".")[0]
    parsed = hub_name(name)
    words = (parsed.repository.split("/")[1], parsed.config, parsed.split)
    return re.sub(r"[^\w.-]", "-", "-".join(word for word in words if word))
