"""Sequences that only grow: every value shares its entries with those that it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from coterie.core.tensors import tree
from coterie.core.tensors.stacked import Growing

T = TypeVar("T")


class Entry(Generic[T]):
    """One entry of an `Appended`. It knows the entry before it and nothing of those after.

    Args:
        value: a tree of tensors.
        before: the entry before; None for the first.
        file: where the entry is kept beside a checkpoint; None if it is not yet.

    Raises:
        TypeError: the value is no tree of tensors, or holds itself what only grows.
    """

    __slots__ = ("_tensors", "_value", "_version_then", "before", "file", "number")

    def __init__(self, value: T, before: Entry[T] | None, file: Path | None = None) -> None:
        if any(isinstance(leaf, Growing) for _, leaf in tree.leaves(value, whole=True)):
            raise TypeError("an entry cannot hold a sequence that only grows: keep it beside")
        self._value, self.before, self.file = value, before, file
        self.number: int = 0 if before is None else before.number + 1
        self._tensors = [tensor for _, tensor in tree.tensors(value)]  # every ask looks at them
        self._version_then = self._version

    @property
    def value(self) -> T:
        """The tree, once it has passed `check`."""
        self.check()
        return self._value

    def check(self) -> None:
        """Check that no tensor was written into since the entry was appended.

        Raises:
            TypeError: one was.
        """
        if self._version != self._version_then:
            raise TypeError(
                f"entry {self.number} of an append-only part was written into after it was "
                "appended: its tensors are values, clone them before a change"
            )

    @property
    def _version(self) -> int:
        """How often its tensors were written into, as a tensor's own ``_version``."""
        return sum(tensor._version for tensor in self._tensors)


class Appended(Growing, Generic[T]):
    """An immutable sequence that grows by making a longer one, which shares all its entries.

    For what a client (in the list form) or a server collects over the rounds, such as a model a
    round. An ask costs the same however many entries there are; a checkpoint keeps each once, in a
    file of its own. The annotation ``Appended[Model]`` says what the entries are when a run is
    resumed.

    `append` and ``[-1]`` take constant time, ``[i]`` as long as there are entries after it.

    Attributes:
        newest: the entry that was appended last; None for an empty sequence.

    Raises:
        TypeError: an entry is no tree of tensors.

    Example:
        >>> import torch
        >>> models = Appended([torch.zeros(2)])
        >>> more = models.append(torch.ones(2))
        >>> len(models), len(more), more[-1].tolist(), more[0] is models[0]
        (1, 2, [1.0, 1.0], True)
    """

    __slots__ = ("newest",)

    def __init__(self, entries: Iterable[T] = ()) -> None:
        self.newest: Entry[T] | None = None
        for entry in entries:
            self.newest = Entry(entry, self.newest)

    @classmethod
    def kept(cls, entries: Iterable[tuple[T, Path | None]]) -> Appended[T]:
        """Make one of entries that are in files, oldest first, given with them."""
        found: Appended[T] = cls()
        for value, file in entries:
            found.newest = Entry(value, found.newest, file)
        return found

    def append(self, entry: T) -> Appended[T]:
        """The sequence with one entry more; this one stays as it is."""
        longer: Appended[T] = Appended()
        longer.newest = Entry(entry, self.newest)
        return longer

    def __len__(self) -> int:
        return 0 if self.newest is None else self.newest.number + 1

    def __getitem__(self, place: int) -> T:
        wanted = place + len(self) if place < 0 else place
        if not 0 <= wanted < len(self):
            raise IndexError(f"there is no entry {place} of {len(self)}")
        return next(entry.value for entry in self.newest_first() if entry.number == wanted)

    def __iter__(self) -> Iterator[T]:
        return (entry.value for entry in self.entries())

    def __repr__(self) -> str:
        return f"Appended({len(self)} entries)"

    def __reduce__(self) -> Any:
        """Copy and pickle entry by entry: along the chain Python would run out of stack."""
        return Appended, (list(self),)

    def newest_first(self) -> Iterator[Entry[T]]:
        """The entries, the one appended last first."""
        entry = self.newest
        while entry is not None:
            yield entry
            entry = entry.before

    def entries(self) -> Iterator[Entry[T]]:
        """The entries, oldest first."""
        return reversed(list(self.newest_first()))

    def mapped(self, function: Callable[..., Any], *others: Any) -> Appended[Any]:
        """Apply ``function`` to every entry (and the same places of others)."""
        return Appended(function(*same) for same in zip(self, *others, strict=True))
