"""Every command that the README shows runs, in the smoke preset."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from coterie.core.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
PYTHON = re.compile(r"^```python\n.*?^```$", re.DOTALL | re.MULTILINE)  # tests/test_docs.py runs it
QUICK = ["--preset", "smoke", "--logger.wandb", "off"]
COMMANDS = ("list", "data", "doctor", "privacy f3crec")


def shown(program):
    """Commands of the README's code blocks that start with ``program``."""
    blocks = re.findall(r"^```\n(.*?)^```$", re.sub(PYTHON, "", README), re.DOTALL | re.MULTILINE)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if re.match(rf"(\w+=\S+ )*{program} ", line)]


@pytest.fixture
def folder(tmp_path, monkeypatch, data_root):
    monkeypatch.setenv("COTERIE_DATA", str(data_root))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "history.csv").write_text("item\n1\n50\n172\n")
    return tmp_path


def test_the_readme_is_short_and_shows_commands():
    assert len(README.splitlines()) <= 120
    assert len(shown("coterie")) >= 5
    assert len(shown("make")) >= 4


@pytest.mark.long
@pytest.mark.real_data
def test_the_coterie_commands_run(folder, capsys):
    assert main(["train", "f3crec", "--data", "ml-100k", *QUICK]) == 0
    assert main(["train", "f3crec", *QUICK]) == 0
    # What --resume goes on with: a run that did not come to its end.
    (folder / "runs/f3crec/sample-f3crec-fedmf-seed0/summary.json").unlink()
    for line in shown("coterie"):
        words = shlex.split(line)[1:]
        if "|" in words or words[0] == "serve":  # it ends when it is told
            continue
        if "*" in words[-1]:
            words[-1:] = sorted(map(str, Path().glob(words[-1])))
        more = QUICK if words[0] == "train" and "--resume" not in words else []
        assert main([*words, *more]) == 0, line
    assert (folder / "runs/f3crec/ml-100k-kd-fedmf-seed1/summary.json").is_file()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_short_commands_run(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command.split()[0] in README
    assert main(command.split()) == 0
    assert capsys.readouterr().out


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("line", shown("make"))
def test_the_make_commands_exist(line):
    words = [word for word in shlex.split(line) if not word.startswith("COTERIE_DATA")]
    done = subprocess.run([words[0], "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout
