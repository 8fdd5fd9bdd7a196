"""Steps of clients, run again as the list of operations that one of them was made of.

Of a small model, most of a step's time is Python: the module's, `torch.func.vmap`'s, autograd's.
Operations, their order and their numbers are the same at every step whose tensors have one form,
for the loss is a pure function of them. So a form that comes often is recorded, what is computed
for nobody is left out, and the rest is run directly. Results are the same bits: they are compared
when it is recorded, in the next call and, now and again, later.

Not recorded are steps that read other tensors than they are given, draw, choose by the numbers in
tensors, or write into what they are given.
"""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.core.errors import UserError
from coterie.core.tensors import tree

log = logging.getLogger(__name__)

Function = Callable[..., Any]
"""From dicts of tensors to dicts and tuples of tensors."""
_OFTEN = 5
"""Calls of a form before it is recorded, which takes as long as some of them."""
_AGAIN = 128
"""Calls after which the bits are compared again."""
_MOST = 256
"""Forms of a function; clients that leave the stack one by one make a new one each."""


@dataclass
class _Form:
    """Calls whose tensors have the same names, shapes, strides and types."""

    calls: int = 0
    run: Function | None = None
    refused: bool = False


@dataclass
class Recorded:
    """A function of trees of tensors, recorded where it is called often.

    Args:
        name: of the function, for errors.

    Example:
        >>> double, recorded = lambda batch: (batch["x"] * 2,), Recorded("double")
        >>> found = [recorded(double, {"x": torch.full((2,), float(n))}) for n in range(20)]
        >>> found[-1][0].tolist(), recorded.graphs
        ([38.0, 38.0], 1)
    """

    name: str
    _forms: dict[Any, _Form] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def graphs(self) -> int:
        """How many forms are recorded."""
        return sum(form.run is not None for form in self._forms.values())

    def __call__(self, function: Function, *trees: dict[str, Tensor]) -> Any:
        """Call the function, or run what it was made of.

        Raises:
            UserError: its results are no longer those of what was recorded.
        """
        leaves = [leaf for part in trees for leaf in part.values()]
        form = self._form(trees, leaves)
        if form is None or form.refused:
            return function(*trees)
        calls = form.calls = form.calls + 1
        with torch.no_grad() if torch.is_grad_enabled() else nullcontext():
            if form.run is not None and calls % _AGAIN != 1:
                return form.run(*leaves)
            found = function(*trees)
            if form.run is not None:
                self._check(form, calls, found, leaves)
            elif calls >= _OFTEN:
                self._record(form, function, trees, leaves, found)
            return found

    def _form(self, trees: tuple[dict[str, Tensor], ...], leaves: list[Tensor]) -> _Form | None:
        if not all(leaf.is_cpu and leaf.layout is torch.strided for leaf in leaves):
            return None
        key = (*map(tuple, trees), *((leaf.shape, leaf.stride(), leaf.dtype) for leaf in leaves))
        form = self._forms.get(key)
        if form is None and len(self._forms) < _MOST:
            form = self._forms.setdefault(key, _Form())
        return form

    def _record(
        self, form: _Form, function: Function, trees: Any, leaves: list[Tensor], found: Any
    ) -> None:
        with self._lock:
            if form.run is not None or form.refused:
                return
            try:
                run = record(lambda: function(*trees), leaves)
                form.refused = run is None or not _same(run(*leaves), found)
            except Exception as error:  # of being watched: the function has just run without
                log.debug("%s is not recorded: %s", self.name, error)
                form.refused = True
            form.calls, form.run = 0, None if form.refused else run

    def _check(self, form: _Form, calls: int, found: Any, leaves: list[Tensor]) -> None:
        assert form.run is not None
        if _same(form.run(*leaves), found):
            return
        form.refused = True
        if calls > 1:
            raise UserError(
                f"{self.name} reads something that has changed since it was recorded, some steps "
                "ago: let the batch or the parameters bring it"
            )


def record(call: Callable[[], Any], given: list[Tensor]) -> Function | None:
    """Record what a call does with tensors; return a function of these that does it again.

    None where that is impossible: it reads other tensors, or numbers off a tensor; it draws, or
    writes into what is given.
    """
    recorder = _Recorder(given)
    with recorder, _Reading(recorder):
        results = call()
    graph = recorder.graph
    graph.output(recorder.noted(results))
    if not recorder.writes:
        _simplify(graph)
    graph.eliminate_dead_code()
    if recorder.refused or any(node.op == "get_attr" for node in graph.nodes):
        return None
    return GraphModule({}, graph).forward


class _Recorder(TorchDispatchMode):
    """Notes every operation below autograd and `vmap` as a node of a graph.

    Attributes:
        graph: of the operations.
        writes: whether one of them writes into a tensor.
        refused: whether one of them cannot be run again.
    """

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()
        self.graph, self.writes, self.refused = Graph(), False, False
        self._alive: list[Tensor] = []  # so that no other tensor gets the identity of one
        self._nodes: dict[int, Node] = {}
        self._given = {leaf.untyped_storage().data_ptr() for leaf in given}
        for number, leaf in enumerate(given):
            self._note(leaf, self.graph.placeholder(f"given_{number}"))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch's compiler, never used here, is loaded for a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and note it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.refused |= torch.Tag.nondeterministic_seeded in func.tags or _chooses(func, args)
        if func._schema.is_mutable:
            self.writes = True
            self.refused |= any(map(self._not_ours, _written(func, args, kwargs)))
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if first is not None and _nothing_done(func, first, result):
            self._note(result, self.node(first))
            return result
        node = self.graph.call_function(func, self.noted(args), self.noted(kwargs))
        if isinstance(result, Tensor):
            self._note(result, node)
        elif isinstance(result, tuple | list):
            for number, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._note(part, self.graph.call_function(operator.getitem, (node, number)))
        else:
            self.refused = True  # a number that is read off a tensor
        return result

    def node(self, tensor: Tensor) -> Node:
        """What gives a tensor; a constant where it was not seen before."""
        known = self._nodes.get(id(tensor))
        if known is None:
            known = self.graph.create_node("get_attr", f"constant_{len(self._alive)}")
            self._note(tensor, known)
        return known

    def _note(self, tensor: Tensor, node: Node) -> None:
        self._alive.append(tensor)
        self._nodes[id(tensor)] = node
        node.meta.setdefault("dtype", tensor.dtype)

    def noted(self, arguments: Any) -> Any:
        """Give nodes in the place of tensors."""
        if isinstance(arguments, Tensor):
            return self.node(arguments)
        if isinstance(arguments, tuple | list):
            return type(arguments)(self.noted(part) for part in arguments)
        if isinstance(arguments, dict):
            return {name: self.noted(part) for name, part in arguments.items()}
        return arguments

    def _not_ours(self, argument: Any) -> bool:
        """Whether it is a tensor that was not made on the way."""
        if not isinstance(argument, Tensor):
            return False
        made = self._nodes.get(id(argument))
        given = argument.untyped_storage().data_ptr() in self._given
        return given or made is None or made.op == "get_attr"


class _Reading(TorchFunctionMode):
    """Sees numbers being read off tensors past all operations."""

    def __init__(self, recorder: _Recorder) -> None:
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        self._recorder.refused |= func in _READ
        return func(*args, **(kwargs or {}))


_READ = {Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.data_ptr, Tensor.untyped_storage}


def _chooses(func: Any, args: Any) -> bool:
    """Whether the shape of what an operation gives depends on numbers in tensors."""
    if func is torch.ops.aten.index.Tensor:
        return any(part is not None and part.dtype in (torch.bool, torch.uint8) for part in args[1])
    return torch.Tag.dynamic_output_shape in func.tags


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """What an operation writes into."""
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[number] if number < len(args) else kwargs.get(argument.name)


def _simplify(graph: Graph) -> None:
    """Compute nothing twice, and no product with 1; only where nothing is written into."""
    known: dict[str, Node] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        same = known.setdefault(f"{node.target} {node.args} {node.kwargs}", node)
        if node.target is _TIMES and node.args[1] == 1:  # of vectorised biases and their gradients
            same = node.args[0] if node.args[0].meta["dtype"] == node.meta["dtype"] else same
        if same is not node:
            node.replace_all_uses_with(same)


_TIMES = torch.ops.aten.mul.Scalar
_VIEWS = {
    torch.ops.aten.alias.default,
    torch.ops.aten.detach.default,
    torch.ops.aten.expand.default,
    torch.ops.aten.view.default,
    torch.ops.aten._unsafe_view.default,
}


def _nothing_done(func: Any, tensor: Tensor, result: Any) -> bool:
    """Whether an operation gave what it got, without autograd the same tensor."""
    return (
        func in _VIEWS and result.shape == tensor.shape and result.data_ptr() == tensor.data_ptr()
    )


def _same(first: Any, second: Any) -> bool:
    pairs = zip(tree.tensors(first), tree.tensors(second), strict=True)
    return all(_bits(one, other) for (_, one), (_, other) in pairs)


def _bits(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    same = (one == other) | ((one != one) & (other != other))  # NaN is NaN
    return bool(same.all())


_OF_FUNCTIONS: WeakKeyDictionary[Any, dict[Any, Recorded]] = WeakKeyDictionary()


def recorded(function: Any, way: Any) -> Recorded:
    """What is recorded of a function, such as a loss, and of one way to call it.

    It is forgotten with the function. A method that is looked up anew for each call, or a function
    made for it, is another one each time and never recorded.
    """
    new = Recorded(getattr(function, "__qualname__", type(function).__name__))
    try:
        return _OF_FUNCTIONS.setdefault(function, {}).setdefault(way, new)
    except TypeError:  # what cannot be told from others by its identity
        return new
