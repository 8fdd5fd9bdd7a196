"""Ctrl-C, or SIGTERM, in the middle of an import."""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from coterie.core.cli.main import Terminated, never_in_an_import, sigterm_heard

# As numpy, which is imported from C++: whatever happens there is swallowed.
FRAGILE = """
import os
import signal

unharmed = False
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(100_000):
        pass
    unharmed = True
except BaseException:
    pass
"""


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """Hear Ctrl-C, which whoever starts pytest in the background has made it ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted_while_importing(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the module got to its end; the interruption has to come after it."""
    (folder / f"{name}.py").write_text(FRAGILE)
    monkeypatch.syspath_prepend(folder)

    def command() -> None:
        with never_in_an_import():
            import_module(name)
            time.sleep(20)

    with pytest.raises(KeyboardInterrupt):
        command()
    module = sys.modules.pop(name)
    return bool(module.unharmed)


def test_a_module_is_imported_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    assert interrupted_while_importing(tmp_path, "fragile_whole", monkeypatch)
    assert time.monotonic() - began < 10.0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_elsewhere_it_is_raised_at_once() -> None:
    done = []

    def command() -> None:
        with never_in_an_import():
            signal.raise_signal(signal.SIGINT)
            done.append("the next line")

    with pytest.raises(KeyboardInterrupt):
        command()
    assert not done


def test_an_interruption_in_the_last_import_does_not_outlive_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fragile_last.py").write_text(FRAGILE)
    monkeypatch.syspath_prepend(tmp_path)
    with never_in_an_import():
        import_module("fragile_last")
    time.sleep(0.1)
    assert sys.modules.pop("fragile_last").unharmed


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with never_in_an_import():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_hears_no_signals() -> None:
    done = []

    def command() -> None:
        with never_in_an_import():
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=command)
    thread.start()
    thread.join()
    assert done == [signal.getsignal(signal.SIGINT)]


def test_sigterm_comes_after_an_import_once_and_leaves_no_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    (tmp_path / "fragile_term.py").write_text(FRAGILE.replace("SIGINT", "SIGTERM"))
    monkeypatch.syspath_prepend(tmp_path)
    done = []

    def command() -> None:
        with never_in_an_import(), sigterm_heard():
            try:
                import_module("fragile_term")
                time.sleep(20)
            finally:
                signal.raise_signal(signal.SIGTERM)
                done.append("cleared up")

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(Terminated):
            command()
        assert done == ["cleared up"]
        assert sys.modules.pop("fragile_term").unharmed
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
