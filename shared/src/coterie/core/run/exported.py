"""What a run gives to other programs: tensors by name, and a graph of what scores. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a command's help waits for no torch
    from torch import Tensor, nn

    from coterie.core.data.interactions.interactions import Interactions


@dataclass(frozen=True)
class Asked:
    """Whose own state is asked for, beside what is public.

    Attributes:
        client: number of a client; None for nobody's.
        user: id in the data set, where the client was asked for as a user.
    """

    client: int | None = None
    user: str | None = None

    @property
    def name(self) -> str:
        """Whose it is, for people; "" where nothing private is asked for."""
        if self.user is not None:
            return f"user {self.user}"
        return "" if self.client is None else f"client {self.client}"


@dataclass(frozen=True)
class Graph:
    """A network whose forward makes scores of its inputs, in their order.

    Attributes:
        network: it holds nothing private unless that was asked for.
        inputs: real ones by name, B of them, ``(B, ...)``; to check by, never written.
        about: what each input is, by its name, and the output if there is more to say of it.
        output: name of what it gives.
        expected: ``(B, n)`` what the run's own code gives for these inputs.
        free: axes of inputs that may have any length beside the first, by the input's name.
    """

    network: nn.Module
    inputs: Mapping[str, Tensor]
    about: Mapping[str, str]
    output: str
    expected: Tensor
    free: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Exported:
    """What a run gives to other programs.

    Attributes:
        tested: which round it is of, for people.
        tensors: the model by the names that its file has.
        about: what a tensor is, by its name; those of a network explain themselves.
        absent: what is not given, a line each.
        loading: lines of Python that load the tensors.
        own: tensors that are of the client or user that was asked for, by name; a file apart.
        items: whose rows and columns are items; None for classifiers.
        graph: what scores; None where no other program can.
        no_graph: why not.
        writers: formats that the paper writes itself into a folder; each gives how much what was
            read back differs, as a share of the largest answer.
        loadings: lines of Python that load one of these formats.
        lacking: what one of these formats does not give either, a line each.
        libraries: that read one of them, by the name that Hugging Face's hub has for it.
        files: what the other files of these formats hold, by their names.
    """

    tested: str
    tensors: Mapping[str, Tensor]
    about: Mapping[str, str]
    absent: tuple[str, ...]
    loading: str
    own: Mapping[str, Tensor] = field(default_factory=dict)
    items: Interactions | None = None
    graph: Graph | None = None
    no_graph: str = ""
    writers: Mapping[str, Callable[[Path], float]] = field(default_factory=dict)
    loadings: Mapping[str, str] = field(default_factory=dict)
    lacking: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
