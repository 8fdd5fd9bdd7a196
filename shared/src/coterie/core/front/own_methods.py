"""Federated methods of a caller's own: a class with both halves and the settings of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from coterie.core.errors import UserError
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_server import ModelServer
from coterie.core.methods.registry import METHODS, Method
from coterie.core.methods.settings.fedavg import FedAvgSettings

C = TypeVar("C", bound=type)

_named: dict[str, tuple[type, Method]] = {}


def method(name: str) -> Callable[[C], C]:
    """Give a federated method of your own a name, for `coterie.federate` and `coterie.methods`.

    What it decorates is a class with up to three classes in it, of which those that are left out
    are FedAvg's: ``Client``, the half that trains; ``Server``, the half that sums; ``Settings``,
    a frozen dataclass of what both take. A static method ``check(settings, lengths)`` may refuse
    settings by the clients' numbers of samples. `coterie.federate` takes the class itself, too.

    Args:
        name: such as "fedavgm"; dashes, underlines and capitals make no difference.

    Raises:
        UserError: another method has the name, or the class is none.

    Example:
        @coterie.method("halfway")
        class Halfway:
            class Server(FedAvgServer):
                def moved(self, weights, total):
                    mean = super().moved(weights, total)
                    return {name: (w + mean[name]) / 2 for name, w in weights.items()}

        federated = coterie.federate(Net(), clients, "halfway")
    """
    if not isinstance(name, str) or not spelt(name):
        raise UserError(f'a method has a name: write @coterie.method("mine"), not {name!r:.40}')
    if taken := next((known for known in METHODS if spelt(known) == spelt(name)), None):
        raise UserError(f"'{taken}' is a method that there is already: choose another name")

    def registered(kind: C) -> C:
        for known, (other, _) in _named.items():
            if spelt(known) == spelt(name) and not _again(kind, other):
                raise UserError(
                    f"'{known}' is the method {other.__qualname__} already: choose another name"
                )
        made = method_of(kind)
        for known in [known for known in _named if spelt(known) == spelt(name)]:
            del _named[known]
        _named[name] = (kind, made)
        return kind

    return registered


def classes() -> dict[str, tuple[type, Method]]:
    """Methods that callers named, by name, with their classes."""
    return dict(_named)


def own_methods() -> dict[str, Method]:
    """Methods that callers named, by name."""
    return {name: made for name, (_, made) in _named.items()}


def name_of(kind: type) -> str:
    """The name of a method's class: the one that it was given, or the class's."""
    return next((name for name, (known, _) in _named.items() if known is kind), kind.__name__)


def spelt(name: str) -> str:
    """A name as all ways to spell it have it.

    Example:
        >>> spelt("Dap-FL"), spelt("fed_rod")
        ('dapfl', 'fedrod')
    """
    return name.lower().replace("-", "").replace("_", "")


def method_of(kind: Any) -> Method:
    """Make a method of a class; see `method`.

    Args:
        kind: the class.

    Raises:
        UserError: it is no class, has neither half, or one of its parts is something else.
    """
    if not isinstance(kind, type):
        raise UserError(f"a method is a class, not a {type(kind).__name__}")
    parts = {
        part: _part(kind, part, base)
        for part, base in (
            ("Client", ModelClient),
            ("Server", ModelServer),
            ("Settings", FedAvgSettings),
        )
    }
    if parts["Client"] is None and parts["Server"] is None:
        raise UserError(
            f"{kind.__name__} has neither a class Client nor a class Server: a method has one of "
            "them, made from FedAvgClient, FedAvgServer or what these are made from"
        )
    check = getattr(kind, "check", None)
    settings = parts["Settings"] or FedAvgSettings
    _check_settings(kind, settings)
    return Method(
        parts["Server"] or FedAvgServer, parts["Client"] or FedAvgClient, settings, check=check
    )


def _again(kind: type, other: type) -> bool:
    """Whether a class is another one written anew, as by a notebook's cell that is run again."""
    return (kind.__module__, kind.__qualname__) == (other.__module__, other.__qualname__)


def _part(kind: type, part: str, base: type) -> Any:
    found = getattr(kind, part, None)
    if found is None or (isinstance(found, type) and issubclass(found, base)):
        return found
    what = found.__name__ if isinstance(found, type) else f"a {type(found).__name__}"
    raise UserError(
        f"{part} of {kind.__name__} must be a class made from {base.__name__}, and {what} is not"
    )


def _check_settings(kind: type, settings: type[FedAvgSettings]) -> None:
    params: Any = vars(settings).get("__dataclass_params__")
    if params is None or not params.frozen:
        raise UserError(
            f"Settings of {kind.__name__} must be a frozen dataclass: write "
            "@dataclass(frozen=True) above it"
        )
