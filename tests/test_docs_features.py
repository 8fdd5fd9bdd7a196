"""docs/features.md: what its tables name is there, and each row that is not whole says why."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
from tests.test_docs import ROOT, known_commands, parsing, prose, read, words_of

import coterie
from coterie.core.errors import UserError

PAGE = ROOT / "docs/features.md"
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in prose(PAGE).splitlines()
    if line.startswith("|") and not line.startswith(("| feature", "|---"))
]
NAMED = [name for row in ROWS for cell in row for name in re.findall(r"`([^`]+)`", cell)]
KEYS = (ROOT / "docs/wandb.md").read_text()
START = (ROOT / "docs/start.md").read_text()
OTHERS = (  # packages and flags beside the commands
    *("tensorboardX", "mlflow-skinny", "--sed", "--seed", "--method local", ".tex", ".md"),
    *("configs/", "docs/tutorials/"),
)
use = parsing  # the fixture, by which commands stop when they have read their words


def test_the_tables_are_those_of_the_comparison() -> None:
    assert len(ROWS) == 42 + 15
    for feature, answer, by, why in ROWS:
        assert answer in ("yes", "partly", "no"), feature
        assert by, feature
        assert why or answer == "yes", f"{feature}: why not?"
    assert len({row[0] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("line", [name for name in dict.fromkeys(NAMED) if name[:8] == "coterie "])
def test_a_command_can_be_said(
    line: str, use: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text("seed: 3\n")
    words = words_of(line)
    if words[-1] == "…":
        assert words[0] in known_commands()
    elif "--sed" in words:  # the row of misspelt settings
        with pytest.raises(UserError, match="did you mean '--seed'"):
            read(words)
    else:
        read(words)


def exists(name: str) -> bool:
    """Whether what a page names is there: a part of the package, of a run, a file, a key."""
    if name.startswith("run."):
        return hasattr(coterie.Run, name.removeprefix("run.").removesuffix("()"))
    if name.startswith("coterie."):
        module, _, last = name.rpartition(".")
        return hasattr(import_module(module), last)
    if name.startswith("make "):
        return f".PHONY: {name[5:]}\n" in (ROOT / "Makefile").read_text()
    if name.startswith("python -m benchmarks"):
        return (ROOT / Path(*shlex.split(name)[2].split("."))).with_suffix(".py").exists()
    if re.fullmatch(r"\w+\.(csv|json|npz)", name):
        return f"`{name}`" in START
    if "/" in name and not name.endswith("/"):
        return f"`{name}`" in KEYS
    return name in OTHERS or name == "lightning.Trainer"


@pytest.mark.parametrize("name", [name for name in dict.fromkeys(NAMED) if name[:8] != "coterie "])
def test_a_name_exists(name: str) -> None:
    assert exists(name)


def test_what_does_not_exist_is_seen() -> None:
    for name in ("run.nothing", "coterie.nothing", "make nothing", "no.csv", "no/key", "nothing"):
        assert not exists(name)
