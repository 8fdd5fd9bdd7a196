"""Modules imported when they are needed, since they import torch or as much. Torch-free."""

from __future__ import annotations

import gc
from importlib import import_module
from types import ModuleType


def heavy(name: str) -> ModuleType:
    """Import a module without looking for garbage meanwhile.

    The collector would go through the same hundreds of thousands of new objects again and again:
    a sixth of the time that torch and matplotlib take.

    Example:
        >>> heavy("json").loads("1"), gc.isenabled()
        (1, True)
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if collecting:
            gc.enable()
