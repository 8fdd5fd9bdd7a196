"""The wire: bit-exact, deterministic, and one line for everything that is not a message."""

import dataclasses
import json
import pickle
import struct
from dataclasses import dataclass
from typing import Literal

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.core.protocol.messages import Down, Private, Report, Reveals, Up, carries, leaves
from coterie.core.tensors.rows import DenseRows, FactoredRows, Rows, TouchedRows
from coterie.core.tensors.stacked import Ragged
from coterie.core.wire.annotations import Nest
from coterie.core.wire.codec import Header, ProtocolError, decode, encode, peek

HEADER = Header("update", (3, 0, 1), 7)
DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool),
]


@dataclass(frozen=True)
class Settings:
    rate: float
    name: str
    epochs: int = 2
    exact: bool = True
    comment: str | None = None


@dataclass(frozen=True)
class Everything(Down):
    weights: dict[str, Tensor] = carries("weights")
    table: Tensor = carries("table")
    history: Ragged = carries("history")
    settings: Settings = carries("settings")
    old: Tensor | None = carries("old", default=None)
    split: Literal["valid", "test"] = carries("split", default="valid")


@dataclass(frozen=True)
class Memory(Private):
    tree: dict[str, Nest]


@dataclass(frozen=True)
class Table(Up):
    items: Rows = leaves("rows", reveals=Reveals.ITEMS_TOUCHED)
    samples: Tensor = leaves("samples", reveals=Reveals.STEPS)


@dataclass(frozen=True)
class Measured(Report):
    loss: Tensor = leaves("loss", reveals=Reveals.MEASUREMENT)


def everything() -> Everything:
    return Everything(
        weights={"layer.weight": torch.randn(3, 2), "a~b": torch.tensor(1.5), "empty": Tensor()},
        table=torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
        history=Ragged.from_lists([[4, 1], [], [2]]),
        settings=Settings(0.1, "ünïcode \n", comment=None),
    )


def table() -> Table:
    rows = TouchedRows(Ragged.from_lists([[1, 4], [], [0]]), torch.randn(3, 2), 5)
    return Table(rows, torch.tensor([2, 0, 1]))


def bits(tensor: Tensor) -> bytes:
    if not tensor.numel():
        return b""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def forge(data: bytes, edit) -> bytes:
    """A well-formed safetensors file whose tensors and JSON part were edited."""
    tensors = safetensors.torch.load(data)
    size = struct.unpack("<Q", data[:8])[0]
    about = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["coterie"])
    edit(tensors, about)
    return safetensors.torch.save(tensors, {"coterie": json.dumps(about)})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)], ids=str)
def test_tensors_travel_bit_exactly(dtype, shape):
    raw = torch.randint(0, 256, (*shape, 8), dtype=torch.uint8)  # any bits: NaN payloads too
    value = raw[..., 0] > 127 if dtype == torch.bool else raw.view(dtype)[..., 0]
    back, header = decode(encode(Measured(value), HEADER), Measured)
    assert back.loss.dtype == dtype
    assert back.loss.shape == value.shape
    assert bits(back.loss) == bits(value)
    assert header == HEADER


def test_nested_fields_come_back_as_they_were():
    message = everything()
    back, _ = decode(encode(message, HEADER), Everything)
    assert back.settings == message.settings
    assert back.old is None
    assert list(back.weights) == list(message.weights)
    assert all(bits(back.weights[k]) == bits(message.weights[k]) for k in message.weights)
    assert back.history.tolists() == message.history.tolists()
    assert bits(back.table) == bits(message.table)


def test_untyped_trees_describe_themselves():
    tree = {
        "slow": {"a.b": torch.ones(2, dtype=torch.float64), "c": {}},
        "items": torch.zeros(2, 0, dtype=torch.int64),
        "n": 3,
        "none": None,
    }
    back = decode(encode(Memory(tree), HEADER), Memory)[0].tree
    assert list(back) == list(tree)
    assert torch.equal(back["slow"]["a.b"], tree["slow"]["a.b"])
    assert back["slow"]["c"] == {}
    assert torch.equal(back["items"], tree["items"])
    assert (back["n"], back["none"]) == (3, None)
    with pytest.raises(ProtocolError, match=r"'tree\.rows' is missing"):
        decode(encode(Memory({"rows": Ragged.from_lists([[1]])}), HEADER), Memory)


@pytest.mark.parametrize("rate", [float("inf"), float("-inf"), 5e-324, 0.1 + 0.2])
def test_floats_come_back_exactly(rate):
    message = dataclasses.replace(everything(), settings=Settings(rate, "x"))
    assert decode(encode(message, HEADER), Everything)[0].settings.rate == rate


def test_rows_travel_as_int32_numbers_and_values():
    rows = FactoredRows(torch.tensor([0, 1, 0]), torch.randn(3, 6).relu(), torch.randn(3, 2), 2)
    data = encode(Table(rows, torch.tensor([2, 1])), HEADER)
    stored = safetensors.torch.load(data)
    assert stored["items.index"].dtype == torch.int32
    back = decode(data, Table)[0].items
    assert torch.equal(back.dense(), rows.wire().dense())
    torch.testing.assert_close(back.sum(), rows.sum())
    assert encode(Table(rows.wire(), torch.tensor([2, 1])), HEADER) == data


def test_a_noisy_table_travels_whole():
    message = Table(DenseRows(torch.randn(3, 5, 2)), torch.tensor([2, 0, 1]))
    data = encode(message, HEADER)
    back = decode(data, Table)[0]
    assert isinstance(back.items, DenseRows)
    assert torch.equal(back.items.values, message.items.values)
    with pytest.raises(ProtocolError, match="2 axes"):
        decode(forge(data, tensor("items.table", torch.zeros(5, 2))), Table)


def test_same_message_same_bytes_whatever_its_memory():
    message = everything()
    strided = dataclasses.replace(
        message,
        weights={
            name: value.T.contiguous().T if value.dim() == 2 else value.clone()
            for name, value in message.weights.items()
        },
    )
    assert encode(message, HEADER) == encode(strided, HEADER)
    again, header = decode(encode(message, HEADER), Everything)
    assert encode(again, header) == encode(message, HEADER)


def test_views_of_one_memory_travel():
    base = torch.arange(6.0)
    message = dataclasses.replace(everything(), weights={"all": base, "part": base[2:4]})
    assert decode(encode(message, HEADER), Everything)[0].weights["part"].tolist() == [2.0, 3.0]


def test_no_message_is_a_message():
    assert decode(encode(None, HEADER), None) == (None, HEADER)
    with pytest.raises(ProtocolError, match="expected NoneType"):
        decode(encode(everything(), HEADER), None)


def test_union_of_messages_is_told_apart_by_class():
    assert isinstance(decode(encode(table(), HEADER), Measured | Table)[0], Table)


@dataclass(frozen=True)
class WithIds:
    """A header that has tensors of its own, under the names of the message's."""

    loss: torch.Tensor
    step: str


def test_tensors_of_the_header_are_not_those_of_the_message():
    header = WithIds(torch.arange(3), "x")
    data = encode(Measured(torch.ones(2)), header)
    message, found = decode(data, Measured, header=WithIds)
    assert message.loss.tolist() == [1.0, 1.0]
    assert found.loss.tolist() == peek(data, header=WithIds).loss.tolist() == [0, 1, 2]
    with pytest.raises(ProtocolError, match="header: field 'nonce' is missing"):
        decode(data, Measured)


def test_peek_reads_the_header():
    assert peek(encode(everything(), Header("a", ()))) == Header("a", ())


def test_wrong_class_is_refused():
    with pytest.raises(ProtocolError, match="message is a 'Table', expected Measured"):
        decode(encode(table(), HEADER), Measured)


def without(name):
    return lambda tensors, about: tensors.pop(name)


def static(name, value):
    return lambda tensors, about: about["static"].__setitem__(name, value)


def tensor(name, value):
    return lambda tensors, about: tensors.__setitem__(name, value)


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (without("table"), "tensor 'table' is missing"),
        (lambda t, a: a["static"].pop("settings.rate"), "'settings.rate' is missing"),
        (tensor("extra", torch.zeros(1)), "'extra' is unknown to Everything"),
        (static("extra", 1), "'extra' is unknown"),
        (static("settings.rate", "fast"), "'settings.rate' is not of type"),
        (static("settings.epochs", True), "'settings.epochs' is not of type"),
        (static("settings.epochs", 1.0), "'settings.epochs' is not of type"),
        (static("split", "train"), "'split' is not of type"),
        (static("split", []), "'split' is not of type"),
        (static("table", None), "'table' is unknown"),
        (static("weights", ["layer.weight", "a~b"]), "'weights.empty' is unknown"),
        (static("weights", ["no"]), "'weights.no' is missing"),
        (static("weights", [1]), "no list of keys"),
        (tensor("history.offsets", torch.tensor([0, 2, 1, 3])), "offsets that do not run"),
        (tensor("history.offsets", torch.tensor([0, 9])), "offsets that do not run"),
        (tensor("history.offsets", torch.tensor([0.0, 3.0])), "offsets that are not int64"),
        (tensor("history.offsets", torch.tensor(0)), "offsets that are not int64"),
        (tensor("history.values", torch.tensor(0)), "offsets that do not run"),
        (lambda t, a: a.update(version=2), "protocol version"),
        (lambda t, a: a.pop("static"), "static fields are missing"),
        (lambda t, a: a.pop("header"), "header: static fields are missing"),
        (lambda t, a: a["header"].update(nonce=[1.5]), "header: field 'nonce' has no length"),
        (lambda t, a: a["header"].update(client="me"), "header: field 'client' is not of type"),
        (lambda t, a: a.update(message=["Everything"]), "expected Everything"),
    ],
)
def test_forged_fields_are_refused_in_one_line(edit, complaint):
    with pytest.raises(ProtocolError, match=complaint) as caught:
        decode(forge(encode(everything(), HEADER), edit), Everything)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (tensor("items.index", torch.tensor([1, 4, 0])), "not int32"),
        (tensor("items.index", torch.tensor([1, 5, 0], dtype=torch.int32)), "outside 0..4"),
        (tensor("items.index", torch.tensor([1, -1, 0], dtype=torch.int32)), "outside 0..4"),
        (tensor("items.index", torch.tensor([4, 1, 0], dtype=torch.int32)), "do not ascend"),
        (tensor("items.index", torch.tensor([1, 1, 0], dtype=torch.int32)), "do not ascend"),
        (tensor("items.values", torch.zeros(2, 2)), "one value a row"),
        (tensor("items.values", torch.zeros(3)), "one value a row"),
        (static("items.n_rows", -1), "not int32"),
        (static("items.n_rows", 3), "outside 0..2"),
    ],
)
def test_forged_rows_are_refused(edit, complaint):
    with pytest.raises(ProtocolError, match=complaint):
        decode(forge(encode(table(), HEADER), edit), Table)


def test_every_truncation_and_any_tail_is_refused():
    data = encode(table(), HEADER)
    for end in range(len(data)):
        with pytest.raises(ProtocolError):
            decode(data[:end], Table)
    with pytest.raises(ProtocolError):
        decode(data + b"\0", Table)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 64,
        pickle.dumps({"a": 1}),
        safetensors.torch.save({"a": torch.zeros(1)}),
        safetensors.torch.save({"a": torch.zeros(1)}, {"coterie": "{"}),
        safetensors.torch.save({"a": torch.zeros(1)}, {"coterie": "[" * 100_000}),
        safetensors.torch.save({"a": torch.zeros(1)}, {"coterie": "[]"}),
        safetensors.torch.save({"a": torch.zeros(1)}, {"coterie": "9" * 10_000}),
    ],
)
def test_what_is_no_message_is_refused(data):
    for reader in (lambda: decode(data, Table), lambda: peek(data)):
        with pytest.raises(ProtocolError) as caught:
            reader()
        assert "\n" not in str(caught.value)


def test_oversized_bytes_are_refused_unread():
    with pytest.raises(ProtocolError, match="over the limit of 10"):
        decode(b"x" * 11, Table, max_bytes=10)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_one_wrong_byte_never_raises_anything_else(place, byte):
    data = bytearray(encode(Table(table().items, torch.tensor([1, 2, 3])), HEADER))
    data[place % len(data)] = byte
    try:
        message, _ = decode(bytes(data), Table)
    except ProtocolError:
        return
    assert isinstance(message, Table)


@pytest.mark.parametrize("value", [object(), {1: torch.zeros(1)}, {1.0}, b"bytes"])
def test_what_cannot_travel_is_refused_by_the_sender(value):
    with pytest.raises(ProtocolError, match=r"cannot travel|not strings"):
        encode(Measured(value), HEADER)
