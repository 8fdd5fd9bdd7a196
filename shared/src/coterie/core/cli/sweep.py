"""``coterie sweep PAPER``: search for hyper-parameters on this machine."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from coterie.core.cli.command import (
    JSON_HELP,
    Arguments,
    aside,
    positive,
    print_json,
    print_report,
    seeds,
    tell,
)
from coterie.core.cli.papers import configure_run
from coterie.core.errors import UserError, nearest
from coterie.core.registry.papers import Paper, load, sweep_file
from coterie.core.run.runfolder import RunFolder
from coterie.core.settings.configuration import read_text, read_yaml, to_yaml
from coterie.core.settings.parser import leaves
from coterie.core.settings.schema import suggest
from coterie.core.tables.report import Report
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
        ends_early: whether W&B would end runs that are behind.
    """

    method: str
    parameters: dict[str, dict[str, Any]]
    metric: str
    maximize: bool
    run_cap: int | None
    flags: tuple[str, ...]
    ends_early: bool = False

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
    early = "early_terminate" in tree
    return Sweep(method, entries, str(metric["name"]), maximize, cap, _flags(command), early)


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


ABOUT = (
    "Run configs/sweeps/PAPER.yaml, a W&B sweep file, one run after another and without an "
    "account. A sweep that was stopped goes on where it was. Every setting of `coterie train "
    "PAPER` may be given too."
)


def run_sweep(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    parser = Arguments("sweep PAPER", ABOUT)
    parser.add_argument("--file", type=Path, help="another sweep file")
    parser.add_argument("--count", type=positive, help="most runs; default is the file's cap")
    parser.add_argument("--seeds", type=seeds, help="compare means over seeds: 5, or '0 1 2'")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    paper, given, flags = parser.of_paper(argv)
    sweep = _read(paper, given.file)
    if sweep.method == "bayes" and not given.json:
        tell("Without a W&B server there is no Bayesian search: values are drawn at random.")
    if sweep.ends_early and not given.json:
        tell("Without a W&B server 'early_terminate' has no effect: every run goes to its end.")
    folder = configure_run(paper, flags).settings.run.folder / paper.name / "sweep"
    rows = []
    for chosen in _settings(sweep, given.count, given.seeds):
        with aside(given.json):
            rows.append({**chosen, sweep.metric: _train(paper, sweep, chosen, flags)})
    if given.json:
        print_json(rows)
    if given.seeds is not None:
        rows = _over_seeds(rows, sweep.metric)
    rows.sort(key=lambda row: _rank(row[sweep.metric], sweep.maximize))
    report = Report(
        "sweep",
        f"Sweep of {paper.name}, best first",
        rows,
        first=(sweep.metric, "sd", "seeds"),
        better={sweep.metric: "max" if sweep.maximize else "min"},
    )
    saved = report.save(folder)
    if not given.json:
        print_report(report, saved)


def _read(paper: Paper, file: Path | None) -> Sweep:
    known = list(leaves(load(paper.settings)))
    if file is not None:
        return read_sweep(str(file), read_text(file), known)
    text = sweep_file(paper).read_text("utf-8")
    return read_sweep(f"configs/sweeps/{paper.name}.yaml", text, known)


def _settings(
    sweep: Sweep, count: int | None, every: Sequence[int] | None
) -> Iterator[dict[str, Any]]:
    for chosen in sweep.settings(count):
        if every is None:
            yield chosen
        else:
            yield from ({**chosen, "seed": seed} for seed in every)


def _train(paper: Paper, sweep: Sweep, chosen: dict[str, Any], flags: list[str]) -> float | None:
    """Train with the chosen settings, unless that has been done; return the metric."""
    words = [*sweep.flags, *(f"--{key}={value}" for key, value in chosen.items()), *flags]
    settings = configure_run(paper, words).settings
    digest = hashlib.sha256(to_yaml(settings, paper.name).encode()).hexdigest()[:8]
    folder = settings.run.folder / paper.name / f"sweep-{digest}"
    words += ["--run.name", folder.name]
    if not (folder / "summary.json").is_file():
        words += ["--resume"] if folder.is_dir() else []
        settings = configure_run(paper, words).settings
        import_module("coterie.core.training.train").train(paper, settings)
    return _measured(RunFolder.open(folder), sweep.metric)


def _measured(folder: RunFolder, metric: str) -> float | None:
    """The metric at the end of a run: of its summary, else the last one it logged."""
    final = folder.read_json("summary.json")["metrics"]
    if metric in final:
        return final[metric]
    from coterie.core.run.metrics_file import read_metrics  # imports torch: --help does not wait

    _, rows = read_metrics(folder.path)
    values = [row[metric] for row in rows if row.get(metric)]
    return float(values[-1]) if values else None


def _over_seeds(rows: Sequence[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
    """One row for each setting: mean and standard deviation over its seeds.

    A setting of which a run has no metric has none either.
    """
    from coterie.core.tables.paired import spread

    groups: dict[str, tuple[dict[str, Any], list[float | None]]] = {}
    for row in rows:
        setting = {key: value for key, value in row.items() if key not in ("seed", metric)}
        groups.setdefault(repr(setting), (setting, []))[1].append(row[metric])
    averaged = []
    for setting, found in groups.values():
        measured = spread([value for value in found if value is not None])
        whole = measured.n == len(found)
        mean, sd = (measured.mean, measured.sd) if whole else (None, None)
        averaged.append({**setting, metric: mean, "sd": sd, "seeds": len(found)})
    return averaged


def _rank(value: float | None, maximize: bool) -> tuple[bool, float]:
    if value is None:
        return True, 0.0
    return False, -value if maximize else value
