"""A node runs the ClientApp that is installed, whatever the server sends."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.core.errors import UserError
from coterie.core.flower import own_app
from coterie.core.flower.client_app import app
from coterie.core.flower.programs import environment


def test_flower_finds_this_program_first(tmp_path: Path) -> None:
    place = own_app.write_programs(tmp_path)
    done = subprocess.run(
        [str(place / "flwr-clientapp"), "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "--runtime-api-address" in done.stdout
    assert (place / "flwr-clientapp").stat().st_mode & 0o077 == 0


def test_what_is_sent_is_neither_installed_nor_loaded() -> None:
    script = """
from coterie.core.flower.own_app import with_own_app
from coterie.core.flower.client_app import app
from coterie.core.flower.programs import environment
flower = with_own_app()
assert flower.install_from_fab(b"anything", skip_prompt=True) is None
load = flower.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
assert load("somebody/app", "1.0", "hash") is app
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert app is not None


def test_another_flower_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_app, "_REPLACED", ("something_that_flower_renamed",))
    with pytest.raises(UserError, match="this flwr has no something_that_flower_renamed"):
        own_app.with_own_app()


def test_nothing_else_that_flower_could_start_is_found(tmp_path: Path) -> None:
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

    place = own_app.write_programs(tmp_path)
    path = environment(tmp_path, place)["PATH"]
    commands = {str(getattr(one, "value", one)) for one in TASK_TYPE_TO_COMMAND.values()}
    assert commands - {"flwr-clientapp"} <= set(own_app.REFUSED)
    for name in commands:
        found = shutil.which(name, path=path)
        assert found == str(place / name)
        if name != "flwr-clientapp":
            done = subprocess.run([found, "--token", "x"], capture_output=True, timeout=10)
            assert done.returncode == 1
            assert b"runs nothing that is sent" in done.stderr


def test_where_no_program_can_be_run_nothing_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system that is mounted with noexec, where Flower's own would be found."""
    monkeypatch.setattr(Path, "chmod", lambda self, mode: None)
    with pytest.raises(UserError, match="no program can be run in"):
        own_app.write_programs(tmp_path)
