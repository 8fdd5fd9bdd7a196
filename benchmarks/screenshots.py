"""Screenshots for the docs: ``python -m benchmarks.screenshots docs/screenshots``.

Trains what is absent, a quick run of each paper on its built-in sample and seeds of a comparison,
makes their reports, and takes pictures of these, of ``coterie ui`` and of the docs site in a
Chromium that is installed. ``--whole`` takes every page from its head to its end, wide and narrow,
in light and dark: to look for what is wrong, not for the docs.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from coterie.core.cli.command import say
from coterie.core.cli.main import main as coterie
from coterie.core.errors import UserError
from coterie.core.registry.papers import papers

COMPARED = ("page", "fedavg", "local")
SEEDS = 3
SITE = {
    "start": "start",
    "tutorial": "tutorials/what-leaves",
    "how-to": "serving",
    "concept": "concepts/ledger",
    "reference": "reference/core-federation",
    "results": "results",
}
"""Pages of the docs site, by the names of their pictures."""
WIDE, NARROW = 1400, 400
HEIGHTS = {"ui": 700, "report": 1900}
COLOURS = 96  # of a picture: text and flat charts need no more
_QUICK = ("--preset", "smoke", "--logger.wandb", "off")
_CODE = "import sys; from coterie.core.cli.main import main; sys.exit(main())"
_LISTED = "#rows:not(:has(tr.unread)) tr"  # of the list, once all runs are read


@dataclass(frozen=True)
class Shot:
    """A picture of a page.

    Attributes:
        page: what it shows.
        width: of the window, in pixels of CSS.
        height: of the picture; None takes the page to its end.
        scheme: light or dark.
    """

    page: str
    width: int = WIDE
    height: int | None = 1250
    scheme: str = "light"

    @property
    def file(self) -> str:
        """Name of the file; that of a wide and light one is the page's."""
        narrow, dark = "-narrow" * (self.width == NARROW), "-dark" * (self.scheme == "dark")
        return f"{self.page}{narrow}{dark}.png"


def of_docs(pages: Sequence[str]) -> list[Shot]:
    """The pictures of the docs: the head of each page, and some of a phone or in the dark."""
    more = [
        Shot("report-comparison", height=1900, scheme="dark"),
        Shot("report-comparison", NARROW, 900),
        Shot("ui", height=700, scheme="dark"),
        Shot("ui", NARROW, 900),
        Shot("site-start", scheme="dark"),
    ]
    return [
        *(Shot(page, height=HEIGHTS.get(page.partition("-")[0], 1250)) for page in pages),
        *more,
    ]


def of_all(pages: Sequence[str]) -> list[Shot]:
    """Every page as a whole, wide and narrow, in light and dark."""
    return [
        Shot(page, width, None, scheme)
        for page in pages
        for width in (WIDE, NARROW)
        for scheme in ("light", "dark")
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Take the pictures; those that are there are drawn again, but nothing is trained twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the pictures")
    parser.add_argument("--runs", type=Path, default=Path("runs/screenshots"), help="of the runs")
    parser.add_argument("--site", type=Path, default=Path("site"), help="what make docs has built")
    parser.add_argument("--whole", action="store_true", help="every page whole, in all forms")
    given = parser.parse_args(argv)
    chromium = shutil.which("chromium")
    if chromium is None:
        raise UserError("no chromium is installed to take pictures with")
    addresses = site_pages(given.site) | reports(given.runs)
    given.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, listed(given.runs) as address:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        addresses["ui"] = address
        for shot in (of_all if given.whole else of_docs)(list(addresses)):
            take(browser, addresses[shot.page], given.out, shot)
        browser.close()


def site_pages(site: Path) -> dict[str, str]:
    """Addresses of pages of the docs site.

    Raises:
        UserError: it is not built.
    """
    found = {f"site-{name}": site / place / "index.html" for name, place in SITE.items()}
    for page in found.values():
        if not page.is_file():
            raise UserError(f"{page} is missing: build the docs site first, by make docs")
    return {name: page.absolute().as_uri() for name, page in found.items()}


def reports(runs: Path) -> dict[str, str]:
    """Train what is absent; addresses of a report of each paper and of a comparison."""
    made = {f"report-{paper}": [trained(runs, paper, paper, 0)] for paper in papers()}
    made["report-comparison"] = [
        trained(runs, "page", method, seed) for method in COMPARED for seed in range(SEEDS)
    ]
    return {name: written(runs / f"{name}.html", some) for name, some in made.items()}


def trained(runs: Path, paper: str, method: str, seed: int) -> Path:
    """The folder of a quick run, which is trained where it is absent."""
    name = f"{method}-seed{seed}"
    folder = runs / paper / name
    if not (folder / "summary.json").is_file():
        say(f"training {paper} {name}")
        flags = ["--method", method, "--seed", str(seed), "--run.out", str(runs)]
        _done(["train", paper, *_QUICK, *flags, "--run.name", name])
    return folder


def written(page: Path, runs: Sequence[Path]) -> str:
    """The address of a report of runs."""
    _done(["report", *map(str, runs), "--out", str(page)])
    return page.absolute().as_uri()


def take(browser: Browser, address: str, out: Path, shot: Shot) -> None:
    """Take a picture, in as few colours as do for a page.

    Args:
        browser: that opens the page.
        address: of the page.
        out: folder of the pictures.
        shot: which.
    """
    context = browser.new_context(
        viewport={"width": shot.width, "height": shot.height or 900},
        color_scheme="dark" if shot.scheme == "dark" else "light",
        device_scale_factor=2 if shot.width == NARROW else 1,
    )
    page = context.new_page()
    page.goto(address)
    page.locator(_LISTED if shot.page == "ui" else "h1").first.wait_for()
    png = page.screenshot(full_page=shot.height is None)
    context.close()
    whole = Image.open(io.BytesIO(png)).convert("RGB")
    few = whole.quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(out / shot.file, optimize=True)
    say(f"{out / shot.file}: {(out / shot.file).stat().st_size / 1e3:.0f} kB")


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
