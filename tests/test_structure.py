"""The house rules that can be measured, over the syntax trees of every package."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(
    path
    for project in (ROOT / "shared", *ROOT.glob("packages/*"))
    for path in (project / "src" / "coterie").rglob("*.py")
)
MAX_FILE, MAX_FUNCTION = 400, 60  # lines
FORBIDDEN = {"print", "torch.manual_seed", "manual_seed", "np.random.seed", "random.seed"}
Function = ast.FunctionDef | ast.AsyncFunctionDef
each_source = pytest.mark.parametrize(
    "path", SOURCES, ids=lambda path: path.as_posix().split("/src/coterie/")[1]
)


def long_functions(tree: ast.Module) -> list[str]:
    functions = (node for node in ast.walk(tree) if isinstance(node, Function))
    return [node.name for node in functions if (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION]


def forbidden_calls(tree: ast.Module) -> list[str]:
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [name for name in calls if name in FORBIDDEN]


def public(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Yield public definitions with their dotted names; what is nested in a function is private."""
    for node in body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, f"{prefix}{node.name}.")


def undocumented(tree: ast.Module) -> list[str]:
    return [name for name, node in public(tree.body) if ast.get_docstring(node) is None]


def imported(tree: ast.Module) -> set[str]:
    """Return the packages of the namespace that a module imports, anywhere in it."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("coterie.")}


@each_source
def test_house_rules(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert len(text.splitlines()) <= MAX_FILE
    assert path.stem not in {"utils", "helpers", "common"}
    assert long_functions(tree) == []
    assert forbidden_calls(tree) == []
    assert undocumented(tree) == []


@each_source
def test_papers_import_core_and_themselves_only(path: Path) -> None:
    own = path.as_posix().split("/src/coterie/")[1].split("/")[0]
    assert imported(ast.parse(path.read_text())) <= {"core", own}


def test_rules_catch_what_they_name() -> None:
    tree = ast.parse(
        "import coterie.page.model\n"
        "from coterie import llm\n"
        "class Documented:\n"
        "    'One.'\n"
        "    def method(self):\n"
        "        print(torch.manual_seed(0))\n"
        "def long():\n" + "    x = 1\n" * MAX_FUNCTION
    )
    assert imported(tree) == {"page", "llm"}
    assert undocumented(tree) == ["Documented.method", "long"]
    assert forbidden_calls(tree) == ["print", "torch.manual_seed"]
    assert long_functions(tree) == ["long"]


def test_every_package_is_measured() -> None:
    packages = {path.as_posix().split("/src/coterie/")[1].split("/")[0] for path in SOURCES}
    assert {"core", "continual"} <= packages
