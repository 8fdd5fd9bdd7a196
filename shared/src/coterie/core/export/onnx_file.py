"""A graph of what scores as an ONNX file, read back and compared with the run's own scores."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.extras import require
from coterie.core.run.exported import Graph

NAME = "model.onnx"
ROUNDING = 1e-6
"""Largest difference of a score, as a share of the largest, that is rounding of float32."""
_LARGEST = 2_000_000_000  # bytes that a file of protobuf can have


def write_onnx(graph: Graph, folder: Path) -> float:
    """Write a graph into a folder as `NAME`; its first axis may have any length.

    Args:
        graph: what scores.
        folder: where the file goes.

    Returns:
        The largest difference of a score read back, as a share of the largest score.

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
    _forget_origin(model)
    onnx.checker.check_model(model)
    path = folder / NAME
    onnx.save_model(model, str(path))
    return _checked(graph, path)


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
            program = torch.onnx.export(
                graph.network,
                tuple(inputs.values()),
                dynamo=True,
                input_names=list(inputs),
                output_names=[graph.output],
                dynamic_shapes=tuple(named.values()),
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            raise UserError(f"the network cannot be written in ONNX: {reason}") from None
    assert program is not None
    return program.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's advice to its authors from the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _forget_origin(model: Any) -> None:
    """Leave out from which lines of which files on this machine each node came."""
    parts = [model, model.graph, *model.functions]
    for part in (model.graph, *model.functions):
        parts += [*part.node, *part.value_info]
    parts += [*model.graph.input, *model.graph.output, *model.graph.initializer]
    for part in parts:
        del part.metadata_props[:]
        part.doc_string = ""


def _checked(graph: Graph, path: Path) -> float:
    """Compare what the file gives for all rows, and for one, with what the run gives."""
    run = _reader(path)
    inputs = {name: value.numpy() for name, value in graph.inputs.items()}
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


def described(values: Mapping[str, Tensor]) -> dict[str, str]:
    """Say format and shape of tensors, the first axis open."""
    return {
        name: f"{str(value.dtype).removeprefix('torch.')} {('B', *value.shape[1:])}"
        for name, value in values.items()
    }
