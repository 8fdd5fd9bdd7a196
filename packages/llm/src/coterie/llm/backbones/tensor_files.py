"""Writing files of tensors, by a library whose errors of the disk are none of Python's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from coterie.core.files import writing


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
