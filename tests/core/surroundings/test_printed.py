"""Paths, sources, notes and titles are printed as they are, whatever stands in them."""

import io
import json
import sys
from pathlib import Path

import pytest

from coterie.core.cli import command
from coterie.core.cli.main import main
from coterie.core.registry.papers import find_paper
from coterie.core.run.experiment import Experiment
from coterie.core.run.runfolder import Summary
from coterie.core.settings.base import BaseSettings
from coterie.core.training.train import show_data, show_results, show_stopped

NAMES = ["b[/c]", "[old] runs", "[red]a[/red]", ":heart:", "a\\[b]", "ä 'q' \"q\"", "[link=x]"]
TITLE = {"metric [/x]": ":smile: [/bold]"}


def shown(name, **more):
    show_results(Path(name), Summary(1, {f"m{name}": 0.5}, {}, 1, 1, 1.0, [f"on {name}"]), **more)
    show_stopped(Path(name), 3)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_markup(name, capsys):
    shown(name, clients=[{"client": name, "users": 3}])
    out = capsys.readouterr().out
    assert out.count(name) == 5  # client, metric, note, folder, and the line of a stopped run

    class Described(Experiment):
        source = name

        def describe_data(self):
            return [{name: name}]

    show_data(find_paper("page"), Described(BaseSettings(method="mine")))
    assert capsys.readouterr().out.count(name) == 3


@pytest.mark.parametrize("name", NAMES)
def test_tables_of_commands_neither(name, capsys):
    command.print_rows([{name: name}], title=name)
    assert capsys.readouterr().out.count(name) == 3


def test_a_line_stays_a_line(capsys):
    shown("a\nb\x1b[31m")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"written to a\nb\x1b[31m: summary.json" in out


def test_an_error_stays_a_line(capsys):
    assert main(["recommend", "--run", "a\x1b[2Jb", "--user", "1"]) == 2
    assert capsys.readouterr().err.startswith(r"coterie: error: there is no run a\x1b[2Jb")


@pytest.mark.parametrize("columns", ["20", "8", "1"])
def test_a_narrow_terminal_loses_nothing(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    numbers = {"users": 123_456_789, "recall": 0.1234}

    class Described(Experiment):
        def describe_data(self):
            return [numbers]

    show_data(find_paper("page"), Described(BaseSettings(method="mine")))
    out = capsys.readouterr().out
    assert "…" not in out
    if columns != "1":
        assert set("123,456,789") <= set(out)


def test_a_file_of_utf8_whatever_the_terminal(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii", errors="replace"))
    command.print_json({"λ": "ä"})
    sys.stdout.flush()
    assert json.loads(sys.stdout.buffer.getvalue()) == {"?": "?"}
