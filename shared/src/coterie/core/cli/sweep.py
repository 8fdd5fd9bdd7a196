"""``coterie sweep PAPER``: search for hyper-parameters on this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from coterie.core.cli.arguments import Arguments, positive, seeds
from coterie.core.cli.output import JSON_HELP, aside, print_json, print_report, tell
from coterie.core.cli.train import configure_run
from coterie.core.registry.papers import Paper, load
from coterie.core.run.runfolder import RunFolder
from coterie.core.settings.config_files import read_text
from coterie.core.settings.configuration import to_yaml
from coterie.core.settings.packed import sweep_file
from coterie.core.settings.parser import leaves
from coterie.core.settings.sweeps import Sweep, read_sweep
from coterie.core.tables.report import Report

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
        "sweep", f"Sweep of {paper.name}, best first", rows, first=(sweep.metric, "sd", "seeds")
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
