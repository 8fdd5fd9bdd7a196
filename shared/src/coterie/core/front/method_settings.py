"""A method by name or by its settings, and what else is said, as one settings object."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Union

from coterie.core.errors import UserError, nearest
from coterie.core.front.given import of_numpy
from coterie.core.front.own_methods import method_of, name_of, own_methods, spelt
from coterie.core.methods.registry import METHODS, Method
from coterie.core.methods.settings.fedavg import FedAvgSettings

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
        told[name] = _checked(kind, name, value)
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


def _checked(kind: type, name: str, value: Any) -> Any:
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
