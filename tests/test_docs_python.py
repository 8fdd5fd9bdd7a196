"""The scripts of docs/python.md run as they stand on the page."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "python.md").read_text()
SCRIPTS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.S | re.M)
PAPERS = {"f3crec", "pplr", "mtal", "page", "pf-msmtrec"}


def test_every_paper_has_a_short_script():
    assert {name for name in PAPERS if any(f'train("{name}"' in text for text in SCRIPTS)} == PAPERS
    assert max(len(text.splitlines()) for text in SCRIPTS) <= 20
    assert len(PAGE.splitlines()) <= 150


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:68 of 299 users have no list")
@pytest.mark.parametrize("text", SCRIPTS, ids=lambda text: re.findall(r'"(\S+?)"', text)[0])
def test_the_scripts_run(tmp_path, monkeypatch, capsys, drawn_anew, text):
    monkeypatch.setenv("WANDB_MODE", "disabled")  # whose process takes longer than these runs
    monkeypatch.chdir(tmp_path)
    exec(compile(text, "docs/python.md", "exec"), {"__name__": "example"})
    printed = capsys.readouterr().out
    if "UserError" in text:
        assert printed.splitlines()[-1].endswith("there are no items to recommend or to attack")
    if 'name="stronger"' not in text:
        assert printed.count("\n") >= 8
