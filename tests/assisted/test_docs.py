"""The example of docs/assisted.md runs and prints what the page shows."""

import re
from pathlib import Path

import pytest

from coterie.assisted.objective import OBJECTIVES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "assisted.md").read_text()
NUMBER = re.compile(r"\d+\.\d+")


def test_the_example_prints_what_is_shown(capsys, monkeypatch) -> None:
    monkeypatch.setitem(OBJECTIVES, "cautious", None)  # taken out again afterwards
    code, shown = re.findall(r"^```(?:python)?\n(.*?)^```$", PAGE, re.S | re.M)[:2]
    exec(compile(code, "docs/assisted.md", "exec"), {"__name__": "example"})
    printed = capsys.readouterr().out
    assert NUMBER.sub("", printed) == NUMBER.sub("", shown)
    ours, theirs = ([float(x) for x in NUMBER.findall(text)] for text in (printed, shown))
    assert len(ours) == 3
    assert ours == pytest.approx(theirs, abs=0.03)
