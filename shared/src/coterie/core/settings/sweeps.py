"""Sweeps in the format of W&B's sweep files, run on this machine without an account."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.core.errors import UserError, nearest
from coterie.core.settings.config_files import read_yaml
from coterie.core.settings.schema import suggest
from coterie.core.tensors.keys import Key

DEFAULT_RUNS = 10
_METHODS = ("grid", "random", "bayes")
_DISTRIBUTIONS = (
    "constant",
    "categorical",
    "int_uniform",
    "uniform",
    "q_uniform",
    "log_uniform_values",
)


@dataclass(frozen=True)
class Sweep:
    """What a sweep file asks for.

    Attributes:
        method: grid, random or bayes.
        parameters: by dotted key, as in the file.
        metric: key of what is compared.
        maximize: whether more is better.
        run_cap: most runs; None for no cap.
        flags: words of its command between the paper and ``${args}``.
    """

    method: str
    parameters: dict[str, dict[str, Any]]
    metric: str
    maximize: bool
    run_cap: int | None
    flags: tuple[str, ...]

    def settings(self, count: int | None = None, seed: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the settings of one run after another, by dotted key.

        Args:
            count: most runs; default is the file's cap, or 10 where draws would never end.
            seed: of the draws.
        """
        if self.method == "grid":
            yield from itertools.islice(self._grid(), count or self.run_cap)
            return
        for run in range(count or self.run_cap or DEFAULT_RUNS):
            yield {
                key: _draw(entry, _uniform(seed, run, key))
                for key, entry in self.parameters.items()
            }

    def _grid(self) -> Iterator[dict[str, Any]]:
        choices = {key: _choices(key, entry) for key, entry in self.parameters.items()}
        for values in itertools.product(*choices.values()):
            yield dict(zip(choices, values, strict=True))


def read_sweep(name: str, text: str, known: Sequence[str]) -> Sweep:
    """Read a sweep file, that messages call ``name``; it may vary the keys that are ``known``.

    Raises:
        UserError: it is no sweep, varies an unknown setting, or has an unknown distribution.
    """
    tree = read_yaml(name, text)
    method = str(tree.get("method"))
    if method not in _METHODS:
        raise UserError(f"{name}: method '{method}' is unknown: {nearest(method, _METHODS)}")
    parameters, metric = tree.get("parameters"), tree.get("metric")
    if not isinstance(parameters, dict) or not parameters:
        raise UserError(f"{name}: expected 'parameters', as 'seed: {{values: [0, 1]}}'")
    if not isinstance(metric, dict) or "name" not in metric:
        raise UserError(f"{name}: expected 'metric', as '{{name: eval/ndcg@20, goal: maximize}}'")
    entries = {str(key): _entry(name, str(key), entry) for key, entry in parameters.items()}
    for key in entries:
        if key not in known:
            raise UserError(f"unknown setting '{key}' in {name}: {suggest(key, known)}")
    cap = tree.get("run_cap")
    if cap is not None and (not isinstance(cap, int) or cap < 1):
        raise UserError(f"{name}: 'run_cap' must be a whole number above 0, not '{cap}'")
    maximize = metric.get("goal", "minimize") == "maximize"
    command = [str(word) for word in tree.get("command") or ()]
    return Sweep(method, entries, str(metric["name"]), maximize, cap, _flags(command))


def _entry(name: str, key: str, entry: Any) -> dict[str, Any]:
    if not isinstance(entry, Mapping):
        raise UserError(f"{name}: expected '{key}: {{values: [...]}}' or its min and max")
    found = dict(entry)
    if "value" in found:
        found = {"distribution": "constant", "values": [found["value"]]}
    elif "values" in found:
        if not isinstance(found["values"], list) or not found["values"]:
            raise UserError(f"{name}: the values of '{key}' must be a list")
        found["distribution"] = "categorical"
    else:
        _check_range(name, key, found)
    return found


def _check_range(name: str, key: str, entry: dict[str, Any]) -> None:
    low, high = entry.get("min"), entry.get("max")
    if not isinstance(low, int | float) or not isinstance(high, int | float) or low > high:
        raise UserError(f"{name}: '{key}' needs values, or min and max as numbers, min below max")
    whole = isinstance(low, int) and isinstance(high, int)
    kind = entry.setdefault("distribution", "int_uniform" if whole else "uniform")
    if kind not in _DISTRIBUTIONS:
        raise UserError(
            f"{name}: distribution '{kind}' of '{key}' is unknown: {nearest(kind, _DISTRIBUTIONS)}"
        )
    if kind == "log_uniform_values" and low <= 0:
        raise UserError(f"{name}: '{key}' is log-uniform, so its min must be above 0")


def _choices(key: str, entry: dict[str, Any]) -> list[Any]:
    if "values" in entry:
        return list(entry["values"])
    if entry["distribution"] == "int_uniform":
        return list(range(entry["min"], entry["max"] + 1))
    raise UserError(
        f"a grid cannot go through the range of '{key}': give its values, or use method random"
    )


def _uniform(seed: int, run: int, key: str) -> float:
    return float(Key.from_seed(seed).fold("sweep", run).fold(key).uniform(1).item())


def _draw(entry: dict[str, Any], at: float) -> Any:
    """Value at the quantile ``at``, in [0, 1), of the entry's distribution."""
    if "values" in entry:
        return entry["values"][int(at * len(entry["values"]))]
    low, high, kind = entry["min"], entry["max"], entry["distribution"]
    if kind == "int_uniform":
        return low + int(at * (high - low + 1))
    if kind == "log_uniform_values":
        return math.exp(math.log(low) + at * (math.log(high) - math.log(low)))
    value = low + at * (high - low)
    step = entry.get("q", 1)
    return round(value / step) * step if kind == "q_uniform" else value


def _flags(command: list[str]) -> tuple[str, ...]:
    """Words between the paper and the arguments: ``coterie train PAPER <these> ${args}``."""
    after = command[command.index("train") + 2 :] if "train" in command else []
    return tuple(word for word in after if not word.startswith("${"))
