"""Files that a hosting site reads: they parse, and name what exists."""

import re
import tomllib
from datetime import date
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
MANIFESTS = [
    ROOT / "pyproject.toml",
    ROOT / "shared/pyproject.toml",
    *ROOT.glob("packages/*/pyproject.toml"),
]
TARGETS = set(re.findall(r"^\.PHONY: (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]


def workflow() -> dict:
    return yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())


def commands() -> list[str]:
    """What the hosted jobs, the hooks before a commit and the image run, a command each."""
    steps = [step for job in workflow()["jobs"].values() for step in job["steps"]]
    lines = [step["run"] for step in steps if "run" in step] + [hook["entry"] for hook in HOOKS]
    return lines + re.findall(
        r"^(?:RUN|CMD) (.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE
    )


def test_every_version_is_the_same():
    versions = {tomllib.loads(path.read_text())["project"]["version"] for path in MANIFESTS}
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert versions == {cited["version"]}
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest
    assert {newest[1]} == versions


def test_the_citation_has_what_its_format_needs_and_every_paper():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0"
    assert cited["message"]
    assert cited["title"]
    assert cited["authors"]
    date.fromisoformat(cited["date-released"])
    packages = {path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")}
    named = {
        re.search(r"coterie-(\w+)", reference["notes"])[1] for reference in cited["references"]
    }
    assert named == packages
    assert all(reference["authors"] and reference["year"] for reference in cited["references"])


def test_the_hosted_jobs_try_what_the_packages_promise():
    jobs = workflow()["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    floor = tomllib.loads(MANIFESTS[0].read_text())["project"]["requires-python"]
    assert floor == f">={jobs['test']['strategy']['matrix']['python'][0]}"
    assert jobs["versions"]["strategy"]["matrix"]["which"] == ["lowest", "newest"]


def test_their_make_targets_and_files_are_there():
    target = re.compile(r"(?<!recommends )\bmake\b(?! git)[\", ]+([a-z-]+)")
    asked = {word for line in commands() for word in target.findall(line)}
    assert {"test", "setup", "train", "lint"} <= asked
    assert asked <= TARGETS
    files = {word for line in commands() for word in re.findall(r"(?<!\S)\.ci/\S+", line)}
    assert files
    assert all((ROOT / name).is_file() for name in files)


@pytest.mark.parametrize("form", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=str)
def test_an_issue_form_is_one(form):
    read = yaml.safe_load(form.read_text())
    if form.stem == "config":
        assert read == {"blank_issues_enabled": True}
        return
    assert read["name"]
    assert read["description"]
    names = [part["id"] for part in read["body"]]
    assert len(names) == len(set(names))
    assert all(part["attributes"]["label"] for part in read["body"])
