"""Federated methods of a caller's own: a class with both halves and the settings of one."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, Union

from coterie.core.errors import UserError, nearest
from coterie.core.front.given import of_numpy
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


# A method by name or by its settings, and what else is said, as one settings object.

Chosen = str | FedAvgSettings | type
"""A method by its name, by its settings, or by a class of the caller's own."""


def method_named(chosen: Chosen) -> tuple[str, Method]:
    """A method and its name.

    Args:
        chosen: its name, dashes and underlines alike, settings of it, or its class.

    Raises:
        UserError: it is unknown.

    Example:
        >>> method_named("Dap_FL")[0], method_named("fedrod")[0]
        ('dap-fl', 'fed-rod')
    """
    known = METHODS | own_methods()
    if isinstance(chosen, str):
        found = {spelt(name): name for name in known}.get(spelt(chosen))
        if found is None:
            raise UserError(f"method '{chosen}' is unknown: {nearest(chosen, known)}")
        return found, known[found]
    for name, method in known.items():
        if type(chosen) is method.settings:
            return name, method
    if isinstance(chosen, type):
        if issubclass(chosen, FedAvgSettings):
            raise UserError(
                f"method is the class {chosen.__name__}: make settings, {chosen.__name__}()"
            )
        return name_of(chosen), method_of(chosen)
    raise UserError(
        f"method is a {type(chosen).__name__}: give a name, such as 'scaffold', or its settings, "
        "such as ScaffoldSettings(lr_g=1.0), or a class of your own"
    )


def settings_for(
    chosen: Chosen, said: Mapping[str, Any], configured: Mapping[str, Any]
) -> FedAvgSettings:
    """Settings of a method: what the caller says, then what the module configures, then defaults.

    Args:
        chosen: see `method_named`.
        said: fields by name; None is not said.
        configured: ``optimizer``, ``lr`` and ``weight_decay`` of `configure_optimizers`, or empty.
            ``lr`` gives way to one that is said. That of pFedMe is its ``personal_lr``, the rate of
            the steps on the loss.

    Raises:
        UserError: a setting is unknown, of another type, or contradicts the module's optimizer.
    """
    method, how = method_named(chosen)
    kind = how.settings
    known = {field.name for field in dataclasses.fields(kind)}
    told = {name: of_numpy(value) for name, value in said.items() if value is not None}
    for name, value in told.items():
        if name not in known:
            raise UserError(f"setting '{name}' of {method} is unknown: {nearest(name, known)}")
        told[name] = checked(kind, name, value)
    found = dict(configured)
    if "lr" in found and method == "pfedme":
        found["personal_lr"] = found.pop("lr")
    rate = "personal_lr" if "personal_lr" in found else "lr"
    whole = chosen if isinstance(chosen, FedAvgSettings) else None
    for name, value in found.items():
        other = told.get(name, value if whole is None else getattr(whole, name))
        if other != value and not (name == rate and name in told):
            raise UserError(
                f"{name} is {other} by the settings and {value} by configure_optimizers: say "
                f"one of them{', or give ' + name + '=' if name == rate else ''}"
            )
    fields = {**found, **told}
    try:
        return kind(**fields) if whole is None else dataclasses.replace(whole, **fields)
    except UserError as error:
        if rate == "personal_lr" and rate not in told and "personal_lr" in str(error):
            raise UserError(f"{error}; personal_lr is the lr of configure_optimizers") from None
        raise
    except TypeError as error:
        raise UserError(f"settings of {method} do not fit: {error}") from error


def checked(kind: type, name: str, value: Any) -> Any:
    """Check the type of a setting, so that no comparison goes wrong later.

    Raises:
        UserError: it is another.
    """
    wanted = typing.get_type_hints(kind)[name]
    if isinstance(value, list):
        value = tuple(value)
    if isinstance(value, str) and typing.get_origin(wanted) is tuple:
        value = (value,)
    if any(_is(value, one) for one in _choices(wanted)):
        return value
    literal = [one for one in _choices(wanted) if typing.get_origin(one) is Literal]
    if literal and isinstance(value, str):
        raise UserError(
            f"{name}='{value}' is unknown: {nearest(value, typing.get_args(literal[0]))}"
        )
    names = " or ".join(getattr(one, "__name__", str(one)) for one in _choices(wanted))
    raise UserError(f"{name}={value!r} is a {type(value).__name__}: give {names}")


def _choices(wanted: Any) -> tuple[Any, ...]:
    if typing.get_origin(wanted) in (Union, types.UnionType):
        return typing.get_args(wanted)
    return (wanted,)


def _is(value: Any, wanted: Any) -> bool:
    origin = typing.get_origin(wanted)
    if origin is Literal:
        return value in typing.get_args(wanted)
    if origin is tuple:
        inner = typing.get_args(wanted)[0]
        return isinstance(value, tuple) and all(_is(one, inner) for one in value)
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(wanted, type) and isinstance(value, wanted)
