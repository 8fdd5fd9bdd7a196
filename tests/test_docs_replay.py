"""The commands and the script of docs/replay.md run as they stand on the page."""

import re
import shlex
from pathlib import Path

import pytest

from coterie.core.cli.main import main

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "replay.md").read_text()


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_run_and_answer_as_the_page_has_it(page, drawn_anew, capsys):
    [commands] = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.S | re.M)
    train, show, save = (shlex.split(line, comments=True)[1:] for line in commands.splitlines())
    assert main(train) == 0
    capsys.readouterr()
    assert main(show) == 0
    printed = capsys.readouterr().out.splitlines()
    answer = PAGE.split("of the answer:\n\n```\n")[1].split("```")[0]
    shown = answer.splitlines()
    assert printed[: len(shown) - 1] == shown[:-1]
    assert (
        printed[len(shown) - 1].split()[:4] == shown[-1].split()[:4]
    )  # values may round otherwise
    assert main(save) == 0
    assert len(list((page / "debug").glob("*.safetensors"))) == 4
    [script] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.S | re.M)
    exec(compile(script, "docs/replay.md", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out.splitlines()[-1].endswith("transcript")
