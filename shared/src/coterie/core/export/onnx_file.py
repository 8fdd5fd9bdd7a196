"""A graph of what scores as an ONNX file, read back and compared with the run's own scores."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.core.extras import require
from coterie.core.run.exported import Graph

NAME = "model.onnx"
ROUNDING = 1e-6
"""Largest difference of a score, as a share of the largest, that is rounding of float32."""
_LARGEST = 2_000_000_000  # bytes that a file of protobuf can have


@dataclass(frozen=True)
class OnnxFile:
    """What was written.

    Attributes:
        difference: of the largest score read back, as a share of the largest score.
        inputs: names of those that the network reads, in their order.
    """

    difference: float
    inputs: tuple[str, ...]


def write_onnx(graph: Graph, folder: Path) -> OnnxFile:
    """Write a graph into a folder as `NAME`; its first axis may have any length.

    Args:
        graph: what scores.
        folder: where the file goes.

    Raises:
        UserError: a package is missing, the graph is too large for a file, it cannot be written in
            ONNX, or it does not give the run's scores.
    """
    require("export", "coterie export --format onnx", "onnx", "onnxscript")
    import onnx

    network = graph.network.eval()
    size = sum(value.nbytes for value in network.state_dict().values())
    if size > _LARGEST:
        raise UserError(f"the model has {size:,} bytes, and an ONNX file holds {_LARGEST:,}")
    model = _translated(graph)
    _leave_unread_out(model)
    _forget_origin(model)
    onnx.checker.check_model(model)
    path = folder / NAME
    onnx.save_model(model, str(path))
    names = [value.name for value in model.graph.input]
    return OnnxFile(_checked(graph, names, path), tuple(names))


class _Positional(nn.Module):
    """A network whose forward takes any number of tensors, so that their axes can be told alike."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Tensor) -> Tensor:
        found: Tensor = self.network(*inputs)
        return found


def _translated(graph: Graph) -> Any:
    inputs = graph.inputs
    rows = torch.export.Dim("batch")
    named = {
        name: {0: rows, **{axis: torch.export.Dim(word) for axis, word in axes.items()}}
        for name in inputs
        for axes in [graph.free.get(name, {})]
    }
    with _quiet():
        try:
            # Not by torch.onnx.export alone: it falls back on ways that fix the first axis.
            traced = torch.export.export(
                _Positional(graph.network),
                tuple(inputs.values()),
                dynamic_shapes=(tuple(named.values()),),
                strict=False,
            )
            program = torch.onnx.export(
                traced,
                dynamo=True,
                input_names=list(inputs),
                output_names=[graph.output],
                verbose=False,
            )
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"the network cannot be written in ONNX: {reason:.300}") from error
    assert program is not None
    return program.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's advice to its authors from the user."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _leave_unread_out(model: Any) -> None:
    """Take out inputs that no node reads: the exporter keeps them with the length they had."""
    read = {name for node in model.graph.node for name in node.input}
    read |= {value.name for value in model.graph.output}
    kept = [value for value in model.graph.input if value.name in read]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def _forget_origin(model: Any) -> None:
    """Leave out from which lines of which files on this machine each node came."""
    parts = [model, model.graph, *model.functions]
    for part in (model.graph, *model.functions):
        parts += [*part.node, *part.value_info]
    parts += [*model.graph.input, *model.graph.output, *model.graph.initializer]
    for part in parts:
        del part.metadata_props[:]
        part.doc_string = ""


def _checked(graph: Graph, names: Sequence[str], path: Path) -> float:
    """Compare what the file gives for all rows, and for one, with what the run gives."""
    run = _reader(path)
    inputs = {name: graph.inputs[name].numpy() for name in names}
    expected = graph.expected.numpy()
    found = run(inputs)
    one = run({name: value[:1] for name, value in inputs.items()})
    differences = [difference(found, expected), difference(one, expected[:1])]
    if not max(differences) <= ROUNDING:
        raise UserError(
            f"the graph read back differs by {max(differences):.1e} of the largest score, above "
            f"{ROUNDING:.0e}: not exported"
        )
    return max(differences)


def _reader(path: Path) -> Any:
    if find_spec("onnxruntime") is not None:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return lambda inputs: session.run(None, inputs)[0]
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(str(path))
    return lambda inputs: evaluator.run(None, dict(inputs))[0]


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference, as a share of the largest value; infinite where shapes differ.

    Example:
        >>> difference(np.array([1.0, 4.0]), np.array([1.0, 4.5])) == 0.5 / 4.5
        True
    """
    if found.shape != expected.shape or not np.array_equal(np.isnan(found), np.isnan(expected)):
        return float("inf")
    if not expected.size:
        return 0.0
    with np.errstate(invalid="ignore"):
        apart = np.where(found == expected, 0.0, np.abs(found - expected))
    largest = np.abs(expected).max()
    return float(apart.max() / largest) if apart.any() else 0.0


def described(
    values: Mapping[str, Tensor], free: Mapping[str, Mapping[int, str]] | None = None
) -> dict[str, str]:
    """Say format and shape of tensors, the first axis open.

    Args:
        values: tensors by name.
        free: names of other axes that may have any length, by the tensor's name.

    Example:
        >>> described({"x": torch.zeros(3, 7, 2)}, {"x": {1: "length"}})
        {'x': 'float32 (B, length, 2)'}
    """
    found = {}
    for name, value in values.items():
        open_axes = {0: "B", **(free or {}).get(name, {})}
        axes = [open_axes.get(axis, str(size)) for axis, size in enumerate(value.shape)]
        found[name] = f"{str(value.dtype).removeprefix('torch.')} ({', '.join(axes)})"
    return found
