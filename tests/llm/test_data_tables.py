"""Hugging Face tables: the same numbers, shared memory, and back."""

import subprocess
import sys
from dataclasses import replace

import datasets
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.data.interactions.kcore import k_core
from coterie.core.data.sources.sample import generate
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ragged import Ragged
from coterie.llm.data.client_data import build
from coterie.llm.data.tables import examples_of, item_table, list_array, ragged_of

lists = st.lists(st.lists(st.integers(-(2**62), 2**62), max_size=5), max_size=8)


@pytest.fixture(scope="module")
def data():
    return build(k_core(generate(), 5), 4, Key.from_seed(0))


def test_rows_are_the_clients_examples(data):
    rows = data.examples.to_list()
    wanted = [
        {"client": client, "history": history, "target": target}
        for client, part in enumerate(data.clients.train)
        for history, target in zip(part.history.tolists(), part.target.tolist(), strict=True)
    ]
    assert rows == wanted


def test_memory_is_shared_both_ways():
    rows = Ragged.from_lists([[1, 2], [], [3]])
    column = list_array(rows)
    back = ragged_of(pa.chunked_array([column]))
    assert back.values.data_ptr() == column.values.buffers()[1].address == rows.values.data_ptr()
    assert back.offsets.data_ptr() == rows.offsets.data_ptr()


@given(lists, lists, st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_any_pieces_and_slices(first, second, start):
    column = pa.chunked_array([list_array(Ragged.from_lists(part)) for part in (first, second)])
    assert ragged_of(column).tolists() == first + second
    assert ragged_of(column.slice(start)).tolists() == (first + second)[start:]
    narrow = pa.chunked_array([pa.array(first, pa.list_(pa.int64()))])  # 32-bit offsets
    assert ragged_of(narrow.slice(start)).tolists() == first[start:]


def test_saved_tables_are_memory_mapped_and_equal(data, tmp_path):
    data.examples.save_to_disk(tmp_path / "examples")
    loaded = datasets.load_from_disk(str(tmp_path / "examples"))
    assert loaded.cache_files
    back = examples_of(loaded)
    whole = examples_of(data.examples)
    assert torch.equal(back.target, whole.target)
    assert torch.equal(back.history.values, whole.history.values)
    assert torch.equal(back.history.offsets, whole.history.offsets)


def test_a_selection_of_rows(data):
    mine = data.examples.filter(lambda row: row["client"] == 2)
    back, wanted = examples_of(mine), data.clients.train[2]
    assert torch.equal(back.target, wanted.target)
    assert back.history.tolists() == wanted.history.tolists()
    assert len(examples_of(data.examples.select([]))) == 0


def test_items(data):
    film = data.items[0]
    assert film["title"] == data.titles()[0]
    assert film["category"] == ", ".join(data.interactions.genres[0])
    assert film["text"] == f"{film['title']}, {film['category']}"
    assert film["brand"] == ""
    assert len(data.items) == data.n_items
    odd = replace(
        data.interactions,
        item_names=["1", "2"],
        titles=["Same\n name", "Same\n name"],
        brands=["", "B"],
        genres=None,
    )
    assert item_table(odd)["text"][:] == ["Same name", "Same name, B"]


def test_items_without_titles(data):
    with pytest.raises(UserError, match="has no titles"):
        item_table(replace(data.interactions, titles=None))


def test_examples_do_not_need_the_library():
    code = (
        "import sys, coterie.llm.data.client_data, coterie.llm.data.amazon;"
        "print({'datasets', 'transformers', 'lightning'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
