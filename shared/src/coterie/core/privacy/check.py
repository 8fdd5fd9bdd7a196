"""Checks for tests of algorithms: what an upload declares is what it reveals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from coterie.core.protocol.messages import EVERYTHING, Down, Private, Up, declared
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.tensors.rows import Rows
from coterie.core.tensors.stacked import Ragged

Perturb = Callable[[Any], Any]


def assert_no_shared_storage(up: Any, private: Any) -> None:
    """Assert that no tensor of an upload lies in memory of the private state.

    A shared tensor would let the server read what the client writes later.

    Raises:
        AssertionError: names both fields.
    """
    owned = {address: path for path, address in _addresses(private)}
    for path, address in _addresses(up):
        if address in owned:
            raise AssertionError(f"upload '{path}' shares memory with private '{owned[address]}'")


def assert_non_interference(
    client: Any,
    step: str,
    down: Down | None,
    mine: Private,
    data: Any,
    key: Key,
    perturb: Mapping[str, Perturb] | None = None,
) -> None:
    """Assert that private fields influence only the upload fields that declare it.

    Runs the step, then once for each private field with that field changed: every upload field
    whose ``depends_on`` does not name it must stay bit-equal. ``perturb`` says how to change a
    private field where the default (`perturbed`) would make no valid value; the rest is what the
    step receives, stacked over C clients.

    Raises:
        AssertionError: names the upload's field and the private field; also where ``depends_on``
            names no private field, or the step uploads nothing.
    """
    before = _upload(client, step, down, mine, data, key)
    fields = declared(type(before))
    names = {field.name for field in dataclasses.fields(mine)}
    for leaf in fields:
        unknown = leaf.depends_on - names - EVERYTHING
        assert not unknown, f"'{leaf.name}' depends on unknown private fields {sorted(unknown)}"
    for name in sorted(names):
        change = (perturb or {}).get(name, perturbed)
        changed = dataclasses.replace(mine, **{name: change(tree.clone(getattr(mine, name)))})
        after = _upload(client, step, down, changed, data, key)
        for leaf in fields:
            same = _bits(getattr(before, leaf.name)) == _bits(getattr(after, leaf.name))
            assert same or leaf.depends_on & {name, *EVERYTHING}, (
                f"{type(before).__name__}.{leaf.name} changes with private '{name}', which "
                f"depends_on does not name"
            )


def perturbed(value: Any) -> Any:
    """Change every value of a tree: floats moved, booleans negated, integers one up.

    Rows of item ids (`Ragged`) are reversed as a whole, so that they stay valid ids. Plain values
    stay.
    """
    return tree.map_values(_perturbed, value)


def _perturbed(value: Any) -> Any:
    if isinstance(value, Ragged):
        return Ragged(value.values.flip(0), value.offsets)
    if not isinstance(value, Tensor):
        return tree.map_tensors(_perturbed, value)
    if value.is_floating_point():
        return value * 1.5 + 0.25
    return ~value if value.dtype == torch.bool else value + 1


def _upload(client: Any, step: str, down: Any, mine: Any, data: Any, key: Key) -> Up:
    # Copies, since a step that writes into its input must not change the comparison.
    up, _ = getattr(client, step)(down, tree.clone(mine), data, key)
    assert up is not None, f"step '{step}' uploads nothing"
    return up


def _bits(value: Any) -> list[tuple[str, bytes]]:
    """The bytes of a field as it travels; NaN equals NaN."""
    found = []
    for path, leaf in tree.leaves({"": value}):
        parts = list(tree.tensors(leaf.wire() if isinstance(leaf, Rows) else leaf))
        found += [(path, part.detach().contiguous().numpy().tobytes()) for _, part in parts]
        if not parts:
            found.append((path, repr(leaf).encode()))
    return found


def _addresses(message: Any) -> list[tuple[str, int]]:
    return [
        (path, leaf.untyped_storage().data_ptr())
        for path, leaf in tree.tensors(message)
        if leaf.untyped_storage().nbytes()
    ]
