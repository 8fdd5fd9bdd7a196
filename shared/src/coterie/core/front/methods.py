"""The federated methods for any module, by name, with what they take."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import getdoc
from typing import TYPE_CHECKING, Any

from coterie.core.front.listing import Listing
from coterie.core.registry.importing import heavy

if TYPE_CHECKING:
    from coterie.core.methods.settings.fedavg import FedAvgSettings

_SUFFIX = "Settings"


@dataclass(frozen=True)
class FederatedMethod:
    """A federated method.

    Attributes:
        name: by which it is called.
        about: one line.
        settings: the class of its settings, a dataclass whose fields are documented.
    """

    name: str
    about: str
    settings: type[FedAvgSettings]


class Methods(Listing[FederatedMethod]):
    """All methods by name, and the classes of their settings as attributes.

    It is read when it is first looked into, which imports torch.

    Example:
        >>> import coterie
        >>> coterie.methods["scaffold"].settings is coterie.methods.Scaffold
        True
        >>> coterie.methods.FedProx(mu=0.1, rounds=20).mu
        0.1
    """

    def __init__(self) -> None:
        super().__init__("method", {}, lambda method: method.about)

    def __getattribute__(self, name: str) -> Any:
        if name == "_entries":
            return _found()
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> type[FedAvgSettings]:
        if not name.startswith("_"):
            for method in self.values():
                if _short(method) == name:
                    return method.settings
        raise AttributeError(f"coterie.methods has no '{name}'; it has {', '.join(self._short())}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._short()})

    def _short(self) -> list[str]:
        return [_short(method) for method in self.values()]


def _found() -> dict[str, FederatedMethod]:
    registry = heavy("coterie.core.methods.registry").METHODS
    own = heavy("coterie.core.front.own_methods").classes()
    return {
        name: FederatedMethod(name, _about(method.settings), method.settings)
        for name, method in registry.items()
    } | {
        name: FederatedMethod(name, _line(kind) or kind.__name__, method.settings)
        for name, (kind, method) in own.items()
    }


def _about(settings: type) -> str:
    """First line about the method itself, which stands with its own parameters if it has any."""
    own = settings.__bases__[0]
    return _line(own if own.__name__.endswith("Options") else settings)


def _line(kind: type) -> str:
    return (getdoc(kind) or "").partition("\n")[0].rstrip(".")


def _short(method: FederatedMethod) -> str:
    """What the class of settings is called here; within a method's class by the name of that."""
    *around, name = method.settings.__qualname__.split(".")
    return name.removesuffix(_SUFFIX) or [method.name, *around][-1]


methods = Methods()
