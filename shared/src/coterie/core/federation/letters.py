"""Letters: trees of tensors from one process to another, in memory that both of them see.

The tensors of a letter lie in a block of shared memory that has no name in any file system: it goes
with the last process that has it, however that one ends. What is read of a letter are views into
the block, without a copy. Its writer uses the block again once the reader has dropped all of them.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import UserError

_ALIGNED = 64  # bytes, as torch's own memory
_SPARE = 1.25  # room of a block beyond what is written first
_LEAST = 1 << 16  # bytes of a block
_KEPT = 4  # blocks that nobody uses
_SHORT = 1 << 15  # bytes of a text that fits into any line, so that nobody waits to have sent it

Text = bytes | tuple[int, int]
"""A text, or where it begins in the block, and its length."""


@dataclass
class Block:
    """Memory that several processes may have.

    Attributes:
        number: by which its readers call it.
        memory: its bytes.
        descriptor: to be sent to who has not seen it.
        readers: who knows it -> whether they still look at what was last written.
    """

    number: int
    memory: mmap.mmap
    descriptor: int
    readers: dict[int, bool] = field(default_factory=dict)

    @property
    def free(self) -> bool:
        """Whether it may be written again."""
        return not any(self.readers.values())

    def close(self) -> None:
        """Forget it; tensors in it stay as long as they are used."""
        os.close(self.descriptor)


@dataclass(frozen=True)
class Letter:
    """A tree that was written.

    Attributes:
        text: all but the numbers of its tensors.
        block: where these are; None for none.
        tensors: in the order in which they were written.
    """

    text: Text
    block: Block | None
    tensors: list[Tensor]


def made(size: int) -> tuple[mmap.mmap, int]:
    """New memory of so many bytes, and its descriptor.

    Raises:
        UserError: there is not as much.
    """
    descriptor = os.memfd_create("coterie-letter")
    try:
        os.posix_fallocate(descriptor, 0, size)  # else to write would be the end of the process
        return mmap.mmap(descriptor, size), descriptor
    except OSError as error:
        os.close(descriptor)
        raise UserError(
            f"no {size / 1e6:,.0f} MB of shared memory for 'engine.workers' ({error.strerror}): "
            "lower it, or 'engine.chunk'"
        ) from error


class Writer:
    """The letters of one process, and the blocks in which they are.

    Args:
        classes: that readers know in this order, also where they have no name to be found by.
    """

    def __init__(self, classes: Sequence[type]) -> None:
        self._classes = {each: number for number, each in enumerate(classes)}
        self._blocks: dict[int, Block] = {}
        self._next = 0

    def write(self, tree: Any, known: Mapping[int, int] | None = None) -> Letter:
        """Write a tree, whatever it is made of beside tensors; to be sent before the next is.

        Args:
            tree: tensors on the CPU in it keep their strides.
            known: identities of tensors that the reader has -> their places in its own letter.

        Raises:
            UserError: something in it has no name by which the reader would find it, or there is
                not enough memory.
        """
        text = io.BytesIO()
        pickler = _Pickler(text, self._classes, known or {})
        try:
            pickler.dump(tree)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(
                f"'engine.workers' sends messages to other processes, which one of these cannot be "
                f"({error}): leave it at 1"
            ) from error
        written = text.getvalue()
        long = len(written) > _SHORT
        size = pickler.size + long * len(written)
        if not size:
            return Letter(written, None, pickler.tensors)
        block = self._free(size)
        if long:
            block.memory[pickler.size : size] = written
        for tensor, (offset, span) in zip(pickler.tensors, pickler.places, strict=True):
            if span:
                into = torch.frombuffer(block.memory, dtype=tensor.dtype, count=span, offset=offset)
                flat = tensor.detach().as_strided((span,), (1,), tensor.storage_offset())
                into.copy_(flat)
        where = (pickler.size, len(written)) if long else written
        return Letter(where, block, pickler.tensors)

    def returned(self, reader: int, numbers: Sequence[int]) -> None:
        """A reader uses what is in some blocks no more."""
        for number in numbers:
            if number in self._blocks:
                self._blocks[number].readers[reader] = False

    def numbers(self) -> list[int]:
        """The blocks that there are."""
        return list(self._blocks)

    def close(self) -> None:
        """Forget all blocks."""
        for block in self._blocks.values():
            block.close()
        self._blocks.clear()

    def _free(self, size: int) -> Block:
        """The smallest block that nobody uses and that is large enough, or a new one."""
        free = sorted((one for one in self._blocks.values() if one.free), key=_room)
        for spare in free[:-_KEPT]:
            self._blocks.pop(spare.number).close()
        free = free[-_KEPT:]
        if enough := [one for one in free if _room(one) >= size]:
            return enough[0]
        if free:
            self._blocks.pop(free[0].number).close()
        self._next += 1
        block = Block(self._next, *made(max(_LEAST, int(_SPARE * size))))
        self._blocks[block.number] = block
        return block


class Reader:
    """Reads the letters of one writer.

    Args:
        classes: as the writer has them.
    """

    def __init__(self, classes: Sequence[type]) -> None:
        self._classes = list(classes)
        self._blocks: dict[int, mmap.mmap] = {}
        self._lent: dict[int, Callable[[], Any]] = {}  # gives None once nothing is used

    def see(self, number: int, descriptor: int) -> None:
        """Take note of a block that is new."""
        self._blocks[number] = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        os.close(descriptor)

    def read(
        self, text: Text, block: int | None, known: Sequence[Tensor] = ()
    ) -> tuple[Any, list[Tensor]]:
        """The tree of a letter, and its tensors in the order in which they were written.

        Args:
            text: of the letter.
            block: number of its block.
            known: tensors that it may name by their places.
        """
        memory = None
        if block is not None:
            memory = memoryview(self._blocks[block])
            self._lent[block] = weakref.ref(memory)
        if isinstance(text, tuple):
            assert memory is not None
            text = bytes(memory[text[0] : sum(text)])
        unpickler = _Unpickler(io.BytesIO(text), self._classes, memory, known)
        return unpickler.load(), unpickler.tensors

    def skip(self, block: int) -> None:
        """Read nothing of what was written into a block."""
        self._lent[block] = _nobody

    def unused(self) -> list[int]:
        """Blocks of which nothing is used any more since they were read; each is told once."""
        found = [number for number, view in self._lent.items() if view() is None]
        for number in found:
            del self._lent[number]
        return found

    def forget(self, kept: Sequence[int]) -> None:
        """Forget all blocks but some."""
        for number in self._blocks.keys() - set(kept):
            del self._blocks[number]


def _room(block: Block) -> int:
    return len(block.memory)


def _nobody() -> None:
    """Nothing is used of what was not read."""


class _Pickler(pickle.Pickler):
    """Pickles all but the numbers in tensors; notes where these are to be written."""

    def __init__(
        self, into: io.BytesIO, classes: Mapping[type, int], known: Mapping[int, int]
    ) -> None:
        super().__init__(into, pickle.HIGHEST_PROTOCOL)
        self._classes, self._known = classes, known
        self._seen: dict[int, Any] = {}
        self.tensors: list[Tensor] = []
        self.places: list[tuple[int, int]] = []
        self.size = 0

    def persistent_id(self, thing: Any) -> Any:
        """What stands for a tensor, or for a class that has no name."""
        if isinstance(thing, type):
            number = self._classes.get(thing)
            return None if number is None else ("class", number)
        if type(thing) is not Tensor or thing.layout is not torch.strided or not thing.is_cpu:
            return None
        if id(thing) in self._known:
            return ("known", self._known[id(thing)])
        if id(thing) not in self._seen:
            self._seen[id(thing)] = self._placed(thing)
        return self._seen[id(thing)]

    def _placed(self, tensor: Tensor) -> Any:
        span = _span(tensor)
        offset = self.size if span else 0
        number = len(self.tensors)
        self.tensors.append(tensor)
        self.places.append((offset, span))
        self.size += -(-span * tensor.element_size() // _ALIGNED) * _ALIGNED
        return ("tensor", number, tensor.dtype, offset, span, tuple(tensor.shape), tensor.stride())


class _Unpickler(pickle.Unpickler):
    """Reads what `_Pickler` has written."""

    def __init__(
        self,
        text: io.BytesIO,
        classes: Sequence[type],
        memory: memoryview | None,
        known: Sequence[Tensor],
    ) -> None:
        super().__init__(text)
        self._classes, self._memory, self._known = classes, memory, known
        self.tensors: list[Tensor] = []

    def persistent_load(self, token: Any) -> Any:
        """Give the tensor or class."""
        kind, number, *rest = token
        if kind == "class":
            return self._classes[number]
        if kind == "known":
            return self._known[number]
        if number == len(self.tensors):
            self.tensors.append(self._tensor(*rest))
        return self.tensors[number]

    def _tensor(
        self, dtype: torch.dtype, offset: int, span: int, shape: Sequence[int], stride: Any
    ) -> Tensor:
        if not span:
            return torch.empty_strided(shape, stride, dtype=dtype)
        assert self._memory is not None
        flat = torch.frombuffer(self._memory, dtype=dtype, count=span, offset=offset)
        return flat.as_strided(shape, stride)


def _span(tensor: Tensor) -> int:
    """How many numbers lie between the first and the last of a tensor in memory, both counted.

    They all travel, so that it has the same strides there: sums depend on them in the last bits.
    """
    if not tensor.numel():
        return 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)
