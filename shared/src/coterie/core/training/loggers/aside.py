"""What is done beside the training, which neither waits for it nor ends with it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Action = Callable[[], None]


class Aside:
    """A thread that does what it is given, until something goes wrong.

    A daemon: where it hangs, the process ends without it.

    Args:
        name: of the thread.
        say: is told, once, what went wrong.

    Example:
        >>> done = []
        >>> aside = Aside("noting", print)
        >>> aside.do(lambda: done.append(1))
        >>> aside.end(patience=5.0), done
        (True, [1])
    """

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self._say, self._name = say, name
        self._actions: queue.SimpleQueue[tuple[Action, bool] | None] = queue.SimpleQueue()
        self._failed = threading.Event()
        self._thread: threading.Thread | None = None

    def do(self, action: Action) -> None:
        """Do it later; nothing where something went wrong."""
        if self._failed.is_set():
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._actions.put((action, False))

    def wait(self, seconds: float) -> bool:
        """Wait until all is done that was given so far; say whether it is."""
        if self._thread is None:
            return True
        done = threading.Event()
        self._actions.put((done.set, True))
        return done.wait(seconds)

    def end(self, patience: float, whatever: Action = lambda: None) -> bool:
        """Wait until all is done, and end.

        Args:
            patience: seconds.
            whatever: is done at the end, though something went wrong.

        Returns:
            Whether it has ended.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return True
        self._actions.put((whatever, True))
        self._actions.put(None)
        thread.join(patience)
        return not thread.is_alive()

    def fail(self, reason: str) -> None:
        """Do nothing any more, and say why, once."""
        if not self._failed.is_set():
            self._failed.set()
            self._say(reason)

    def _work(self) -> None:
        while (given := self._actions.get()) is not None:
            action, always = given
            if self._failed.is_set() and not always:
                continue
            try:
                action()
            # Nothing that a log meets (a full disk, a value that is no number, a dead service)
            # may end the training.
            except BaseException as error:
                self.fail(" ".join(f"{type(error).__name__}: {error}".split()))
