"""The converter of big CSV files, against a naive reader; its faults, and what it leaves behind."""

import csv
import io
import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.data.packed_text import packed

from coterie.core.data.sources import arrow_samples, csv_blocks, sample_forms
from coterie.core.data.sources.arrow_samples import Converted, convert, described, gather
from coterie.core.data.sources.csv_blocks import Block, CsvForm
from coterie.core.data.sources.sample_forms import Field, Form, Vocabulary
from coterie.core.errors import UserError

FORM = Form(
    (
        Field("ids", ("a", "b"), "ids", "uint16", shift=1),
        Field("numbers", ("x", "y"), "numbers", "float32"),
        Field("labels", ("click", "buy"), "labels", "uint8"),
        Field("search", ("search",), "numbers", "int64", flat=True),
    )
)
HEADER = "search,x,a,b,other,y,click,buy\n"


def line(n: int, a: int | None = None) -> str:
    return f"{n // 3},{n * 0.25},{n % 7 if a is None else a},{n % 5},w{n},{-n}e-1,{n % 2},0\n"


def text(count: int, first: int = 0) -> str:
    return HEADER + "".join(line(n) for n in range(first, first + count))


def written(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def all_rows(converted: Converted) -> dict[str, np.ndarray]:
    batches = range(len(converted.rows.starts) - 1)
    views = [converted.rows.views(batch) for batch in batches]
    return {name: np.concatenate([view[name] for view in views]) for name in views[0]}


def naive(content: str) -> dict[str, np.ndarray]:
    """The same by the csv module, number by number."""
    rows = list(csv.DictReader(io.StringIO(content)))
    return {
        "ids": np.array([[int(r["a"]) + 1, int(r["b"]) + 1] for r in rows]),
        "numbers": np.array([[float(r["x"]), float(r["y"])] for r in rows], np.float32),
        "labels": np.array([[int(r["click"]), int(r["buy"])] for r in rows]),
        "search": np.array([int(r["search"]) for r in rows]),
    }


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and record batches so small that every file has many."""
    monkeypatch.setattr(csv_blocks, "_BLOCK", 97)
    monkeypatch.setattr(arrow_samples, "ROWS", 8)


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.zip"])
def test_rows_are_those_of_a_naive_reader(tmp_path: Path, name: str) -> None:
    source = packed(tmp_path / name, text(53))
    converted = convert([source], tmp_path / "t.arrow", FORM)
    assert converted.count == 53
    for field, values in naive(text(53)).items():
        np.testing.assert_array_equal(all_rows(converted)[field], values)
    kinds = {k: str(v.dtype) for k, v in all_rows(converted).items()}
    assert kinds == {"ids": "uint16", "numbers": "float32", "labels": "uint8", "search": "int64"}
    assert np.diff(converted.rows.starts).tolist() == [8] * 6 + [5, 0]
    assert converted.vocabulary.sizes("ids", 1) == (8, 6)


@pytest.mark.usefixtures("_small_blocks")
def test_in_memory_are_the_same_rows(tmp_path: Path) -> None:
    source = written(tmp_path / "t.csv", text(53))
    arrays, coder = gather([source], FORM)
    converted = convert([source], tmp_path / "t.arrow", FORM)
    for field, values in all_rows(converted).items():
        np.testing.assert_array_equal(arrays[field], values)
    assert coder.vocabulary.to_plain() == converted.vocabulary.to_plain()


def test_several_files_one_after_the_other(tmp_path: Path) -> None:
    parts = [written(tmp_path / f"{n}.csv", text(20, first)) for n, first in enumerate((0, 20))]
    converted = convert(parts, tmp_path / "t.arrow", FORM)
    np.testing.assert_array_equal(all_rows(converted)["numbers"], naive(text(40))["numbers"])


def test_line_ends_blank_lines_quotes_and_a_mark_of_bytes(tmp_path: Path) -> None:
    odd = "\ufeff" + text(4).replace("\n", "\r\n").replace("w2", '"w,2"') + "\r\n"
    plain = convert([written(tmp_path / "p.csv", text(4))], tmp_path / "p.arrow", FORM)
    converted = convert([written(tmp_path / "t.csv", odd)], tmp_path / "t.arrow", FORM)
    for field, values in all_rows(plain).items():
        np.testing.assert_array_equal(all_rows(converted)[field], values)


@pytest.mark.usefixtures("_small_blocks")
def test_ids_that_the_training_file_lacks_become_zero_and_are_counted(tmp_path: Path) -> None:
    ids = [0, 3, 9]
    train = written(tmp_path / "t.csv", HEADER + "".join(line(n, ids[n % 3]) for n in range(20)))
    converted = convert([train], tmp_path / "t.arrow", FORM)
    assert converted.vocabulary.sizes("ids", 1) == (11, 6)
    assert converted.unknown == {"ids": [0, 0]}
    test = written(tmp_path / "e.csv", HEADER + "".join(line(n, n) for n in range(12)))
    other = convert([test], tmp_path / "e.arrow", FORM, vocabulary=converted.vocabulary)
    expected = [n + 1 if n in ids else 0 for n in range(12)]
    assert all_rows(other)["ids"][:, 0].tolist() == expected
    assert other.unknown == {"ids": [9, 0]}
    again = convert([test], tmp_path / "e.arrow", FORM, vocabulary=converted.vocabulary)
    assert again.unknown == other.unknown


@pytest.mark.usefixtures("_small_blocks")
def test_a_vocabulary_that_outgrows_16_bits_widens_what_is_written(tmp_path: Path) -> None:
    ids = [*range(30), 65534, 65535, 2_000_000, 3]
    content = HEADER + "".join(line(n, each) for n, each in enumerate(ids))
    converted = convert([written(tmp_path / "t.csv", content)], tmp_path / "t.arrow", FORM)
    rows = all_rows(converted)
    assert rows["ids"].dtype == np.int32
    assert rows["ids"][:, 0].tolist() == [each + 1 for each in ids]
    assert rows["ids"][:, 1].tolist() == [n % 5 + 1 for n in range(len(ids))]
    assert [each.name for each in tmp_path.iterdir() if each.suffix != ".csv"] == ["t.arrow"]
    just = HEADER + line(0, 65534)
    narrow = convert([written(tmp_path / "n.csv", just)], tmp_path / "n.arrow", FORM)
    assert all_rows(narrow)["ids"].dtype == np.uint16
    assert narrow.vocabulary.sizes("ids", 1)[0] == 65536


@pytest.mark.usefixtures("_small_blocks")
def test_ids_numbered_anew_by_a_joint_vocabulary(tmp_path: Path) -> None:
    dense = replace(FORM, fields=(replace(FORM.fields[0], shift=0, dense=True), *FORM.fields[1:]))
    files = {"one": [9, 700, 9], "two": [4, 700], "other": [700, 5, 4, 9, 100000]}
    paths = {
        name: written(tmp_path / f"{name}.csv", HEADER + "".join(line(0, each) for each in ids))
        for name, ids in files.items()
    }
    one, two = (sample_forms.survey([paths[name]], dense) for name in ("one", "two"))
    both = one.join(two)
    assert both.to_plain() == two.join(one).to_plain()
    assert both.ranks("ids")[0].max() == 3
    converted = convert([paths["other"]], tmp_path / "t.arrow", dense, vocabulary=both)
    assert all_rows(converted)["ids"].tolist() == [[3, 1], [0, 1], [1, 1], [2, 1], [0, 1]]
    assert converted.unknown == {"ids": [2, 0]}
    alone = convert([paths["one"]], tmp_path / "o.arrow", dense, vocabulary=one)
    assert all_rows(alone)["ids"][:, 0].tolist() == [1, 2, 1]
    with pytest.raises(ValueError, match="give one"):
        convert([paths["one"]], tmp_path / "n.arrow", dense)


@given(
    train=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), min_size=1, max_size=30),
    test=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), min_size=1, max_size=30),
)
@settings(max_examples=50)
def test_vocabulary_is_that_of_sets(
    train: list[tuple[int, int]], test: list[tuple[int, int]]
) -> None:
    vocabulary = Vocabulary()
    for start in range(0, len(train), 7):
        vocabulary.add("ids", np.array(train[start : start + 7]))
    kept = Vocabulary.from_plain(json.loads(json.dumps(vocabulary.to_plain())))
    sets = [{row[place] for row in train} for place in range(2)]
    known = [[row[place] in sets[place] for place in range(2)] for row in test]
    assert kept.known("ids", np.array(test)).tolist() == known
    assert kept.sizes("ids") == tuple(max(each) + 1 for each in sets)


@pytest.mark.usefixtures("_small_blocks")
def test_headerless_files_transforms_and_rows_left_out(tmp_path: Path) -> None:
    def labels(block: Block) -> dict[str, np.ndarray]:
        state = block.numbers("state")
        return {
            "ids": np.stack([block.numbers("a")], axis=1),
            "labels": np.stack([state > 0, state > 1], axis=1),
            "row": (block.first_row + np.arange(len(block)))[:, None],
        }

    form = Form(
        (
            Field("ids", ("a",), "ids", "uint16"),
            Field("labels", ("click", "buy"), "labels", "uint8"),
            Field("row", ("row",), "numbers", "int64", flat=True),
        ),
        CsvForm({"a": pa.int64(), "state": pa.int64()}, ("a", "unused", "state"), separator=";"),
        labels,
        lambda block: block.numbers("a") != 2,
    )
    source = written(tmp_path / "t.csv", "".join(f"{n % 4};;{n % 3}\n" for n in range(40)))
    arrays, coder = gather([source], form)
    kept = [n for n in range(40) if n % 4 != 2]
    assert arrays["row"].tolist() == kept
    assert arrays["labels"].tolist() == [[int(n % 3 > 0), int(n % 3 > 1)] for n in kept]
    assert coder.vocabulary.seen["ids"][0].tolist() == [True, True, False, True]
    assert coder.left_out == 10
    for _ in range(2):  # once converted, once found
        assert convert([source], tmp_path / "kept.arrow", form).left_out == 10
    none = replace(form, keep=lambda block: np.zeros(len(block), bool))
    for read in (gather, lambda *given: convert(given[0], tmp_path / "t.arrow", given[1])):
        with pytest.raises(UserError, match="no row is a sample"):
            read([source], none)


def test_values_that_do_not_go_together(tmp_path: Path) -> None:
    def check(block: Block, found: sample_forms.Arrays) -> None:
        bad = found["labels"][:, 1] > found["labels"][:, 0]
        if bad.any():
            raise block.fault(int(bad.argmax()), "bought without a click")

    source = written(tmp_path / "t.csv", text(10).replace("w6,-6e-1,0,0", "w6,-6e-1,0,1"))
    gather([source], FORM)
    with pytest.raises(UserError, match=r"t\.csv, line 8: bought without a click"):
        gather([source], replace(FORM, check=check))


def test_missing_values_only_where_they_may_be(tmp_path: Path) -> None:
    def filled(block: Block) -> dict[str, np.ndarray]:
        ids = block.table["a"].fill_null(-1).to_numpy() + 1
        return {"ids": ids[:, None], "x": block.numbers("x")[:, None]}

    may = CsvForm(
        {"a": pa.int64(), "x": pa.float32()}, nulls=("\\N",), may_be_null=frozenset({"a"})
    )
    form = Form(
        (Field("ids", ("a",), "ids", "uint16"), Field("x", ("x",), "numbers", "float32")),
        may,
        filled,
    )
    good = written(tmp_path / "t.csv", "a,x\n3,1\n\\N,2\n0,3\n")
    assert gather([good], form)[0]["ids"].tolist() == [[4], [0], [1]]
    bad = written(tmp_path / "b.csv", "a,x\n3,1\n\\N,2\n0,\\N\n")
    with pytest.raises(UserError, match=r"b\.csv, line 4: column 'x' is missing"):
        gather([bad], form)


FAULTS = {
    "a missing column": (lambda s: s.replace("click", "clack", 1), 1, "no column 'click'"),
    "a column twice": (lambda s: s.replace("other", "a", 1), 1, "two columns 'a'"),
    "no number": (lambda s: s.replace("7.5", "seven"), 32, "'x' is 'seven', not a number"),
    "nan": (lambda s: s.replace(",7.5,", ",nan,"), 32, "'x' is nan, not a finite number"),
    "too large": (lambda s: s.replace(",7.5,", ",1e39,"), 32, "'x' is inf, not a finite number"),
    "no whole id": (lambda s: s.replace(",7.5,2,", ",7.5,2.5,"), 32, "'a' is '2.5', not a whole"),
    "an empty field": (lambda s: s.replace(",7.5,2,", ",7.5,,"), 32, "column 'a' is missing"),
    "a negative id": (lambda s: s.replace(",7.5,2,", ",7.5,-2,"), 32, "'a' is -2, not an id"),
    "a huge id": (lambda s: s.replace(",7.5,2,", f",7.5,{2**40},"), 32, "not an id from 0 to"),
    "an id beyond 64 bits": (lambda s: s.replace(",7.5,2,", f",7.5,{2**64},"), 32, "more than 64"),
    "a label of 2": (lambda s: s.replace("w30,-30e-1,0", "w30,-30e-1,2"), 32, "'click' is 2, nei"),
    "a label below": (lambda s: s.replace("w30,-30e-1,0", "w30,-30e-1,-1"), 32, "'click' is -1"),
    "a short row": (lambda s: s.replace("w30,", ""), 32, "expected 8 columns, found 7"),
    "a long row": (lambda s: s.replace("w30,", "w,30,"), 32, "expected 8 columns, found 9"),
    "a last row cut off": (lambda s: s[:-8] + "\n", 41, "expected 8 columns, found 6"),
    "no last line end": (lambda s: s[:-1], 41, "no line end, it is cut off"),
    "an empty file": (lambda s: "", 1, "no rows"),
    "a header alone": (lambda s: HEADER, 1, "no rows"),
    "blank lines": (lambda s: "\n\n\n", 1, "no rows"),
    "a file of two bytes": (lambda s: "q\n", 1, "no column 'a', nor 6 others"),
    "a cut header": (lambda s: HEADER[:9], 1, "no line end"),
    "a label behind blank lines": (
        lambda s: s.replace("10,7.5", "\n\r\n10,7.5").replace("w30,-30e-1,0", "w30,-30e-1,2"),
        34,
        "'click' is 2",
    ),
    "a fault behind blank lines": (lambda s: s.replace("10,7.5", "\n\r\n10,x"), 34, "'x' is 'x'"),
}


@pytest.mark.parametrize("blocks", [97, 8 << 20])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_name_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, blocks: int
) -> None:
    monkeypatch.setattr(csv_blocks, "_BLOCK", blocks)
    spoil, at, what = FAULTS[fault]
    spoilt = spoil(text(40))
    assert spoilt != text(40)
    source = written(tmp_path / "t.csv", spoilt)
    with pytest.raises(UserError) as caught:
        convert([source], tmp_path / "t.arrow", FORM)
    message = str(caught.value)
    assert message.startswith(f"{source}, line {at}: "), message
    assert what in message
    assert "\n" not in message
    assert [each.name for each in tmp_path.iterdir()] == ["t.csv"]


def test_a_fault_deep_in_a_file_reads_one_block_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_blocks, "_BLOCK", 4096)
    read: list[int] = []
    real = csv_blocks.fields_of

    def counting(*arguments: str) -> list[str]:
        read.append(1)
        return real(*arguments)

    monkeypatch.setattr(csv_blocks, "fields_of", counting)
    source = written(tmp_path / "t.csv", text(5000).replace(",w4000,", ",w4000,,"))
    with pytest.raises(UserError, match="line 4002: expected 8 columns, found 9"):
        gather([source], FORM)
    assert len(read) < 250


@pytest.mark.parametrize("name", ["t.csv.gz", "t.zip"])
def test_archives_cut_off(tmp_path: Path, name: str) -> None:
    content = packed(tmp_path / name, text(5000)).read_bytes()
    for end in (0, 1, 20, len(content) // 2, len(content) - 30, len(content) - 3):
        (tmp_path / name).write_bytes(content[:end])
        with pytest.raises(UserError, match=name):
            convert([tmp_path / name], tmp_path / "t.arrow", FORM)
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_archives_of_other_things(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("a.csv", "")
        archive.writestr("b.csv", "")
    with pytest.raises(UserError, match=r"t\.zip holds 2 files"):
        gather([tmp_path / "t.zip"], FORM)
    for absent in ("n.csv", "n.gz", "n.zip"):
        with pytest.raises(UserError, match=rf"{absent[:3]}.*no such file"):
            gather([tmp_path / absent], FORM)
        with pytest.raises(UserError, match=rf"{absent[:3]}.*no such file"):
            convert([tmp_path / absent], tmp_path / "t.arrow", FORM)


def no_reading(*_: object) -> None:
    raise AssertionError("the file is read again")


def test_what_is_converted_is_not_converted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = written(tmp_path / "t.csv", text(30)), tmp_path / "deep" / "t.arrow"
    first = convert([source], target, FORM, about={"key": 1})
    monkeypatch.setattr(sample_forms, "csv_blocks", no_reading)
    second = convert([source], target, FORM, about={"key": 1})
    assert second.count == first.count
    assert second.vocabulary.to_plain() == first.vocabulary.to_plain()
    assert (described(target) or {})["about"] == {"key": 1}


def later(source: Path) -> dict[str, Any]:
    stat = source.stat()
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
    return {}


STALE: dict[str, Callable] = {
    "touched": later,
    "longer": lambda source: written(source, text(31)) and {},
    "another form": lambda source: {"form": Form(FORM.fields[:3])},
    "another shift": lambda source: {
        "form": Form((replace(FORM.fields[0], shift=0), *FORM.fields[1:]))
    },
    "another about": lambda source: {"about": {"key": 2}},
    "a vocabulary": lambda source: {"vocabulary": gather([source], FORM)[1].vocabulary},
    "numbered anew": lambda source: {
        "form": Form((replace(FORM.fields[0], dense=True), *FORM.fields[1:])),
        "vocabulary": gather([source], FORM)[1].vocabulary,
    },
    "a check": lambda source: {"form": replace(FORM, check=lambda block, found: None)},
    "a transform": lambda source: {"form": replace(FORM, keep=lambda b: np.ones(len(b), bool))},
}


@pytest.mark.parametrize("change", STALE)
def test_what_is_stale_is_converted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    source, target = written(tmp_path / "t.csv", text(30)), tmp_path / "t.arrow"
    convert([source], target, FORM)
    given = {"form": FORM} | STALE[change](source)
    with monkeypatch.context() as patched:
        patched.setattr(sample_forms, "csv_blocks", no_reading)
        with pytest.raises(AssertionError, match="again"):
            convert([source], target, **given)
    convert([source], target, **given)
    monkeypatch.setattr(sample_forms, "csv_blocks", no_reading)
    convert([source], target, **given)


@pytest.mark.parametrize("content", [b"", b"junk", b"ARROW1\0\0junkjunkARROW1"])
def test_files_that_are_no_conversion_are_replaced(tmp_path: Path, content: bytes) -> None:
    source, target = written(tmp_path / "t.csv", text(30)), tmp_path / "t.arrow"
    target.write_bytes(content)
    assert described(target) is None
    assert described(tmp_path / "nowhere") is None
    assert convert([source], target, FORM).count == 30
    other = pa.record_batch({"a": [1]})
    with pa.ipc.new_file(str(target), other.schema) as writer:
        writer.write_batch(other)
    assert described(target) is None
    assert convert([source], target, FORM).count == 30


def test_a_fault_while_an_older_conversion_is_there_keeps_it(tmp_path: Path) -> None:
    source, target = written(tmp_path / "t.csv", text(30)), tmp_path / "t.arrow"
    convert([source], target, FORM)
    before = target.read_bytes()
    written(source, text(30) + "1,2\n")
    with pytest.raises(UserError, match="line 32"):
        convert([source], target, FORM)
    assert target.read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["t.arrow", "t.csv"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    source = written(tmp_path / "t.csv", text(3))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*: link the text files into a folder"):
        convert([source], tmp_path / "file" / "t.arrow", FORM)


def test_real_rows(data_root: Path, tmp_path: Path) -> None:
    folder = data_root / "mtms-samples"
    if not folder.is_dir():
        pytest.skip(f"needs {folder}")
    source = folder / "aliexpress_train_sample.csv"
    form = Form(
        (
            Field("ids", tuple(f"categorical_{n}" for n in range(1, 17)), "ids", "uint16"),
            Field("numbers", tuple(f"numerical_{n}" for n in range(1, 64)), "numbers", "float32"),
            Field("labels", ("click", "conversion"), "labels", "uint8"),
        )
    )
    converted = convert([source], tmp_path / "t.arrow", form)
    rows = list(csv.DictReader(source.open()))
    found = all_rows(converted)
    assert sum(v.dtype.itemsize * v.shape[1] for v in found.values()) == 286  # bytes of a row
    for each in form.fields:
        plain = np.array([[float(row[column]) for column in each.columns] for row in rows])
        np.testing.assert_array_equal(found[each.name], plain.astype(each.dtype))
