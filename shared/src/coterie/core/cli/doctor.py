"""``coterie doctor``: check this machine, the installation, and that equal runs are equal."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coterie.core.cli.command import JSON_HELP, Arguments, aside, print_json, say, tell
from coterie.core.errors import UserError
from coterie.core.kernels import switch
from coterie.core.registry.data_sets import data_root, data_sets, find_file
from coterie.core.registry.papers import Paper, find_paper, papers, presets
from coterie.core.run.metrics_file import read_metrics
from coterie.core.run.runfolder import RunFolder
from coterie.core.settings.configuration import configure
from coterie.core.settings.sections import RunSettings


def check(paper: Paper) -> int:
    """Train the smoke preset twice and compare all numbers but times; return how many there are.

    Raises:
        UserError: they differ; the first difference is named.
    """
    with tempfile.TemporaryDirectory(prefix="coterie-") as folder:
        first, second = (_numbers(paper, Path(folder), name) for name in ("first", "second"))
    if first.keys() != second.keys():
        odd = sorted(first.keys() ^ second.keys())[0]
        raise UserError(f"two equal runs of {paper.name} differ: only one has '{odd}'")
    for name, value in first.items():
        if value != second[name]:
            raise UserError(
                f"two equal runs of {paper.name} differ in '{name}': {value} and {second[name]}"
            )
    return len(first)


def _numbers(paper: Paper, folder: Path, name: str) -> dict[str, Any]:
    """Everything a run measured, as text where it was printed, without times."""
    flags = ["--out", str(folder), "--run.name", name, "--run.progress", "false"]
    flags += ["--preset", "smoke", "--logger.wandb", "off"]
    with aside(active=True):
        import_module("coterie.core.training.train").train(paper, configure(paper, flags).settings)
    run = RunFolder.open(folder / paper.name / name)
    numbers = dict(run.read_json("summary.json")["metrics"])
    for row, values in enumerate(read_metrics(run.path)[1], 1):
        numbers |= {f"{key} in row {row}": value for key, value in values.items()}
    return {key: value for key, value in numbers.items() if "seconds" not in key}


# ``coterie doctor``: check this machine and the installation.

Check = tuple[str, bool, str]  # what, whether it is fine, in words
_ENOUGH = 1 << 30  # bytes on the disk


def run_doctor(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    parser = Arguments("doctor", "Check this machine and the installation.")
    out = RunSettings().folder
    parser.add_argument("--out", "--run.out", type=Path, default=out, help="folder of all runs")
    parser.add_argument("--data_root", "--data.root", metavar="DIR", help="default: $COTERIE_DATA")
    parser.add_argument("--determinism", metavar="PAPER", help="train twice in brief and compare")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    given = parser.parse_args(argv)
    if given.determinism:
        paper = find_paper(given.determinism)
        numbers = check(paper)
        if given.json:
            print_json({"paper": paper.name, "equal numbers": numbers})
        else:
            tell(f"Two equal runs of {paper.name} gave the same {numbers} numbers.")
        return
    rows = [
        {"check": what, "state": "ok" if fine else "look", "found": words}
        for what, fine, words in _checks(given.out, given.data_root)
    ]
    if given.json:
        print_json(rows)
        return
    longest = max(len(row["check"]) for row in rows)
    for row in rows:
        tell(row["found"], f"{row['check']:<{longest}}  {row['state']:<4}  ")
    say("All is well." if all(row["state"] == "ok" for row in rows) else "See what says look.")


def _checks(out: Path, root: str | None) -> Iterator[Check]:
    yield "python", True, f"{platform.python_version()} on {platform.system()}"
    yield _torch()
    for package in ("lightning", "torchmetrics", "jsonargparse"):
        yield _package(package)
    yield _wandb()
    yield _kernels()
    known = papers()
    yield "papers", bool(known), ", ".join(known) or "none: pip install ./packages/continual"
    yield "presets", bool(presets()), ", ".join(presets()) or "none are packed"
    yield _data(root)
    yield from _folder(out)


def _torch() -> Check:
    try:
        torch = import_module("torch")
    except ImportError as error:
        return "torch", False, f"cannot be imported: {error}"
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU"
    cores = os.cpu_count() or 1
    threads = torch.get_num_threads()
    return "torch", True, f"{torch.__version__} on {device}, {threads} threads, {cores} cores"


def _package(name: str) -> Check:
    try:
        return name, True, version(name)
    except PackageNotFoundError:
        return name, False, f"not installed: pip install {name}"


def _wandb() -> Check:
    if find_spec("wandb") is None:
        return "wandb", False, "not installed; runs still write metrics.csv"
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        known = "api.wandb.ai" in netrc.read_text()
    except (OSError, UnicodeDecodeError):
        known = False
    if known or os.environ.get("WANDB_API_KEY"):
        return "wandb", True, f"{version('wandb')}, logged in: --logger.wandb online sends runs"
    return "wandb", True, f"{version('wandb')}, no account: runs stay offline"


def _kernels() -> Check:
    """Numba may not know a Python yet, so nothing is wrong without."""
    if not switch.installed():
        return "kernels", True, "none; many users train faster: pip install numba"
    try:
        folder = import_module("coterie.core.kernels.products").kept_in()
    except UserError as error:
        return "kernels", False, str(error)
    where = f"kept in {folder}" if folder else "compiled in every process: set NUMBA_CACHE_DIR"
    return "kernels", True, f"numba {version('numba')}, {where}"


def _data(root: str | None) -> Check:
    folder = data_root(root)
    found = [
        entry.name
        for entry in data_sets().values()
        if not entry.files or find_file(folder / entry.name, *entry.files)
    ]
    return "data", True, f"{', '.join(found)} (in {folder})"


def _folder(out: Path) -> Iterator[Check]:
    out = out.expanduser()
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
        yield "run folder", True, f"{out} can be written"
    except OSError as error:
        yield "run folder", False, f"{out} cannot be written: {(error.strerror or '').lower()}"
    free = shutil.disk_usage(there).free
    yield "disk", free >= _ENOUGH, f"{free / (1 << 30):.1f} GiB free for {out}"
