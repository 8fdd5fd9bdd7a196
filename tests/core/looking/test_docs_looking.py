"""The commands of docs/looking.md run as they stand on the page."""

import re
import shlex
from pathlib import Path

import pytest
from tests.core.looking.folders import make_run, scores

from coterie.core.cli.main import main
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.runfolder import default_name
from coterie.core.settings.configuration import configure

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "looking.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```$", PAGE, re.S | re.M)
COMMANDS = [shlex.split(line)[1:] for block in BLOCKS for line in block.splitlines()]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the runs of the page are."""
    monkeypatch.chdir(tmp_path)
    for method in ("page", "fedavg"):
        name = f"synthetic-{method}-softmax-seed0"
        make_run(Path("runs/page"), name, metrics=scores(0.5), method=method)
    return tmp_path


def test_commands_of_the_page_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [words[0] for words in COMMANDS]
    assert names == ["train", "train", "compare", "report", "ui"]
    for words in COMMANDS:
        if words[0] == "train":  # what it writes is there already
            words = [*words, "--print_config"]
        if words[0] == "ui":  # it would not end
            words = [*words, "--help"]
        try:
            status = main(words)
        except SystemExit as end:
            status = int(end.code or 0)
        assert status == 0, words
    assert (here / "runs/page/synthetic-page-softmax-seed0/report.html").is_file()
    assert "page  fedavg" in capsys.readouterr().out


def test_the_runs_of_the_page_have_the_names_that_training_gives(here: Path) -> None:
    paper = find_paper("page")
    make = load(paper.experiment)
    asked = [make(configure(paper, words[2:]).settings).settings for words in COMMANDS[:2]]
    given = [default_name(paper, settings) for settings in asked]
    assert [f"runs/page/{name}" for name in given] == COMMANDS[2][1:]
