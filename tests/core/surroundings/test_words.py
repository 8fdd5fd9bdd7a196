"""Words of YAML files and of the environment, read as the setting that they are for."""

from pathlib import Path
from typing import Literal

import pytest

from coterie.core.cli.sweep import read_sweep
from coterie.core.errors import UserError
from coterie.core.registry.papers import Paper
from coterie.core.settings.configuration import configure, read_config
from coterie.core.settings.parser import Plain, as_meant


def read(toy: Paper, tmp_path: Path, text: str):
    file = tmp_path / "mine.yaml"
    file.write_text(text, "utf-8")
    return configure(toy, ["--config", str(file)]).settings


@pytest.mark.parametrize("word", ["off", "Off", "OFF", "false", "no", "'off'", '"off"'])
def test_off_is_off(toy, tmp_path, word):
    assert read(toy, tmp_path, f"logger: {{wandb: {word}}}").logger.wandb == "off"


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("seed: 012", "seed", 12),
        ("seed: 1_000", "seed", 1000),
        ("seed: 0x10", "seed", 16),
        ("seed: 0o17", "seed", 15),
        ("seed: 09", "seed", 9),
        ("model: {lr: 1e-3}", "model.lr", 0.001),
        ("model: {lr: 010}", "model.lr", 10.0),
        ("model: {lr: 1}", "model.lr", 1.0),
        ("model: {widths: [010, 1_6]}", "model.widths", (10, 16)),
        ("run: {name: 012}", "run.name", "012"),
        ("run: {name: off}", "run.name", "off"),
        ("run: {name: 2024-01-01}", "run.name", "2024-01-01"),
        ("run: {name: 1:30}", "run.name", "1:30"),
        ("run: {name: 1e3}", "run.name", "1e3"),
        ("run: {name: null}", "run.name", None),
        ("run: {progress: off}", "run.progress", False),
        ("run: {progress: Yes}", "run.progress", True),
        ("data: {columns: {user: on, item: 012}}", "data.columns", {"user": "on", "item": "012"}),
    ],
)
def test_a_word_is_what_its_setting_is(toy, tmp_path, text, key, value):
    found = read(toy, tmp_path, text)
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("seed: 1:30", "'1:30'"),
        ("seed: off", "'off'"),
        ("seed: 2024-01-01", "'2024-01-01'"),
        ("model: {lr: 1:30}", "'1:30'"),
        ("run: {progress: 1}", "'1'"),
        ("logger: {wandb: of}", "'of'"),
    ],
)
def test_a_word_that_is_nothing_of_the_kind_is_one_line(toy, tmp_path, text, shown):
    with pytest.raises(UserError, match=rf"in .*mine\.yaml, line 1: expected .*, not {shown}"):
        read(toy, tmp_path, text)


@pytest.mark.parametrize(
    ("flag", "key", "value"),
    [
        (["--seed", "012"], "seed", 12),
        (["--model.lr", "010"], "lr", 10.0),
        (["--run.name", "012"], "name", "012"),
    ],
)
def test_flags_are_read_alike(toy, flag, key, value):
    found = configure(toy, flag).settings
    assert value in (found.seed, found.model.lr, found.run.name), key


def test_a_flag_of_minutes_is_no_number(toy):
    with pytest.raises(UserError, match="--seed: expected a whole number, not '1:30'"):
        configure(toy, ["--seed", "1:30"])


def test_a_sweep_has_numbers_where_people_write_them():
    text = (
        "method: random\nmetric: {name: a}\nparameters:\n"
        "  lr: {min: 1e-5, max: 1e-1}\n  seed: {values: [012, 1_0]}\n  word: {value: off}\n"
    )
    entries = read_sweep("sweep.yaml", text, ["lr", "seed", "word"]).parameters
    assert (entries["lr"]["min"], entries["lr"]["max"]) == (1e-5, 1e-1)
    assert entries["seed"]["values"] == [12, 10]
    assert entries["word"]["values"] == ["off"]


def test_words_in_unions():
    assert as_meant(Plain("off"), Literal["on", "off"] | None) == "off"
    assert as_meant(Plain("true"), Literal["on", "off"]) == "on"
    assert as_meant(Plain("3"), int | str) == 3
    assert as_meant(Plain("x3"), int | str) == "x3"


MODES = [("disabled", "off"), ("online", "online"), ("offline", "offline"), ("dryrun", "offline")]


@pytest.mark.parametrize(
    ("word", "mode"), [*MODES, ("run", "online"), ("DISABLED", "off"), ("", "offline")]
)
def test_the_environment_says_how_to_log(toy, monkeypatch, word, mode):
    monkeypatch.setenv("WANDB_MODE", word)
    assert configure(toy, []).settings.logger.wandb == mode


def test_a_flag_and_a_file_win_over_the_environment(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert configure(toy, ["--logger.wandb", "online"]).settings.logger.wandb == "online"
    assert read(toy, tmp_path, "logger: {wandb: offline}").logger.wandb == "offline"
    assert read(toy, tmp_path, "seed: 1").logger.wandb == "off"


def test_the_environment_wins_over_what_a_run_had(toy, tmp_path, monkeypatch):
    file = tmp_path / "config.yaml"
    file.write_text("logger: {wandb: online}")
    base = read_config(file, type(configure(toy, []).settings), toy.name)
    assert configure(toy, [], base).settings.logger.wandb == "online"
    monkeypatch.setenv("WANDB_DISABLED", "true")
    assert configure(toy, [], base).settings.logger.wandb == "off"


def test_a_mode_that_nobody_knows_is_one_line(toy, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disable")
    with pytest.raises(
        UserError, match=r"^WANDB_MODE in the environment is 'disable': did you mean"
    ):
        configure(toy, [])
    assert configure(toy, ["--logger.wandb", "off"]).settings.logger.wandb == "off"
