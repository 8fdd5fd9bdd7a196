"""Threads that run chunks of clients side by side."""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from coterie.core.local_training.stacking import beside_others

A = TypeVar("A")
B = TypeVar("B")


class Threads:
    """Threads that live as long as this does; one is the thread that asks.

    Torch computes without Python's lock, so threads share the cores where operations are large
    enough. Each sees the context variables of the one that asks.

    Args:
        count: how many.

    Example:
        >>> list(Threads(2).map(str, range(3)))
        ['0', '1', '2']
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ThreadPoolExecutor | None = None

    def map(self, function: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        """Give the results in the order of the items, few of them ahead of what is asked for.

        An error of an item is raised when its result is asked for; what has not begun is dropped.
        """
        return map(function, items) if self._count == 1 else self._ahead(function, items)

    def _ahead(self, function: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        if self._pool is None:
            threads = torch.get_num_threads()
            self._pool = ThreadPoolExecutor(
                self._count, "chunk", initializer=torch.set_num_threads, initargs=(threads,)
            )
        ahead: deque[Future[B]] = deque()
        try:
            for item in items:
                context = contextvars.copy_context()
                ahead.append(self._pool.submit(context.run, _as_here(function), item))
                if len(ahead) > self._count + 1:  # one waits, so that no thread does
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def _as_here(function: Callable[[A], B]) -> Callable[[A], B]:
    """Whether autograd notes anything is said for each thread; take this one's word along."""
    enabled = torch.is_grad_enabled()

    def call(item: A) -> B:
        with torch.set_grad_enabled(enabled), beside_others():
            return function(item)

    return call
