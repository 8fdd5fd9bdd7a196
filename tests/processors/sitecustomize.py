"""Read by every Python that starts with this folder on ``PYTHONPATH``, children of tests included.

    PYTHONPATH=$PWD/tests/processors python -m pytest ...

Torch is not loaded for it: the processor is played from the moment at which somebody loads torch.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

# Kernels of numba are compiled for the plainest processor of this kind, with shorter vectors.
os.environ.setdefault("NUMBA_CPU_NAME", "generic")


class _WithTorch(importlib.abc.MetaPathFinder):
    """Finds torch where everybody finds it, and plays the processor once it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def load(module: ModuleType) -> None:
                execute(module)
                import played_processor

                played_processor.play()

            loader.exec_module = load
        return spec


sys.meta_path.insert(0, _WithTorch())
