"""What the docs site has beside the pages of this folder: papers' cards, and the reference.

MkDocs calls the functions ``on_*``. Pages keep links that work where the repository is read as
files; here they are turned into links between pages of the site.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from tempfile import TemporaryDirectory
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PAPERS = {
    "llm": "pplr",
    "continual": "f3crec",
    "assisted": "mtal",
    "msmt": "pf-msmtrec",
    "page": "page",
}
# What is elsewhere in the repository, and is a page of the site as well.
ELSEWHERE = {
    **{f"packages/{package}/README.md": f"papers/{name}.md" for package, name in PAPERS.items()},
    "benchmarks/README.md": "benchmarks.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "LICENSE": "LICENSE.txt",
    "README.md": "index.md",
}
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
_WHOLE = TemporaryDirectory(prefix="coterie-docs-")  # gone when the process ends
_NAME = re.compile(r"<code>(coterie\.[\w.]+\w)</code>")


def _quiet_kernels() -> None:
    """Spare the build a warning of each notebook's kernel: that it listens on loopback."""
    profile = Path(_WHOLE.name) / "ipython" / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    config = 'get_config().IPKernelApp.log_level = "ERROR"\n'
    (profile / "ipython_kernel_config.py").write_text(config, encoding="utf-8")
    os.environ["IPYTHONDIR"] = str(profile.parent)


@event_priority(100)  # before mkdocstrings reads it
def on_config(config: Any) -> Any:
    """Give mkdocstrings one folder with all parts of the package.

    It reads sources without importing them, so it cannot see what ``coterie.__path__`` does.
    """
    # Of the notebooks' progress bars, which need no widgets here; it would stand in the pages.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:IProgress not found")
    _quiet_kernels()
    whole = Path(_WHOLE.name) / "coterie"
    if not whole.exists():
        whole.mkdir()
        for source in (ROOT / "shared/src/coterie", *ROOT.glob("packages/*/src/coterie")):
            for part in source.iterdir():
                (whole / part.name).symlink_to(part)
    config.plugins["mkdocstrings"].config["handlers"]["python"]["paths"] = [_WHOLE.name]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the cards, the pages of the repository's top folder, and the reference."""
    for source, page in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for page, text in reference().items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links between files of the repository into links between pages."""
    here = page.file.src_uri
    if here.startswith("reference/"):
        return markdown
    parts = _FENCE.split(markdown)
    return "".join(
        part if part.startswith("```") else _LINK.sub(lambda link: _moved(link, here), part)
        for part in parts
    )


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Link names of the code, as docstrings have them, to where the reference has them."""
    if not page.file.src_uri.startswith("reference/"):
        return html
    return _NAME.sub(r'<autoref identifier="\1" optional><code>\1</code></autoref>', html)


def _moved(link: re.Match[str], page: str) -> str:
    before, target, after = link.groups()
    if re.match(r"\w+:|/", target):
        return link[0]
    back = {there: source for source, there in ELSEWHERE.items()}
    source = back.get(page, f"docs/{page}")
    there = normpath(str(PurePosixPath(source).parent / target))
    found = ELSEWHERE.get(there, there.removeprefix("docs/") if there.startswith("docs/") else None)
    if found is None:
        return link[0]  # MkDocs says that it is broken
    return f"{before}{relpath(found, str(PurePosixPath(page).parent))}{after}"


# The reference: a page for each room of the core and for each paper, from the docstrings.


def reference() -> dict[str, str]:
    """Write the pages of the reference, as directives of mkdocstrings.

    Returns:
        Page -> its text.
    """
    rooms: dict[str, list[str]] = {}
    for module in modules():
        rooms.setdefault(_room(module), []).append(module)
    pages = {f"reference/{room}.md": _page(room, found) for room, found in sorted(rooms.items())}
    return {"reference/index.md": _front(sorted(rooms)), **pages}


def modules() -> Iterator[str]:
    """Name every module of the packages that holds more than words."""
    for project in (ROOT / "shared", *sorted((ROOT / "packages").iterdir())):
        for path in sorted((project / "src").rglob("*.py")):
            dotted = ".".join(path.relative_to(project / "src").with_suffix("").parts)
            body = ast.parse(path.read_text()).body
            if path.stem != "__init__" and len(body) > 1 and "__main__" not in dotted:
                yield dotted


def _room(module: str) -> str:
    _, package, *inside = module.split(".")
    if package == "core":
        return f"core-{inside[0]}" if len(inside) > 1 else "core"
    return PAPERS[package]


def _page(room: str, found: list[str]) -> str:
    title = room.replace("core-", "core/") if room.startswith("core") else room
    return "\n\n".join([f"# {title}", *(f"::: {module}" for module in found), ""])


def _front(rooms: list[str]) -> str:
    init = ast.parse((ROOT / "shared/src/coterie/__init__.py").read_text())
    homes = next(
        ast.literal_eval(node.value)
        for node in init.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES"
    )
    names = [f"::: {home}.{name}" for name, home in homes.items()]
    names.append("::: coterie.core.front.partition")
    links = [f"- [{room.replace('core-', 'core/')}]({room}.md)" for room in rooms]
    text = (
        "This page has what `import coterie` offers. Behind it are the core's rooms and the papers:"
    )
    return "\n\n".join(["# Reference", text, "\n".join(links), *names, ""])
