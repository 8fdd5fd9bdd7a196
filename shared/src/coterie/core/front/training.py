"""Train a paper from Python, and open what was trained."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from inspect import getdoc
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from coterie.core.errors import UserError, nearest
from coterie.core.front.given import Configs, Data, Files, configured, in_python, trained
from coterie.core.front.run import Run
from coterie.core.registry import data_sets as registered
from coterie.core.registry import papers as installed
from coterie.core.registry.papers import DataSet, Paper, find_paper, heavy
from coterie.core.settings.base import BaseSettings
from coterie.core.terminal import console

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.loggers import Logger

    from coterie.core.methods.settings.fedavg import FedAvgSettings


_NAMES = ("settings", "config", "preset", "variant", "out", "name", "quiet", "callbacks", "loggers")


def train(
    paper: str,
    settings: BaseSettings | None = None,
    *,
    data: Data | None = None,
    config: Configs = (),
    preset: str | None = None,
    variant: str | None = None,
    out: str | os.PathLike[str] | None = None,
    name: str | None = None,
    quiet: bool = False,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    **changes: Any,
) -> Run:
    """Train a paper as ``coterie train`` does, with the same numbers, in a new folder.

    Settings are those of ``coterie train PAPER --help``: ``--rounds 5`` is ``rounds=5``, and
    ``--kd.strength .03`` is ``kd={"strength": .03}``.

    Ctrl-C, or the stop button of a notebook, ends training: a warning tells so, and the run that
    is returned is unfinished; `Run.resume` goes on with it. What belongs to the process, such as
    torch's threads, is afterwards as it was. Of several threads one trains at a time.

    Args:
        paper: its name, see `coterie.papers`.
        settings: all settings as one object, see `coterie.settings`; what is given beside it wins.
        data: name of a data set, path of a file, a data frame or `datasets.Dataset`, or a dict as
            ``{"path": "my.csv", "columns": {"user": "who", "item": "what"}}``. Of an object a copy
            is kept below ``$COTERIE_DATA``, from which the run can go on.
        config: YAML files, also the ``config.yaml`` of a run's folder; the later ones win.
        preset: name of a preset, as ``smoke`` for a run of seconds.
        variant: name of a tuned configuration, or ``none``.
        out: folder of all runs; default is ``runs`` in the folder where Python runs.
        name: of this run's folder; by default made of data, method and seed, and numbered.
        quiet: print neither tables nor progress.
        callbacks: of Lightning, as `lightning.pytorch.callbacks.EarlyStopping`; they may monitor
            every column of ``metrics.csv``. A number of your own for every round is a
            `coterie.core.training.callbacks.notes.Note`.
        loggers: of Lightning, besides those of the section ``logger``.
        changes: more settings by name; a section is a dict, or its dataclass.

    Raises:
        UserError: a paper, a setting or the data are wrong; one line that says what to do.

    Example:
        >>> import coterie
        >>> run = coterie.train("f3crec", preset="smoke", quiet=True)  # doctest: +SKIP
        >>> run.recommend(users=["1"], top=3)  # doctest: +SKIP
    """
    found = find_paper(paper)
    short = {"data": data, "run.out": out, "run.name": name}
    given = {**{key: value for key, value in short.items() if value is not None}, **changes}
    wanted = _wanted(found, settings, given, Files(config, preset, variant), quiet)
    return Run(trained(found, wanted, quiet, callbacks, loggers))


def load(folder: str | os.PathLike[str]) -> Run:
    """Open the folder of a run, whoever trained it: Python or the command line.

    Args:
        folder: of the run, as ``runs/pplr/sample-pplr-tiny-item-seed0``.

    Raises:
        UserError: it is no folder of a run; the nearest one is named.
    """
    return Run(folder)


def _wanted(paper: Paper, own: Any, given: dict[str, Any], files: Files, quiet: bool) -> Any:
    """Settings of a new run; say which tuned ones take part, as the command line does.

    Raises:
        UserError: they do not fit, or are of a run that goes on.
    """
    if own is not None and files != Files():
        raise UserError(
            "a settings object is complete: give config, preset and variant to coterie.settings, "
            "which makes it"
        )
    with in_python():
        found = configured(paper, given, "train()", files, own=own, also=_NAMES)
    if found.settings.run.resume:
        raise UserError("'run.resume' is not for train(): say coterie.load(folder).resume()")
    if found.settings.trainer.fast_dev_run:
        raise UserError(
            "'trainer.fast_dev_run' keeps nothing, so there is no Run to give: say max_epochs in "
            f"its place, or coterie train {paper.name} --trainer.fast_dev_run 1"
        )
    if found.variants and not quiet:
        names = ", ".join(f"configs/{paper.name}/{name}.yaml" for name in found.variants)
        console(soft_wrap=True).print(f"Settings: {names} (variant='none' for the general ones)")
    return found.settings


# What there is, by name, as something to look at and to look up. Torch-free.

T = TypeVar("T")


class Listing(Mapping[str, T], Generic[T]):
    """A mapping by name that prints as a table of names, with a line about each.

    Args:
        what: one of its entries is, for messages.
        entries: by name.
        about: says in one line what an entry is.

    Example:
        >>> Listing("number", {"one": 1, "two": 2}, lambda number: f"the number {number}")
        one  the number 1
        two  the number 2
    """

    def __init__(self, what: str, entries: Mapping[str, T], about: Callable[[T], str]) -> None:
        self._what, self._entries, self._about = what, entries, about

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            hint = nearest(str(name), self._entries) if self._entries else "there are none"
            raise UnknownName(f"{self._what} '{name}' is unknown: {hint}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        width = max(map(len, self._entries), default=0)
        lines = (f"{name:<{width}}  {self._about(each)}" for name, each in self._entries.items())
        return "\n".join(lines) or f"no {self._what}"

    def _repr_html_(self) -> str:
        rows = (
            f"<tr><th style='text-align:left'>{escape(name)}</th>"
            f"<td style='text-align:left'>{escape(self._about(each))}</td></tr>"
            for name, each in self._entries.items()
        )
        return f"<table>{''.join(rows)}</table>"


class UnknownName(UserError, KeyError):
    """A mistake in one line, that mappings know as a missing key, for ``get`` and ``in``."""

    __str__ = UserError.__str__


def papers() -> Listing[Paper]:
    """List the papers that are installed: what `coterie.train` trains.

    Example:
        >>> import coterie
        >>> coterie.papers()["f3crec"].package
        'continual'
        >>> "f3crec" in coterie.papers()
        True
    """
    return Listing("paper", installed.papers(), lambda paper: f"{paper.title} ({paper.reference})")


def data_sets() -> Listing[DataSet]:
    """List the data sets that are known by name; some are built in, others are downloaded.

    Example:
        >>> import coterie
        >>> coterie.data_sets()["ml-100k"].core
        10
    """
    return Listing("data set", registered.data_sets(), lambda entry: entry.about)


# The federated methods for any module, by name, with what they take.

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
    own = heavy("coterie.core.front.method_settings").classes()
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
