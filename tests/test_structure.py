"""The house rules that can be measured, over the syntax trees of every package and benchmark."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURE = ROOT / "docs" / "architecture.md"
SOURCES = sorted(
    path
    for project in (ROOT / "shared", *ROOT.glob("packages/*"))
    for path in (project / "src" / "coterie").rglob("*.py")
)
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
MAX_FILE, MAX_FUNCTION = 400, 60  # lines
FORBIDDEN = {"print", "torch.manual_seed", "manual_seed", "np.random.seed", "random.seed"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def package_of(path: Path) -> str:
    """`core` or the package of a paper; what is in none of their folders is the core's."""
    folder, *file = re.split("/src/coterie/|/benchmarks/", path.as_posix())[-1].split("/")
    return folder if file else "core"


PACKAGES = sorted({package_of(path) for path in SOURCES})
each_package = pytest.mark.parametrize("package", PACKAGES)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def long_functions(tree: ast.Module) -> list[str]:
    functions = (node for node in ast.walk(tree) if isinstance(node, Function))
    return [node.name for node in functions if (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION]


def forbidden_calls(tree: ast.Module) -> list[str]:
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [name for name in calls if name in FORBIDDEN]


def is_overload(node: Function | ast.ClassDef) -> bool:
    """Overloads are signatures of one function, which is documented where it is written."""
    return any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list)


def public(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Yield public definitions with their dotted names; what is nested in a function is private."""
    for node in body:
        if isinstance(node, Function | ast.ClassDef) and is_overload(node):
            continue
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, f"{prefix}{node.name}.")


def undocumented(tree: ast.Module) -> list[str]:
    return [name for name, node in public(tree.body) if ast.get_docstring(node) is None]


def imported(tree: ast.Module) -> set[str]:
    """Return the packages that a module imports, or whose benchmarks it does, anywhere in it."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith(("coterie.", "benchmarks."))}


def room_of(module: str) -> str:
    """Return the room of a module: its folder inside the package, or its own name on the top floor.

    ``coterie.core.data.samples.partitions`` is in ``data/samples``, ``coterie.page.client`` in
    ``client``.
    """
    inside = module.split(".")[2:]
    return "/".join(inside[:-1]) or inside[0]


def modules(package: str) -> dict[str, Path]:
    """Return the modules of a package; an ``__init__`` counts where it holds more than words."""
    found = {}
    for path in SOURCES:
        dotted = path.with_suffix("").as_posix().split("/src/")[1].replace("/", ".")
        holds_words = path.stem == "__init__" and len(tree_of(path).body) == 1
        if dotted.startswith(f"coterie.{package}.") and not holds_words:
            found[dotted] = path
    return found


def imported_modules(tree: ast.Module, known: set[str]) -> set[str]:
    """Return the known modules that one imports, in functions and under TYPE_CHECKING too."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return {name if name in known else f"{name}.__init__" for name in names} & known


def arrows(package: str) -> dict[tuple[str, str], str]:
    """Return the arrows between the rooms of a package, each with an import that makes it."""
    known = modules(package)
    found = {}
    for module, path in known.items():
        for other in imported_modules(tree_of(path), set(known)):
            if room_of(module) != room_of(other):
                found[room_of(module), room_of(other)] = f"{module} imports {other}"
    return found


def file_arrows(package: str) -> list[tuple[str, str]]:
    """Return which file of a package imports which other, in functions and for types too."""
    known = modules(package)
    return [
        (module, other)
        for module, path in known.items()
        for other in imported_modules(tree_of(path), set(known)) - {module}
    ]


def floors() -> dict[str, int]:
    """Return the floor of every room of the core, as docs/architecture.md tabulates them."""
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", ARCHITECTURE.read_text(), flags=re.MULTILINE)
    return {room: int(floor) for floor, rooms in rows for room in re.findall(r"`([^`]+)`", rooms)}


def circles(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return the rooms that stand in or above a circle: what no order puts below its users."""
    left: dict[str, set[str]] = {}
    for above, below in pairs:
        left.setdefault(above, set()).add(below)
    while free := [room for room, needs in left.items() if not needs & left.keys()]:
        for room in free:
            del left[room]
    return sorted(left)


def in_circles(pairs: list[tuple[str, str]]) -> list[str]:
    """Return what stands in a circle, or between two: what no order puts above what it needs."""
    upside_down = ((below, above) for above, below in pairs)
    return sorted({*circles(pairs)} & {*circles(upside_down)})


def faults(path: Path) -> list[str]:
    """Return what breaks a rule in a file."""
    tree, lines = tree_of(path), len(path.read_text().splitlines())
    return [
        *([f"{lines} lines"] if lines > MAX_FILE else []),
        *(["named after nothing"] if path.stem in {"utils", "helpers", "common"} else []),
        *(f"{name} is long" for name in long_functions(tree)),
        *(f"{name} is called" for name in forbidden_calls(tree)),
        *(f"{name} is not documented" for name in undocumented(tree)),
        *(f"{other} is imported" for other in imported(tree) - {"core", package_of(path)}),
    ]


@pytest.mark.long
@each_package
def test_house_rules(package: str) -> None:
    """Files and functions are short, what is public is documented, papers import the core alone."""
    paths = [path for path in (*SOURCES, *BENCHMARKS) if package_of(path) == package]
    found = {str(path): faults(path) for path in paths}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


def test_rooms_of_the_core_import_only_rooms_below() -> None:
    table, found = floors(), arrows("core")
    assert {room_of(module) for module in modules("core")} == set(table)
    wrong = [why for (above, below), why in found.items() if table[above] <= table[below]]
    assert wrong == []


@each_package
def test_rooms_of_a_package_make_no_circle(package: str) -> None:
    assert circles(arrows(package)) == []


def test_benchmarks_import_in_no_circle() -> None:
    known = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): tree_of(path) for path in BENCHMARKS
    }
    assert "benchmarks.core.timing" in known
    names = set(known)
    assert circles((n, m) for n in names for m in imported_modules(known[n], names)) == []


def test_what_is_packed_imports_no_benchmark() -> None:
    packed = [path for path in SOURCES if "benchmarks" in path.read_text()]
    told = re.compile(r"^\s*(from|import) benchmarks\b", re.MULTILINE)
    assert {path.name for path in packed} >= {"paper.py"}  # which names one, as text
    assert [str(path) for path in packed if told.search(path.read_text())] == []


@pytest.mark.long
@each_package
def test_files_of_a_package_make_no_circle(package: str) -> None:
    """Two files that import each other are read as one; imports in functions count too."""
    assert in_circles(file_arrows(package)) == []


def test_kernels_call_those_of_their_own_file_alone() -> None:
    """What is kept compiled is not made anew when another file changes."""
    compiled = {
        path.with_suffix("").as_posix().split("/src/")[1].replace("/", "."): ast.parse(
            path.read_text()
        )
        for path in SOURCES
        if "@compiled\n" in path.read_text() and path.stem != "compiled"
    }
    assert {"coterie.core.kernels.drawing", "coterie.continual.touched_kernels"} <= set(compiled)
    assert [name for name in compiled if imported_modules(compiled[name], set(compiled))] == []


def test_circles_are_found() -> None:
    assert circles([("a", "b"), ("b", "c"), ("a", "c")]) == []
    assert circles([("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")]) == ["a", "b", "c"]


def test_only_what_is_in_a_circle_is_named() -> None:
    assert in_circles([("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")]) == ["b", "c"]
    assert in_circles([("a", "b"), ("b", "c"), ("a", "c")]) == []


def test_arrows_count_imports_in_functions_and_for_types_alone() -> None:
    tree = ast.parse(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    from coterie.core.a.b import C\n"
        "def late():\n"
        "    from coterie.core.d import e\n"
    )
    known = {"coterie.core.a.b", "coterie.core.d.e", "coterie.core.f"}
    assert imported_modules(tree, known) == {"coterie.core.a.b", "coterie.core.d.e"}
    assert room_of("coterie.core.a.b") == "a"
    assert room_of("coterie.core.f") == "f"


def test_rules_catch_what_they_name() -> None:
    tree = ast.parse(
        "import coterie.page.model\n"
        "from coterie import llm\n"
        "from benchmarks.msmt import steps\n"
        "class Documented:\n"
        "    'One.'\n"
        "    def method(self):\n"
        "        print(torch.manual_seed(0))\n"
        "def long():\n" + "    x = 1\n" * MAX_FUNCTION
    )
    assert imported(tree) == {"page", "llm", "msmt"}
    assert undocumented(tree) == ["Documented.method", "long"]
    assert forbidden_calls(tree) == ["print", "torch.manual_seed"]
    assert long_functions(tree) == ["long"]


def test_faults_of_a_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "src" / "coterie" / "page" / "utils.py"
    path.parent.mkdir(parents=True)
    text = "import coterie.llm.client\ndef one():\n    print()\n" + "    x = 1\n" * MAX_FILE
    path.write_text(text)
    assert faults(path) == [
        f"{MAX_FILE + 3} lines",
        "named after nothing",
        "one is long",
        "print is called",
        "one is not documented",
        "llm is imported",
    ]


def test_every_package_is_measured() -> None:
    assert {"core", "continual"} <= set(PACKAGES)
    assert {package_of(path) for path in BENCHMARKS} == set(PACKAGES)
