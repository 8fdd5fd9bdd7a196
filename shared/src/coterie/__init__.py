"""Federated recommendation: five papers and a dozen methods on one core.

>>> import coterie
>>> run = coterie.train("f3crec", preset="smoke")  # doctest: +SKIP
>>> run.metrics, run.history, run.recommend(users=[42])  # doctest: +SKIP

Importing it costs nothing: a name is loaded when it is asked for first. Papers live beside it, in
wheels and folders of their own (``coterie.llm``), and are found wherever ``sys.path`` leads.
"""

from __future__ import annotations

import os as _os
from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from coterie.core.portions import Portions as _Portions

if TYPE_CHECKING:
    from coterie.core.errors import UserError
    from coterie.core.front import partition
    from coterie.core.front.federate import federate
    from coterie.core.front.given import settings
    from coterie.core.front.method_settings import method
    from coterie.core.front.network import network
    from coterie.core.front.run import Run
    from coterie.core.front.training import data_sets, load, methods, papers, train

    __version__: str

__all__ = [
    "Run",
    "UserError",
    "__version__",
    "data_sets",
    "federate",
    "load",
    "method",
    "methods",
    "network",
    "papers",
    "partition",
    "settings",
    "train",
]

_HOMES = {
    "Run": "coterie.core.front.run",
    "UserError": "coterie.core.errors",
    "data_sets": "coterie.core.front.training",
    "federate": "coterie.core.front.federate",
    "load": "coterie.core.front.training",
    "method": "coterie.core.front.method_settings",
    "methods": "coterie.core.front.training",
    "network": "coterie.core.front.network",
    "papers": "coterie.core.front.training",
    "settings": "coterie.core.front.given",
    "train": "coterie.core.front.training",
}

# Processes of `engine.workers` are forks. gRPC, which Flower and Ray bring, crashes a fork made
# while it is called from other threads, unless told before it is imported that forks call it not.
_os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__path__ = _Portions(__name__, __path__)  # type: ignore[assignment]


def __getattr__(name: str) -> Any:
    found: Any
    if name == "__version__":
        found = _version()
    elif name == "partition":  # a module
        found = _import_module("coterie.core.front.partition")
    elif name in _HOMES:
        found = getattr(_import_module(_HOMES[name]), name)
    else:
        raise AttributeError(
            f"module 'coterie' has no attribute '{name}'; it has {', '.join(__all__)}"
        )
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("coterie-core")
    except PackageNotFoundError:
        raise AttributeError(
            "the version of coterie is not known, as it is not installed: pip install coterie-core"
        ) from None
