"""CIFAR-100 as its author packs it: one pickle for training, one for testing.

Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.core.errors import UserError
from coterie.core.registry.data_sets import find_file
from coterie.page.data.archive import files_in
from coterie.page.data.task import Labelled
from coterie.page.tasks import TASKS

N_CLASSES = 100
_FILES = next(entry.files for entry in TASKS if entry.name == "cifar-100")
_SHAPE = (3, 32, 32)
# All that a pickle of numpy arrays names, by numpy 1 and by numpy 2.
_ALLOWED = {
    (module, name)
    for core in ("numpy.core", "numpy._core")
    for module, name in ((f"{core}.multiarray", "_reconstruct"), ("numpy", "ndarray"))
} | {("numpy", "dtype"), ("_codecs", "encode")}
_DAMAGE = (
    *(pickle.UnpicklingError, EOFError, ValueError, TypeError),
    *(LookupError, AttributeError, OverflowError),
)


def read(folder: Path) -> tuple[Labelled, Labelled]:
    """Read the training and the test set, with the fine labels.

    Args:
        folder: has ``cifar-100-python/train`` and ``test``, or ``train`` and ``test``, or a
            ``.tar.gz`` of them.

    Returns:
        Training and test samples, ``x`` ``(n, 3, 32, 32)`` uint8.

    Raises:
        UserError: a file is missing, damaged, or not of this layout.
    """
    found = find_file(folder, *_FILES)
    if found is None:
        raise UserError(f"there is no CIFAR-100 in {folder}: put cifar-100-python.tar.gz there")
    source = found.parent if found.name == "train" else found
    parts = {
        path.name: _samples(content, f"{source}/{path}")
        for path, content in files_in(source, lambda path: path.name in ("train", "test"))
    }
    for name in ("train", "test"):
        if name not in parts:
            raise UserError(f"{source} has no file '{name}' of CIFAR-100: fetch it again")
    return parts["train"], parts["test"]


def counts(folder: Path) -> list[dict[str, Any]]:
    """Count the samples, for ``coterie data cifar-100``."""
    parts = read(folder)
    return [part.counts(name) for name, part in zip(("train", "test"), parts, strict=True)]


class _ArraysOnly(pickle.Unpickler):
    """A pickle may run any code; this one makes numpy arrays and plain containers only."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _samples(content: bytes, where: str) -> Labelled:
    try:
        values = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        # Keys are bytes in the official files, which Python 2 wrote, and str in copies.
        fields = {
            key.decode("latin-1") if isinstance(key, bytes) else str(key): value
            for key, value in values.items()
        }
        pixels, labels = np.asarray(fields["data"]), np.asarray(fields["fine_labels"])
    except _DAMAGE as error:
        reason = f"no field {error}" if isinstance(error, KeyError) else error
        raise UserError(f"{where} is no file of CIFAR-100 ({reason}): fetch it again") from None
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != np.prod(_SHAPE):
        raise UserError(f"{where}: data is {pixels.dtype} {pixels.shape}, not uint8 (n, 3072)")
    if labels.shape != pixels.shape[:1] or labels.dtype.kind not in "iu":
        raise UserError(f"{where}: {len(pixels)} pictures need as many whole numbers as labels")
    if labels.size and not (labels.min() >= 0 and labels.max() < N_CLASSES):
        raise UserError(f"{where}: a fine label is not in 0..{N_CLASSES - 1}")
    x = torch.from_numpy(pixels.reshape(-1, *_SHAPE).copy())
    return Labelled(x, torch.from_numpy(labels.astype(np.int64)), N_CLASSES)
