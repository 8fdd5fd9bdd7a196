"""One digest of a whole tree: equal for equal numbers, shapes, types and names, wherever it is."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from coterie.core.tensors import tree
from coterie.core.tensors.stacked import Handle, Stacked


def digest(values: Any) -> str:
    """Hash all leaves of a tree with their paths, types and shapes into 64 hexadecimal digits.

    What a tree names outside, such as a file, counts by its content, not by its path.

    Raises:
        TypeError: something in the tree is none of the known kinds.

    Example:
        >>> digest({"a": torch.ones(2)}) == digest({"a": torch.ones(2)})
        True
        >>> digest({"a": torch.ones(2)}) == digest({"a": torch.ones(2, 1)})
        False
    """
    found = hashlib.sha256()
    for path, leaf in tree.leaves(values):
        if isinstance(leaf, (Tensor, Stacked)):
            for name, tensor in tree.tensors({path: leaf}):
                found.update(f"{name}:{tensor.dtype} {tuple(tensor.shape)}\n".encode())
                found.update(content(tensor))
        else:
            word = leaf.digest() if isinstance(leaf, Handle) else repr(leaf)
            found.update(f"{path}={type(leaf).__name__} {word}\n".encode())
    return found.hexdigest()


def content(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, on the CPU and without a copy where it lies there as it is."""
    plain = tensor.detach()
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    found: Any = plain.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(found)
