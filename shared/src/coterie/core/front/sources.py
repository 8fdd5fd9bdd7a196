"""One data set, in whatever form it comes, as fields of tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from coterie.core.errors import UserError, nearest
from coterie.core.front.partition import BatchForm, dict_form, taken_apart

Fields = dict[str, Tensor]
Collate = Callable[[list[Any]], Any]
"""Makes of a list of samples a batch, as of `torch.utils.data.DataLoader`."""

FRAME, TABLE, TENSORS, ITEMS = "DataFrame", "datasets.Dataset", "dict of tensors", "Dataset"
_TRIED = 16
"""Samples that are read twice: one that is flipped by chance is alike twice half of the time."""


def kind_of(source: Any, whose: str) -> str:
    """Say in which form a data set comes.

    Args:
        source: any.
        whose: for errors, such as "client 3".

    Raises:
        UserError: in none that is known.
    """
    frame = getattr(sys.modules.get("pandas"), "DataFrame", None)
    if frame is not None and isinstance(source, frame):
        return FRAME
    if hasattr(source, "with_format") and hasattr(source, "column_names"):
        if isinstance(source, Mapping):
            raise UserError(f"{whose} is a DatasetDict: give one of its splits, as data['train']")
        return TABLE
    if isinstance(source, Mapping):
        if is_columns(source):
            return TENSORS
        raise UserError(f"{whose} is a dict of other things than tensors: make them tensors")
    if isinstance(source, tuple) and source and all(map(_is_array, source)):
        raise UserError(
            f"{whose} is a tuple of tensors, which says not whether these are samples or columns: "
            "give TensorDataset(*tensors), or a list of samples"
        )
    if hasattr(source, "to_pandas") and not isinstance(source, Dataset):
        raise UserError(f"{whose} is a {type(source).__name__}: give its .to_pandas()")
    if isinstance(source, DataLoader):
        raise UserError(f"{whose} is a DataLoader, which coterie makes itself: give its .dataset")
    if isinstance(source, IterableDataset):
        raise UserError(f"{whose} is an IterableDataset, without a length: give list(dataset)")
    if isinstance(source, str | bytes | Tensor | np.ndarray | torch.nn.Module | type):
        what = source.__name__ if isinstance(source, type) else type(source).__name__
        raise UserError(
            f"{whose} is a {what}: give a torch Dataset, a datasets.Dataset, a dict of tensors or "
            "a DataFrame"
        )
    if isinstance(source, Dataset) or (
        hasattr(source, "__len__") and hasattr(source, "__getitem__")
    ):
        if not hasattr(source, "__len__"):
            raise UserError(f"{whose} has no len(): give a Dataset with __len__ and __getitem__")
        return ITEMS
    raise UserError(
        f"{whose} is a {type(source).__name__}: give a torch Dataset, a datasets.Dataset, a "
        "dict of tensors or a DataFrame"
    )


def is_columns(source: Mapping[Any, Any]) -> bool:
    """Whether a mapping is one data set, and not a mapping of clients."""
    return bool(source) and all(
        _is_array(value)
        or (isinstance(value, list | tuple) and not any(_is_source(one) for one in value[:1]))
        for value in source.values()
    )


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def _is_source(value: Any) -> bool:
    return isinstance(value, list | tuple | Mapping) or _is_array(value)


def read(source: Any, whose: str) -> tuple[Fields, BatchForm | None]:
    """Read a data set; the form is None where an empty one does not tell.

    Args:
        source: of a form that `kind_of` knows.
        whose: for errors.

    Raises:
        UserError: something in it is no tensor, or rows are ragged.
    """
    kind = kind_of(source, whose)
    if kind == ITEMS:
        return _of_items(source, whose)
    if kind in (FRAME, TENSORS):
        _check_names(source.columns if kind == FRAME else source, whose)
    columns = {FRAME: _of_frame, TABLE: _of_table, TENSORS: _of_tensors}[kind](source, whose)
    for name, values in columns.items():
        if not values.dim():
            raise UserError(f"'{name}' of {whose} must have one row a sample, not one number")
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        what = ", ".join(f"{length} of '{name}'" for name, length in lengths.items())
        raise UserError(f"{whose} has rows of unequal numbers: {what}")
    return columns, dict_form(list(columns))


def read_together(
    sources: Sequence[Any], names: Sequence[str], collate: Collate
) -> tuple[list[Fields], BatchForm | None]:
    """Read data sets by one call of ``collate`` with all samples, so that all have one width.

    Args:
        sources: torch Datasets.
        names: of whom, for errors.
        collate: of the user.

    Raises:
        UserError: what it gives does not hold a row for each sample, or the rows of a sample depend
            on the others of its batch.
    """
    items = [
        item for source, whose in zip(sources, names, strict=True) for item in _items(source, whose)
    ]
    if not items:
        return [{} for _ in sources], None
    fields, form = taken_apart(collate(items))
    for name, values in fields.items():
        if values.shape[:1] != (len(items),):
            raise UserError(
                f"collate_fn gives '{name}' of shape {tuple(values.shape)} for {len(items)} "
                "samples: its first axis must be the samples"
            )
    some, same = taken_apart(collate(items[:2]))
    if same != form or not all(_same_rows(fields[n][:2], values) for n, values in some.items()):
        raise UserError(
            "collate_fn gives a sample other rows in another batch: let it only pad, on "
            "one side, and leave out what draws or mixes samples"
        )
    lengths = [len(source) for source in sources]
    parts = {name: values.split(lengths) for name, values in fields.items()}
    return [{n: part[k] for n, part in parts.items()} for k in range(len(sources))], form


def _same_rows(wide: Tensor, narrow: Tensor) -> bool:
    """Whether rows are the same but for padding on the right or on the left."""
    if wide.dtype != narrow.dtype or wide.dim() != narrow.dim():
        return False
    left = right = wide
    for axis, size in enumerate(narrow.shape):
        if size > wide.shape[axis]:
            return False
        left = left.narrow(axis, 0, size)
        right = right.narrow(axis, wide.shape[axis] - size, size)
    return any(torch.allclose(one, narrow, equal_nan=True) for one in (left, right))


def _items(source: Any, whose: str) -> list[Any]:
    items = [source[place] for place in range(len(source))]
    for place in range(min(_TRIED, len(items))):
        if not _equal(items[place], source[place]):
            raise UserError(
                f"{whose} gives another sample {place} each time: samples are read once, so leave "
                "augmentation out, or make the augmented samples beforehand"
            )
    return items


def _of_items(source: Any, whose: str) -> tuple[Fields, BatchForm | None]:
    if type(source) is Subset and type(source.dataset) is TensorDataset:
        fields, form = _of_items(source.dataset, whose)
        places = torch.as_tensor(list(source.indices), dtype=torch.int64)
        return {name: values[places] for name, values in fields.items()}, form
    if type(source) is TensorDataset:
        return taken_apart(list(source.tensors))
    items = _items(source, whose)
    if not items:
        return {}, None
    try:
        batch = default_collate(items)
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        reason = str(error).splitlines()[0][:120]
        raise UserError(
            f"the samples of {whose} cannot be stacked ({reason}): give collate_fn= that pads them "
            "or makes tensors of them"
        ) from error
    return taken_apart(batch)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor | np.ndarray | float):
        left, right = (np.asarray(value) for value in (one, other))
        return left.shape == right.shape and bool(
            np.array_equal(left, right, equal_nan=left.dtype.kind in "fc")
        )
    if isinstance(one, Mapping):
        return all(_equal(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return one is other or bool(one == other)


def _of_frame(frame: Any, whose: str) -> Fields:
    return {str(name): _of_column(frame[name].to_numpy(), str(name), whose) for name in frame}


def _of_column(values: np.ndarray, name: str, whose: str) -> Tensor:
    if values.dtype.kind in "biuf":
        found = torch.as_tensor(np.ascontiguousarray(values).copy())
        # pandas makes every fraction 64 bits wide, and parameters are as torch makes them
        return found.to(torch.get_default_dtype()) if found.is_floating_point() else found
    if (
        values.dtype.kind == "O"
        and len(values)
        and isinstance(values[0], list | tuple | np.ndarray)
    ):
        lengths = {np.shape(row) for row in values}
        if len(lengths) > 1:
            raise UserError(f"'{name}' of {whose} has rows of unequal lengths: pad them before")
        return _of_column(np.stack([np.asarray(row) for row in values]), name, whose)
    raise UserError(
        f"column '{name}' of {whose} is no numbers ({values.dtype}): encode it, fill what is "
        "missing, or leave it out"
    )


def _of_table(table: Any, whose: str) -> Fields:
    found = {}
    columns = table.with_format("torch")[:]
    for name in table.column_names:
        values = columns[name]
        if not isinstance(values, Tensor):
            raise UserError(
                f"column '{name}' of {whose} gives no tensor (text, or rows of unequal lengths): "
                "tokenise, pad, or remove it by remove_columns"
            )
        found[str(name)] = values
    return found


def _of_tensors(source: Mapping[Any, Any], whose: str) -> Fields:
    found = {}
    for name, values in source.items():
        try:
            found[str(name)] = torch.as_tensor(values)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(
                f"'{name}' of {whose} cannot be a tensor: encode it as numbers, or leave it out"
            ) from error
    return found


def _check_names(columns: Any, whose: str) -> None:
    """Refuse two columns of one name, of which one would be lost."""
    names: set[str] = set()
    for name in map(str, columns):
        if name in names:
            raise UserError(f"{whose} has two columns '{name}': rename one, or leave it out")
        names.add(name)


def column_of(source: Any, name: str, whose: str) -> tuple[list[Any], Any]:
    """Take a column out of a data set; give its values, and the data set without.

    Args:
        source: of a form that `kind_of` knows.
        name: of the column.
        whose: for errors.

    Raises:
        UserError: there is no such column.
    """
    kind = kind_of(source, whose)
    if kind == FRAME:
        _check_names(source.columns, whose)
        _check_column(name, source.columns, whose)
        label = next(one for one in source.columns if str(one) == str(name))
        return source[label].tolist(), source.drop(columns=[label])
    if kind == TABLE:
        _check_column(name, source.column_names, whose)
        return list(source[name]), source.remove_columns([name])
    if kind == TENSORS:
        _check_column(name, source, whose)
        values = source[name]
        rest = {field: value for field, value in source.items() if field != name}
        return (values.tolist() if hasattr(values, "tolist") else list(values)), rest
    fields, form = read(source, whose)
    if form is None or not form.is_dict:
        raise UserError(
            f"client_column='{name}' names a field of samples that are dicts, and those of {whose} "
            "are not: give a dict of tensors, or a list with one Dataset a client"
        )
    _check_column(name, fields, whose)
    return fields[name].tolist(), {field: v for field, v in fields.items() if field != name}


def _check_column(name: str, known: Any, whose: str) -> None:
    names = [str(one) for one in known]
    if name not in names:
        raise UserError(f"{whose} has no column '{name}': {nearest(name, names)}")
