"""The type checker refuses what would fail in the first round, and accepts the right thing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVER = """\
from dataclasses import dataclass
from torch import Tensor
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.uploads import Sum
from coterie.core.protocol.messages import Down, Reveals, Up, carries, leaves
from coterie.core.protocol.messages import Step


@dataclass(frozen=True)
class Table(Down):
    items: Tensor = carries("item table")


@dataclass(frozen=True)
class Query(Down):
    split: str = carries("what is evaluated")


@dataclass(frozen=True)
class Update(Up):
    items: Tensor = leaves("change of the table", reveals=Reveals.PARAMETERS)


UPDATE = Step("update", Table, Update)


def round(cohort: Cohort, table: Table, query: Query) -> Tensor:
    {line}
    assert replies.up is not None
    return replies.up.items.sum(0)
"""
LINES = {
    "right": "replies = cohort.ask(UPDATE, table)",
    "folded": "replies = cohort.ask(UPDATE, table); cohort.ask(UPDATE, table, reduce=Sum())",
    "wrong step": "replies = cohort.ask(UPDAET, table)",
    "step by name": 'replies = cohort.ask("update", table)',
    "wrong message": "replies = cohort.ask(UPDATE, query)",
    "misspelt field": "replies = cohort.ask(UPDATE, table); replies.up and replies.up.itms",
    "misspelt sum": (
        "replies = cohort.ask(UPDATE, table); sums = cohort.ask(UPDATE, table, reduce=Sum()); "
        "sums.total and sums.total.itms"
    ),
}
WRONG = {
    "wrong step": "UPDAET",
    "step by name": "No overload variant",
    "wrong message": "",
    "misspelt field": '"Update" has no attribute "itms"',
    "misspelt sum": '"Update" has no attribute "itms"',
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int, str]]]:
    """Errors of the type checker by case: line and text; one run for all files."""
    pytest.importorskip("mypy")
    folder = tmp_path_factory.mktemp("servers")
    for name, line in LINES.items():
        path = folder / f"{name.replace(' ', '_')}.py"
        path.write_text(SERVER.replace("{line}", line))
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    files = [str(path) for path in sorted(folder.glob("*.py"))]
    # The options of `make lint`, no other ones: what that has kept of the imported modules is used.
    done = subprocess.run(
        [*command, "--no-error-summary", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    errors: dict[str, list[tuple[int, str]]] = {name: [] for name in LINES}
    for line in done.stdout.splitlines():
        if match := re.match(r".*/(\w+)\.py:(\d+): error: (.*)", line):
            errors[match[1].replace("_", " ")].append((int(match[2]), match[3]))
    assert done.returncode == 1, done.stdout + done.stderr
    return errors


@pytest.mark.parametrize("case", ["right", "folded"])
def test_what_is_right_passes(found, case):
    assert found[case] == []


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused_where_it_stands(found, case):
    line = SERVER.splitlines().index("    {line}") + 1
    assert {number for number, _ in found[case]} == {line}
    assert WRONG[case] in " ".join(text for _, text in found[case])
