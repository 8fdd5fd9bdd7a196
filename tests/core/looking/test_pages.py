"""Reports and the list of runs in a real browser: quiet, whole, legible, and without a network."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.core.looking.folders import make_run, scores

from coterie.core.cli.main import main

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("no chromium is installed to open pages with", allow_module_level=True)
from playwright.sync_api import Browser, Page, expect, sync_playwright  # noqa: E402

pytestmark = pytest.mark.long

CODE = "import sys; from coterie.core.cli.main import main; sys.exit(main())"
COTERIE = (sys.executable, "-c", CODE)
WIDTHS = (400, 1400)
EVIL = '<script>document.title="owned"</script>"><img src=x onerror=document.title="owned">'
SECTIONS = {
    "one": [
        "What was run",
        "Results",
        "Curves",
        "Clients",
        "What crosses the boundary",
        "Differential privacy",
        "Cost",
        "Warnings and notes",
        "All numbers",
        "Settings",
    ],
    "several": [
        "What is compared",
        "Warnings",
        "Results",
        "Is a difference more than noise?",
        "Curves",
        "Who loses",
        "What leaves the clients",
        "Cost",
        "Settings that differ",
        "Each run",
    ],
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("looked")


@pytest.fixture(scope="module")
def training(place: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A training of a paper, as its own process, that ends by itself after four rounds."""
    flags = ["--rounds", "4", "--run.out", str(place / "runs"), "--logger.wandb", "off"]
    command = [*COTERIE, "train", "page", "--preset", "smoke", *flags]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    yield process
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def ui(place: Path, training: "subprocess.Popen[bytes]") -> Iterator[str]:
    """The address of `coterie ui` over the folder in which the training is."""
    (place / "runs").mkdir(exist_ok=True)
    command = [*COTERIE, "ui", "--runs", str(place / "runs"), "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    )
    assert process.stdout is not None
    said = process.stdout.readline() + process.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+", said)
    assert found, said
    yield found[0]
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 0


class Opened:
    """A page with what it said and asked for."""

    def __init__(self, browser: Browser, width: int, scheme: str = "light") -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        self.page: Page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def alone(self) -> None:
        """Let no request leave; every one is recorded."""
        self.context.route(re.compile("^(?!file:|data:)"), lambda route: route.abort())

    def overflow(self) -> float:
        return self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )


def several(root: Path) -> list[str]:
    """Three seeds of two methods, with clients, and a name that would like to be markup."""
    return [
        str(
            make_run(
                root,
                f"{method}{seed}",
                metrics=scores(0.5 + 0.01 * seed),
                method=method,
                seed=seed,
                clients=[0.1 * i + 0.01 * seed for i in range(10)],
                notes=[EVIL],
                model={"name": EVIL},
            )
        )
        for method in ("page", "fedavg")
        for seed in range(3)
    ]


@pytest.fixture(scope="module")
def reports(place: Path) -> dict[str, Path]:
    """A report of one run, and one of several."""
    paths = several(place / "made")
    out = {"one": place / "one.html", "several": place / "several.html"}
    assert main(["report", paths[0], "--out", str(out["one"])]) == 0
    assert main(["report", *paths, "--out", str(out["several"])]) == 0
    return out


@pytest.mark.parametrize("kind", ["one", "several"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_report_is_quiet_whole_and_fits(
    browser: Browser, reports: dict[str, Path], kind: str, width: int
) -> None:
    opened = Opened(browser, width, "dark" if width == 400 else "light")
    opened.alone()
    opened.page.goto(reports[kind].as_uri())
    assert opened.said == []
    assert [url for url in opened.asked if not url.startswith(("file:", "data:"))] == []
    page = opened.page
    assert page.locator("h2").all_inner_texts() == SECTIONS[kind]
    assert page.title() != "owned"
    assert page.locator("script, img").count() == 0
    assert opened.overflow() <= 0
    for chart in page.locator("figure svg").all():
        assert chart.locator("path title, line, rect").count() > 0
        box = chart.bounding_box()
        assert box is not None
        assert 200 < box["width"] <= width
    assert page.locator("figure svg").count() >= 3
    opened.context.close()


def test_words_have_contrast(browser: Browser, reports: dict[str, Path]) -> None:
    """4.5 to 1 for every text, computed from what the browser draws, in light and dark."""
    for scheme in ("light", "dark"):
        opened = Opened(browser, 1400, scheme)
        opened.page.goto(reports["one"].as_uri())
        pairs = opened.page.evaluate(COLOURS)
        assert len(pairs) > 50
        low = [(text, ratio) for text, ratio in pairs if ratio < 4.5]
        assert low == []
        opened.context.close()


COLOURS = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => { v /= 255;
      return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (at) => { for (; at; at = at.parentElement) {
    const found = parse(getComputedStyle(at).backgroundColor);
    if (found.length === 3 || found[3] > 0) return found.slice(0, 3); }
    return [255, 255, 255]; };
  const found = [];
  for (const at of document.querySelectorAll("body *")) {
    if (at.closest("details:not([open]) > *:not(summary)")) continue;
    if (![...at.childNodes].some((one) => one.nodeType === 3 && one.data.trim())) continue;
    if (at.tagName === "title") continue;
    const style = getComputedStyle(at), inside = at.closest("svg");
    const ink = parse(inside ? style.fill : style.color).slice(0, 3);
    const [a, b] = [light(ink), light(ground(at))].sort((x, y) => y - x);
    found.push([at.textContent.trim().slice(0, 30), (a + 0.05) / (b + 0.05)]);
  }
  return found; }"""


def test_headings_and_tables_are_named(browser: Browser, reports: dict[str, Path]) -> None:
    opened = Opened(browser, 1400)
    opened.page.goto(reports["several"].as_uri())
    page = opened.page
    assert page.locator("h1").count() == 1
    tables = page.locator("table").count()
    assert page.locator("table > caption").count() == tables > 5
    assert page.locator("thead th:not([scope=col]), tbody th:not([scope=row])").count() == 0
    unnamed = page.locator("svg:not([role=img]), svg:not([aria-label])").count()
    assert unnamed == 0
    opened.context.close()


def test_the_list_is_live_and_leads_to_reports(
    browser: Browser, ui: str, training: "subprocess.Popen[bytes]"
) -> None:
    opened = Opened(browser, 1400)
    page = opened.page
    page.goto(ui)
    row = page.locator("#rows tr")
    rounds = page.locator("#rows tr td:nth-child(8)")
    expect(rounds).to_have_text(re.compile("^[1-4]( of 4)?$"), timeout=60_000)
    early = row.locator("td").all_inner_texts()
    assert early[1:4] == ["page", "page", "synthetic"]
    expect(row).to_have_class("finished", timeout=90_000)
    late = row.locator("td").all_inner_texts()
    assert late[5:7] == ["finished", "4"]
    assert early != late  # the row changed while nobody loaded the page again
    assert training.wait(timeout=60) == 0
    page.locator("#rows a").click()
    page.wait_for_selector("h2")
    assert page.locator("h1").inner_text() == "PAGE on synthetic, seed 0"
    assert page.locator("h2").all_inner_texts() == SECTIONS["one"]
    assert opened.said == []
    assert {url.split("/")[2] for url in opened.asked if url.startswith("http")} == {
        ui.removeprefix("http://")
    }
    opened.context.close()


def test_the_list_is_searched_sorted_and_compared(browser: Browser, ui: str, place: Path) -> None:
    several(place / "runs" / "more")
    (place / "runs" / "broken").mkdir()
    (place / "runs" / "broken" / "config.yaml").write_text("a: [")
    opened = Opened(browser, 400, "dark")
    page = opened.page
    page.goto(ui)
    expect(page.locator("#rows tr.damaged")).to_have_count(1)
    assert opened.overflow() <= 0
    assert "not valid YAML" in page.locator("#rows tr.damaged").inner_text()
    page.fill("#search", "fedavg made-up")
    assert page.locator("#rows tr").count() == 0
    page.fill("#search", "more fedavg")
    assert page.locator("#rows tr").count() == 3
    page.fill("#search", "")
    page.select_option("#of-method", "fedavg")
    page.click("[data-sort=seed]")
    assert page.locator("#rows td:nth-child(6)").all_inner_texts() == ["0", "1", "2"]
    page.click("[data-sort=seed]")
    assert page.locator("#rows td:nth-child(6)").all_inner_texts() == ["2", "1", "0"]
    for box in page.locator("#rows input").all():
        box.check()
    page.select_option("#of-method", "")
    page.fill("#search", "more/page0")
    page.locator("#rows input").check()
    page.fill("#search", "more")
    assert page.locator("#rows input:checked").count() == 4  # ticks outlast a filter
    page.click("button[type=submit]")
    page.wait_for_selector("h2")
    assert page.locator("h2").all_inner_texts() == SECTIONS["several"]
    assert page.title() != "owned"
    assert opened.said == []
    opened.context.close()
