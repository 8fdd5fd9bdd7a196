"""What an extra brings is asked for in one line where it is missing."""

import re
import tomllib
from pathlib import Path

import pytest

from coterie.core.errors import UserError
from coterie.core.extras import require

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = tomllib.loads((ROOT / "shared" / "pyproject.toml").read_text())
CALL = re.compile(r"\brequire\(\s*\"(\w+)\"")


def test_what_is_there_passes():
    require("ray", "engine 'ray'", "json", "re")


def test_the_line_names_the_extra_and_all_that_is_missing():
    with pytest.raises(UserError) as refused:
        require("ui", "coterie ui", "json", "no_such_a", "no_such_b")
    assert str(refused.value) == (
        "coterie ui needs no_such_a and no_such_b, which is not installed: say pip install "
        "'coterie-core[ui]' with coterie's constraints.txt"
    )


def test_every_extra_that_is_asked_for_exists():
    sources = (ROOT / "shared" / "src").rglob("*.py")
    asked = {name for path in sources for name in CALL.findall(path.read_text())}
    assert {"ray", "flower", "ckks", "datasets"} <= asked
    assert asked <= set(MANIFEST["project"]["optional-dependencies"])
