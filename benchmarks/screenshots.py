"""Screenshots for the docs: ``python -m benchmarks.screenshots OUT``.

Trains what is absent, a quick run of each paper and seeds of a comparison, makes their reports, and
takes pictures of these and of ``coterie ui`` in a Chromium that is installed, wide and narrow, in
light and dark.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from coterie.core.cli.command import say
from coterie.core.cli.main import main as coterie
from coterie.core.errors import UserError
from coterie.core.registry.papers import papers

SIZES = {"wide": 1400, "narrow": 400}
SCHEMES = ("light", "dark")
COMPARED = ("page", "fedavg", "local")
SEEDS = 3
_QUICK = ("--preset", "smoke", "--logger.wandb", "off")
_CODE = "import sys; from coterie.core.cli.main import main; sys.exit(main())"


def main(argv: Sequence[str] | None = None) -> None:
    """Take all pictures; what is in OUT already is drawn again, but nothing is trained twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the pictures")
    parser.add_argument("--runs", type=Path, help="folder of the runs; default: OUT/runs")
    given = parser.parse_args(argv)
    runs = given.runs or given.out / "runs"
    given.out.mkdir(parents=True, exist_ok=True)
    pages = reports(runs, given.out)
    chromium = shutil.which("chromium")
    if chromium is None:
        raise UserError("no chromium is installed to take pictures with")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, page in pages.items():
            take(browser, page.absolute().as_uri(), given.out, name)
        with listed(runs) as address:
            take(browser, address, given.out, "ui", wait="#rows:not(:has(tr.unread)) tr")
        browser.close()


def reports(runs: Path, out: Path) -> dict[str, Path]:
    """Train what is absent, and write a report of each paper and one of a comparison."""
    made = {}
    for paper in papers():
        run = trained(runs, paper, paper, 0)
        made[f"report-{paper}"] = written(out, f"report-{paper}", [run])
    several = [trained(runs, "page", method, seed) for method in COMPARED for seed in range(SEEDS)]
    made["report-comparison"] = written(out, "report-comparison", several)
    return made


def trained(runs: Path, paper: str, method: str, seed: int) -> Path:
    """The folder of a quick run, which is trained where it is absent."""
    name = f"{method}-seed{seed}"
    folder = runs / paper / name
    if not (folder / "summary.json").is_file():
        say(f"training {paper} {name}")
        flags = ["--method", method, "--seed", str(seed), "--run.out", str(runs)]
        _done(["train", paper, *_QUICK, *flags, "--run.name", name])
    return folder


def written(out: Path, name: str, runs: Sequence[Path]) -> Path:
    """A report of runs."""
    page = out / f"{name}.html"
    _done(["report", *map(str, runs), "--out", str(page)])
    return page


def take(browser: Browser, address: str, out: Path, name: str, wait: str = "h1") -> list[Path]:
    """Take a page in all sizes and schemes, whole.

    Args:
        browser: that opens it.
        address: of the page.
        out: folder of the pictures.
        name: their names begin so.
        wait: selector of what must be there first.
    """
    taken = []
    for size, width in SIZES.items():
        for scheme in SCHEMES:
            context = browser.new_context(
                viewport={"width": width, "height": 900},
                color_scheme=scheme,
                device_scale_factor=2 if size == "narrow" else 1,
            )
            page = context.new_page()
            page.goto(address)
            page.locator(wait).first.wait_for()
            path = out / f"{name}-{size}-{scheme}.png"
            page.screenshot(path=path, full_page=True)
            context.close()
            taken.append(path)
    say(f"{name}: {len(taken)} pictures")
    return taken


@contextmanager
def listed(runs: Path) -> Iterator[str]:
    """The address of ``coterie ui`` over a folder of runs, meanwhile."""
    command = [sys.executable, "-c", _CODE, "ui", "--runs", str(runs), "--port", "0"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "400"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        if found is None:
            raise UserError("coterie ui did not start")
        yield found[0]
    finally:
        process.terminate()
        process.wait()


def _done(words: Sequence[str]) -> None:
    if coterie(words):
        raise UserError(f"coterie {' '.join(words)} failed")


if __name__ == "__main__":
    main()
