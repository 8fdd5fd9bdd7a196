"""The example of docs/methods.md runs and prints what the page shows."""

import re
from pathlib import Path

import pytest

from coterie.core.front import method_settings
from coterie.core.methods.registry import METHODS

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "methods.md").read_text()
NUMBER = re.compile(r"\d+\.\d+")


def block(language: str) -> str:
    """Last code block of a language, the long form; "" is a block of output."""
    return blocks(language)[-1]


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", _outside(language), re.S | re.M)
    assert found, f"no block '{language}'"
    return found


def _outside(language: str) -> str:
    """The page, without the Python block where output is looked for."""
    return PAGE if language else re.sub(r"^```python\n.*?^```$", "", PAGE, flags=re.S | re.M)


def test_the_page_is_short():
    assert len(PAGE.splitlines()) <= 220


@pytest.mark.long
def test_the_example_prints_what_is_shown(capsys):
    exec(compile(block("python"), "docs/methods.md", "exec"), {"__name__": "example"})
    printed, shown = capsys.readouterr().out, block("")
    assert NUMBER.sub("", printed) == NUMBER.sub("", shown)
    assert len(NUMBER.findall(shown)) == 6
    # Other machines round otherwise, and a sample more or less is right.
    ours, theirs = ([float(x) for x in NUMBER.findall(text)] for text in (printed, shown))
    assert ours == pytest.approx(theirs, abs=0.02)


def test_the_short_form_comes_first_and_runs(capsys):
    short = blocks("python")[0]
    names = {"__name__": "example"}
    exec(compile(short, "docs/methods.md", "exec"), names)
    assert float(capsys.readouterr().out.splitlines()[-1]) > 0.95
    assert type(names["model"]) is type(names["own"]) is names["Net"]
    assert PAGE.index(short) < PAGE.index(block("python"))


def test_every_method_has_its_row():
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.partition("## Where they differ")[0], re.M)
    assert sorted(row.replace("_", "") for row in rows) == sorted(
        name.replace("-", "") for name in METHODS
    )


@pytest.mark.long
def test_a_method_of_ones_own_runs(capsys, monkeypatch):
    monkeypatch.setattr(method_settings, "_named", {})
    short, own, _ = blocks("python")
    assert len(own.split("fed = ")[0].strip().splitlines()) <= 30
    names = {"__name__": "example"}
    exec(compile(short, "docs/methods.md", "exec"), names)
    exec(compile(own, "docs/methods.md", "exec"), names)
    assert 0.5 < float(capsys.readouterr().out.splitlines()[-1]) < 1
    assert "cautious" in names["coterie"].methods
