"""Every page's links lead somewhere, and what its code blocks say can be said."""

import re
import shlex
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from coterie.core.cli import command
from coterie.core.cli.main import _run
from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper, papers
from coterie.core.settings.configuration import configure

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "packages/*/README.md", "benchmarks/README.md")
    for path in ROOT.glob(pattern)
)
# Pages whose Python blocks are run by tests of their own.
RUN_BY = {
    "docs/assisted.md": "tests/assisted/test_docs.py",
    "docs/lightning.md": "tests/core/front/test_network.py",
    "docs/methods.md": "tests/test_docs_methods.py",
    "docs/python.md": "tests/test_docs_python.py",
}
OTHERS = {  # programs of others, which no test starts
    *("cd", "cp", "curl", "docker", "git", "mkdir", "mlflow", "openssl", "pip", "python", "ray"),
    *("tensorboard", "wandb"),
}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def slugs(page: Path) -> set[str]:
    """Anchors of a page's headings, as sites that show markdown make them."""
    found: dict[str, int] = {}
    anchors = set()
    for heading in re.findall(r"^#+ +(.+?)\s*$", prose(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = found[slug] = found.get(slug, -1) + 1
        anchors.add(f"{slug}-{number}" if number else slug)
    return anchors


@each_page
def test_every_link_leads_somewhere(page):
    for link in LINK.findall(prose(page)):
        if re.match(r"https?://[\w.-]+(/|$)", link):
            continue  # there is no network here
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        assert target.is_relative_to(ROOT), f"{link} leads out of the repository"
        assert not anchor or anchor in slugs(target), f"{link}: no such heading"


def test_links_that_lead_nowhere_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A `b` c\n\n## A b c\n[x](gone.md) [y](#a-b-c-1)\n```\n# [z](no)\n```\n")
    assert LINK.findall(prose(page)) == ["gone.md", "#a-b-c-1"]
    assert slugs(page) == {"a-b-c", "a-b-c-1"}


def test_every_page_is_in_the_sites_navigation():
    text = re.sub(r"!!python\S*", "", (ROOT / "mkdocs.yml").read_text())
    named = set(re.findall(r"[\w/-]+\.md", str(yaml.safe_load(text)["nav"])))
    pages = {str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")}
    assert pages <= named, "a page that nobody finds"


def python_blocks(page: Path) -> list[str]:
    return [text for language, text in FENCE.findall(page.read_text()) if language == "python"]


@pytest.mark.parametrize("name", sorted(RUN_BY))
def test_a_page_that_is_run_elsewhere_is_read_there(name):
    assert python_blocks(ROOT / name)
    assert Path(name).name in (ROOT / RUN_BY[name]).read_text()


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if python_blocks(page) and str(page.relative_to(ROOT)) not in RUN_BY],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_the_python_of_every_other_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    for text in python_blocks(page):
        exec(compile(text, str(page), "exec"), names)


# Commands are read by the very parsers that would run them; nothing is trained.


class Parsed(Exception):
    """The words were understood."""


def lines(page: Path) -> list[str]:
    """Commands of a page, each on one line without its comment."""
    blocks = [text for language, text in FENCE.findall(page.read_text()) if language in SHELLS]
    joined = "\n".join(blocks).replace("\\\n", " ")
    found = (re.sub(r"(^|\s)#.*", "", line).strip() for line in joined.splitlines())
    return [line for line in found if line and program(line) in {"coterie", "make", *OTHERS}]


SHELLS = ("", "bash", "sh")
NEW = ("PAPER", "mypaper", "otherpaper")  # stand for any paper


def program(line: str) -> str:
    words = re.sub(r"^(\w+=\S* )+", "", line).split()
    return Path(words[0]).name if words else ""


def words_of(line: str) -> list[str]:
    words = shlex.split(re.sub(r"^(\w+=\S* )+", "", line.partition(" > ")[0]))
    return ["f3crec" if word in NEW else word for word in words[1:]]


@pytest.fixture
def parsing(monkeypatch):
    """Commands that stop when they have read their words."""
    known = command.Arguments.parse_known_args

    def some(self, args=None, namespace=None):
        raise Parsed(known(self, args, namespace)[1])

    def whole(self, args=None, namespace=None):
        _, rest = known(self, args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        raise Parsed([])

    monkeypatch.setattr(command.Arguments, "parse_known_args", some)
    monkeypatch.setattr(command.Arguments, "parse_args", whole)


def read(words: list[str]) -> None:
    """Let a command read its words.

    Raises:
        UserError: it does not understand them.
    """
    if words[0] == "train":
        configure(*command.paper_first(words[1:], "train"))
        return
    if words in (["--help"], ["--version"], ["help"]) or words[-1] == "--help":
        return
    with pytest.raises(Parsed) as parsed:
        _run(words)
    if rest := parsed.value.args[0]:
        own = words[0] not in known_commands()  # a command that one paper has
        configure(find_paper(words[0] if own else words[1]), rest)


COMMANDS = sorted({line for page in PAGES for line in lines(page)})


@pytest.mark.parametrize("line", [line for line in COMMANDS if program(line) == "coterie"])
def test_a_command_of_coterie_can_be_said(line, parsing):
    if " | " in line:  # a list of commands
        known = {
            *known_commands(),
            *(each for paper in papers().values() for each in paper.commands),
        }
        assert {part.split()[-1] for part in line.split(" | ")} - {"f3crec"} <= known
        return
    read(words_of(line))


def known_commands() -> list[str]:
    from coterie.core.cli.main import COMMANDS as known

    return list(known)


def test_the_targets_of_make_exist():
    asked = {words_of(line)[0] for line in COMMANDS if program(line) == "make"}
    targets = re.findall(r"^\.PHONY: (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"train", "test", "docs"} <= asked
    assert asked <= set(targets)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["train", "f3crec", "--sed", "1"], "sed"),
        (["recommend", "--run", "X", "--all", "--usr", "1"], "usr"),
        (["table", "f3crec", "--table", "2", "--modl.name", "x"], "modl"),
        (["llm", "atack"], "atack"),
    ],
)
def test_a_command_that_cannot_be_said_is_found(words, complaint, parsing):
    with pytest.raises(UserError, match=complaint):
        read(words)
