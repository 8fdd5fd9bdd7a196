"""docs/choose.md: its commands can be said and run, and its numbers stand where its links lead."""

import re
import shlex
from pathlib import Path
from urllib.parse import unquote

import pytest
from tests.test_docs import FENCE, LINK, ROOT, parsing, read, slugs, words_of

from coterie.core.cli.main import main

PAGE = ROOT / "docs/choose.md"
TEXT = PAGE.read_text()
CODE = re.compile(r"`([^`]+)`")
RESULT = re.compile(r"(?<![\w.,])\d*\.\d+(?!\w|\.\d)|\d+(?= %)")  # .884, 97.12, 21 %
NUMBER = re.compile(r"(?<![\w.,])(?:\d*\.\d+|\d+)(?!\w|\.\d)")
HEADING = re.compile(r"^(#+) +(.+?)\s*$", re.MULTILINE)
LINES = [
    line.replace("\n  ", " ")
    for line in re.findall(r"^(?:\|.*|- .*(?:\n  .*)*|\w.*)$", TEXT, re.MULTILINE)
]
COMMANDS = [code for code in dict.fromkeys(CODE.findall(TEXT)) if code.startswith("coterie ")]
use = parsing  # the fixture, by which commands stop when they have read their words


def results(line: str) -> list[str]:
    """Measurements that a line tells, without those in commands and links."""
    return RESULT.findall(CODE.sub("", LINK.sub("", line)))


def section(page: Path, anchor: str) -> str:
    """A page's text below a heading, up to the next one of its level; without an anchor, all."""
    text = FENCE.sub("", page.read_text())
    if not anchor:
        return text
    headings = list(HEADING.finditer(text))
    for place, found in enumerate(headings):
        if slugs_of(found[2]) == anchor:
            behind = (h.start() for h in headings[place + 1 :] if len(h[1]) <= len(found[1]))
            return text[found.end() : next(behind, len(text))]
    raise AssertionError(f"{page.name} has no heading '{anchor}'")


def slugs_of(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")


def said_at(line: str) -> set[str]:
    """Every number of the sections that a line links to."""
    found: set[str] = set()
    for link in LINK.findall(line):
        path, _, anchor = unquote(link).partition("#")
        text = section((PAGE.parent / path).resolve(), anchor)
        found |= set(NUMBER.findall(text.replace("**", "")))
    return found


TOLD = [line for line in LINES if results(line)]


@pytest.mark.parametrize("line", TOLD, ids=lambda line: line[2:40])
def test_every_number_stands_where_its_line_links_to(line: str) -> None:
    assert set(results(line)) <= said_at(line)


def test_the_page_is_short_and_has_numbers_and_commands() -> None:
    assert len(TEXT.splitlines()) <= 120
    assert len(TOLD) >= 25
    assert len(COMMANDS) >= 12
    assert {anchor for anchor in map(slugs_of, re.findall(r"^## (.+)$", TEXT, re.M))} <= slugs(PAGE)


def test_a_number_that_is_not_there_is_seen() -> None:
    line = "| a | 97.0, 21 % `--x .5` | [x](results.md#page) |"
    assert results(line) == ["97.0", "21"]
    assert "97.0" in said_at(line)
    assert not {"97.3", "21"} & said_at(line)
    assert ".954" not in said_at(line)  # of the next section
    with pytest.raises(AssertionError, match="no heading"):
        said_at("[x](results.md#pag)")


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_can_be_said(line: str, use: None) -> None:
    read(words_of(line))


@pytest.mark.long
@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_runs_on_the_sample(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "--aggregate.secret" in line:
        pytest.importorskip("flwr")
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)[1:]
    assert main([*words, "--preset", "smoke", "--logger.wandb", "off"]) == 0
    assert list(tmp_path.glob("runs/*/*/summary.json"))
