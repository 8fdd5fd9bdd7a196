"""Compiled loops: found by themselves, kept on the disk, and what is said of them."""

import importlib
import sys
from pathlib import Path

import numba
import pytest

from coterie.core.cli import doctor
from coterie.core.errors import UserError
from coterie.core.kernels import compiled, products, switch
from coterie.core.run import runfolder


def twice(x):
    return 2 * x


def test_kept_where_it_can_be(monkeypatch, tmp_path):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    kernel = compiled.compiled(twice)
    assert kernel(3) == 6
    assert Path(compiled.cache_folder(kernel)).is_relative_to(tmp_path)
    assert list(tmp_path.rglob("*.nbi"))


def test_compiled_anew_where_nothing_can_be_kept(monkeypatch):
    """As in a read-only installation without a home."""

    def nowhere(self):
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(numba.core.dispatcher.Dispatcher, "enable_caching", nowhere)
    kernel = compiled.compiled(twice)
    assert kernel(3) == 6
    assert compiled.cache_folder(kernel) is None


def test_a_broken_numba_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, compiled.__name__)
    with pytest.raises(UserError, match=r"^numba cannot be imported: .* --engine\.kernels off$"):
        importlib.import_module(compiled.__name__)


def test_what_the_doctor_says(monkeypatch):
    name, fine, found = doctor._kernels()
    assert (name, fine) == ("kernels", True)
    assert found.startswith(f"numba {numba.__version__}, kept in ")
    monkeypatch.setattr(products, "kept_in", lambda: None)
    assert "NUMBA_CACHE_DIR" in doctor._kernels()[2]
    monkeypatch.setattr(switch, "installed", lambda: False)
    assert doctor._kernels()[1:] == (
        True,
        "none; many users train faster: pip install numba",
    )
    assert not switch.available()


def test_a_summary_names_numba_where_it_was_used(monkeypatch):
    assert switch.loaded()
    assert runfolder.versions()["numba"] == numba.__version__
    monkeypatch.setattr(switch, "loaded", lambda: False)
    assert "numba" not in runfolder.versions()


def test_forbidden_for_a_while():
    assert switch.available()
    with switch.kernels(False):
        assert not switch.available()
        with switch.kernels(True):
            assert switch.available()
        assert not switch.available()
    assert switch.available()
