"""Forms of files of one's own: told by their bytes, strict, faults in one line."""

import bz2
import gzip
import json
import lzma
import os
import sqlite3
import zipfile
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import feather, orc, parquet

from coterie.core.cli.main import main
from coterie.core.data.sources import text_columns
from coterie.core.data.sources.catalogue import load
from coterie.core.data.sources.file_forms import check_columns
from coterie.core.data.sources.own_file import read_columns, read_own
from coterie.core.errors import UserError


@pytest.fixture
def write(tmp_path):
    def to_file(data, name="my.csv"):
        path = tmp_path / name
        if isinstance(data, dict):
            data = pa.table(data)
        if isinstance(data, pa.Table):
            parquet.write_table(data, path)
        else:
            path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return to_file


def pairs(data):
    """Ids of users and items, row by row."""
    both = zip(data.user.tolist(), data.item.tolist(), strict=True)
    return [(data.user_names[u], data.item_names[i]) for u, i in both]


def refused(path, message, read=read_own, **named):
    with pytest.raises(UserError) as caught:
        read(path, **named)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


LINES = '{"user": "a", "item": "x"}\n'
"""A first line without optional fields."""


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ('{"user": "a", "item": "y", "rating": 0}\n', "line 1: column 'rating' is missing"),
        ('{"user": "a", "item": "y", "time": 3}\n', "line 1: column 'time' is missing"),
        ('\n{"item": "y"}\n', "line 3: column 'user' is missing"),
        ('{"user": "b", "item": null}\n', "line 2: column 'item' is missing"),
        ('{"user": NaN, "item": "x"}\n', "line 2: column 'user' is missing"),
        ('{"user": "b", "item": 7}\n', "line 2: 'item' is '7', not of type"),
        ('{"user": "b", "item": true}\n', "line 2: 'item' is 'True', not of type"),
        ('{"user": "b", "item": "y", "user": "c"}\n', "line 2: 'user' occurs twice"),
        ('{"user": "b",\n "item": "y"}\n', "line 2: the line is no JSON object, or cut off"),
        ('{"user": "b", "item": "y"} {"user": "b", "item": "z"}\n', "line 2: the line is no JSON"),
        ('{"user": "b", "item": "\\ud800"}\n', "line 2: 'item' holds half a character"),
        ('["b", "y"]\n', "line 2: the line is no JSON object, it is an array"),
    ],
)
def test_json_lines_of_which_some_lack_or_change_a_field(write, rest, message):
    refused(write(LINES + rest, "my.jsonl"), message)


def test_json_fields_of_late_lines_count(write):
    text = LINES * 150 + '{"user": "b", "item": "y", "title": "T", "genres": ["A", 1]}\n'
    data = read_own(write(text, "my.jsonl"))
    assert (data.titles, data.genres) == (["x", "T"], [[], ["A", "1"]])
    late = LINES * 150 + '{"user": "b", "item": "y", "rating": 5}\n'
    refused(write(late, "my.jsonl"), "line 1: column 'rating' is missing")


def test_late_objects_over_several_lines_or_two_in_one(write):
    spread = '{"user": "b",\n "item": "y"}\n'
    both = '{"user": "b", "item": "y"} {"user": "b", "item": "z"}\n'
    for late in (spread, both):
        refused(write(LINES * 150 + late, "my.jsonl"), "line 151: the line is no JSON object")


def test_json_that_is_not_utf_8(write):
    text = (LINES * 150).encode() + b'{"user": "b", "item": "\xe9"}\n'
    refused(write(text, "my.jsonl"), "line 151: the line is no JSON object")


@pytest.mark.parametrize("number", ["2.5", "2e0", "2.0"])
def test_json_numbers_may_get_fractions(write, number):
    row = '{"user": "a", "item": "x", "time": %s, "rating": %s}\n'
    data = read_own(write(row % (1, 1) * 150 + row % (number, number), "my.jsonl"))
    scale = 1_000_000 if float(number) % 1 else 1
    assert data.time.tolist() == [scale] * 150 + [int(float(number) * scale)]
    assert data.rating.tolist() == [1.0] * 150 + [float(number)]


def test_json_ids_of_many_digits_stay_as_they_are(write):
    ids = [7, 2**63, 10**40]
    text = "".join(json.dumps({"user": n, "item": n}) + "\n" for n in ids)
    assert read_own(write(text, "my.jsonl")).user_names == [str(n) for n in ids]


OPEN = "the quote that opens here closes"


@pytest.mark.parametrize("piece", [3, 1 << 20])
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('u1,i1,"Foo\nu2,i2,bar\nu3,i3,"Baz\nu4,i4,qux\n', f"line 2: {OPEN} in line 4 before 'B"),
        ('u1,i1,a\n\nu1,"i2"x,b\n', f"line 4: {OPEN} before 'x"),
        ('u1,i1,"a \\"b\\" c"\n', f"line 2: {OPEN} before 'b"),
        ('u1,i1,"a" \n', f"line 2: {OPEN} before ' '"),
        ('u1, "i1",a\n', "line 2: blanks stand before the quote that opens a field"),
        ('u1,i1,"a\nb"\nu2,i2,"c\nu3,i3,d\n', "line 4: a quote is not closed"),
        ('u1,i1,"a\r\nb"\r\nu2,i2,"', "line 4: a quote is not closed"),
        ('u1,i1,""a"\n', f"line 2: {OPEN} before 'a"),
    ],
)
def test_quotes_are_strict(write, monkeypatch, rows, message, piece):
    monkeypatch.setattr(text_columns, "_CHUNK", piece)
    refused(write("user,item,title\n" + rows), message)
    refused(write(gzip.compress(("user;item;title\n" + rows.replace(",", ";")).encode())), message)


def test_quotes_inside_a_field_are_characters(write, monkeypatch):
    monkeypatch.setattr(text_columns, "_CHUNK", 5)
    text = 'user,item,title\nu1,i1,5" pipe\nu1,"i""2",12" x 5"\nu1,i3,"a\n\n""b"""\n'
    data = read_own(write(text))
    assert data.item_names == ["i1", 'i"2', "i3"]
    assert data.titles == ['5" pipe', '12" x 5"', 'a\n\n"b"']


def test_blanks_around_names_and_words_are_left_out_in_every_form(write):
    rows = [("u1", " i1", " T"), ("u1", "i1", "T"), ("u2 ", "i2\u00a0", "")]
    wanted = [("u1", "i1"), ("u1", "i1"), ("u2", "i2")]
    names = ("user", " item", "title ")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    lines = "".join(
        json.dumps(dict(zip(("user", "item", "title"), r, strict=True))) + "\n" for r in rows
    )
    for path in (
        write("\n".join(",".join(row) for row in [names, *rows])),
        write(columns, "my.parquet"),
        write(lines, "my.jsonl"),
    ):
        data = read_own(path)
        assert (pairs(data), data.titles) == (wanted, ["T", "i2"])
        history = read_columns(path, ("item", "title"))
        assert history.strings("item") == ["i1", "i1", "i2"]


def test_blank_after_comma_is_no_part_of_a_name_of_domain_genre_or_part(write):
    text = "user,item,shop,part,genres\na,1,book, train,A | B\nb,1, book,test ,B\n"
    data = read_own(write(text), {"domain": "shop", "split": "part"})
    assert (data.item_names, data.genres) == (["book/1"], [["A", "B"]])


def test_a_name_twice_is_one_line_in_every_form(write, tmp_path):
    table = pa.table([[1], [2], [3]], names=["user", "item", "item"])
    refused(write(table, "a.parquet"), "a column name occurs twice ('item')")
    refused(write("user,item,item\n1,2,3\n"), "line 1: a column name occurs twice ('item')")
    for new in (pa.ipc.new_file, pa.ipc.new_stream):
        with new(tmp_path / "a.arrow", table.schema) as writer:
            writer.write_table(table)
        refused(tmp_path / "a.arrow", "a column name occurs twice ('item')")
    refused(write("user,item, item\n1,2,3\n"), "line 1: a column name occurs twice ('item')")


CSV = b"user,item\na,x\nb,y\n"


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("MY.CSV.GZ", gzip.compress),
        ("my.csv", gzip.compress),
        ("my.csv.bz2", bz2.compress),
        ("my.tsv.xz", lzma.compress),
        ("My.Txt", bytes),
        ("my.parquet", bytes),
        ("my.csv.gz", bytes),
    ],
)
def test_what_packs_a_file_does_not_matter(write, name, pack):
    path = write(pack(CSV), name)
    assert pairs(load(path)) == [("a", "x"), ("b", "y")]
    check_columns(str(path), {"user": "user"})
    with pytest.raises(UserError, match="no column 'who' for the user"):
        check_columns(str(path), {"user": "who"})


def zipped(path, **files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name.replace("_", "."), data)
    return path


def test_zip_with_one_file_is_read(tmp_path):
    assert len(load(zipped(tmp_path / "a.csv.zip", ratings_csv=CSV))) == 2
    assert len(load(zipped(tmp_path / "b.zip", ratings_gz=gzip.compress(CSV)))) == 2
    assert len(load(zipped(tmp_path / "d.zip", r_jsonl='{"user":1,"item":2}'))) == 1
    refused(zipped(tmp_path / "c.zip", a_csv=CSV, b_csv=CSV), "holds 2 files, not one: unpack it")
    refused(zipped(tmp_path / "e.zip"), "holds 0 files, not one")
    refused(zipped(tmp_path / "f.zip", content_xml=""), "is a workbook or document of an office")


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_packed_data_that_are_cut_off(write, pack):
    data = pack(os.urandom(3000).hex().encode())
    refused(write(data[: len(data) // 2], "my.csv"), "data are corrupt or cut off")
    refused(write(data[: len(data) // 2], "my.jsonl"), "data are corrupt or cut off")


def test_bits_that_bzip2_cannot_read_are_no_fault_of_the_disk(write):
    # More than a block of bzip2, so that the fault is not met where the form is told.
    data = bytearray(bz2.compress(os.urandom(1 << 20).hex().encode()))
    data[len(data) // 2] ^= 0xFF
    refused(write(bytes(data), "my.csv"), "the bzip2 data are corrupt or cut off")


def test_forms_that_are_not_read_are_named(write, tmp_path):
    with sqlite3.connect(tmp_path / "a.db") as base:
        base.execute("create table t (a)")
    base.close()
    refused(tmp_path / "a.db", "is an SQLite database: save the table as CSV or Parquet")
    orc.write_table(pa.table({"user": [1]}), tmp_path / "a.orc")
    refused(tmp_path / "a.orc", "is an ORC file")
    pd.DataFrame({"user": [1]}).to_pickle(tmp_path / "a.pkl")
    refused(tmp_path / "a.pkl", "is a pickle")
    refused(write("<!DOCTYPE html><p>Sign in", "a.csv"), "is HTML or XML")
    refused(write(b"\x28\xb5\x2f\xfd1234", "a.csv.zst"), "is compressed by zstd")
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        path = write(CSV.decode().encode(encoding), "a.csv")
        refused(path, "line 1: UTF-")
        check_columns(str(path), {"user": "user"})


ARRAYS = {
    "string_view": pa.array(["a", "b"], pa.string_view()),
    "large_string": pa.array(["a", "b"], pa.large_string()),
    "binary": pa.array([b"a", b"b"]),
    "binary_view": pa.array([b"a", b"b"], pa.binary_view()),
    "dictionary": pa.array(["a", "b"]).dictionary_encode(),
    "dictionary of views": pa.DictionaryArray.from_arrays([0, 1], pa.array(["a", "b", "b"])),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("form", ["parquet", "feather"])
def test_text_is_text(tmp_path, name, form):
    table = pa.table({"user": ARRAYS[name], "item": ARRAYS[name], "title": ARRAYS[name]})
    how = parquet.write_table if form == "parquet" else feather.write_feather
    how(table, tmp_path / "table")
    data = read_own(tmp_path / "table")
    assert (pairs(data), data.titles) == ([("a", "a"), ("b", "b")], ["a", "b"])


def test_whole_numbers_are_ids_whatever_their_type(write):
    kinds = [getattr(pa, f"{sign}int{size}")() for sign in ("", "u") for size in (8, 16, 32, 64)]
    for kind in (*kinds, pa.decimal128(38, 0), pa.decimal128(9, 2)):
        data = read_own(write({"user": pa.array([7, 100], kind), "item": [1, 2]}, "a.parquet"))
        assert data.user_names == ["7", "100"]
    digits = [2**64 - 1, 10**37]
    data = read_own(
        write({"user": pa.array([Decimal(n) for n in digits]), "item": [1, 2]}, "a.parquet")
    )
    assert data.user_names == [str(n) for n in digits]
    largest = pa.array([1, 2**64 - 1], pa.uint64())
    data = read_own(write({"user": largest, "item": [1, 2]}, "a.parquet"))
    assert data.user_names == ["1", str(2**64 - 1)]


@pytest.mark.parametrize(
    "lists",
    [
        pa.array([["A", " B"], None, []], pa.large_list(pa.large_string())),
        pa.array([["A", "B"], None, []], pa.list_view(pa.string())),
        pa.array([["A", "B"], None, [None]], pa.list_(pa.string_view())),
        pa.array([["A", "B"], None, None], pa.list_(pa.string(), 2)),
        pa.array([["A", "B"], None, []], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    ],
    ids=lambda lists: str(lists.type),
)
def test_lists_are_genres_whatever_their_type(tmp_path, lists):
    table = pa.table({"user": [1, 2, 3], "item": [1, 2, 3], "genres": lists})
    with pa.ipc.new_file(tmp_path / "a", table.schema) as writer:
        writer.write_table(table)
    assert read_own(tmp_path / "a").genres == [["A", "B"], [], []]


@pytest.mark.parametrize("titles", [["T", None], pa.array([None, None], pa.float64()), ["", " "]])
def test_a_missing_title_is_an_empty_one(write, titles):
    data = read_own(write({"user": [1, 2], "item": ["x", "y"], "title": titles}, "a.parquet"))
    assert data.titles == ["T" if titles == ["T", None] else "x", "y"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"rating": [True, False]}, "row 1: column 'rating' is 'True', not a number"),
        ({"rating": [1.0, float("nan")]}, "row 2: column 'rating' is missing"),
        (
            {"time": pa.array([1, 2], pa.time64("us"))},
            "column 'time' is of type time64[us]: times are",
        ),
        (
            {"time": pa.array([1, 2], pa.duration("s"))},
            "column 'time' is of type duration[s]: times are",
        ),
        ({"time": pa.array([2**60, 2], pa.timestamp("ms"))}, "row 1: column 'time' is too large"),
        ({"genres": [[1.5], []]}, "column 'genres' is of type"),
        ({"title": [{"en": "T"}, None]}, "column 'title' is of type struct"),
        ({"user": [b"\xff", b"a"]}, "column 'user' is of type binary, which cannot be read"),
        ({"user": [1.0, None]}, "row 2: column 'user' is missing"),
    ],
)
def test_types_that_are_no_ids_ratings_or_times(write, columns, message):
    refused(write({"user": [1, 2], "item": [1, 2]} | columns, "a.parquet"), message)


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
def test_arrow_files_that_are_cut_off(tmp_path, new):
    table = pa.table({"user": list(range(50)), "item": list(range(50))})
    path, ends = tmp_path / "a.arrow", []
    with path.open("wb") as out, new(out, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=10):
            writer.write_batch(batch)
            ends.append(out.tell())
    whole = path.read_bytes()
    assert len(read_own(path)) == 50
    for end in (*ends, len(whole) - 9, 20):
        path.write_bytes(whole[:end])
        with pytest.raises(UserError, match=r"write it again|cannot be read"):
            read_own(path)


PARTS = {
    "part-10.csv": "user,item,time\nd,x,4\n",
    "part-2.csv": "item,user,time\nx,a,1.5\ny,a,2\n",
    "part-00003.csv": "user,item,time\n",
    "part-00004.csv": "",
    "_SUCCESS": "",
    ".part-00002.csv.crc": "crc",
}


def folder(tmp_path, files):
    for name, data in files.items():
        (tmp_path / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return tmp_path


def test_a_folder_of_parts_is_one_table(tmp_path):
    data = load(folder(tmp_path, PARTS))
    assert pairs(data) == [("a", "x"), ("a", "y"), ("d", "x")]
    assert data.time.tolist() == [1_500_000, 2_000_000, 4_000_000]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"part-00011.csv": "user,item\na,x\n"},
            "part-00011.csv has no 'time', part-2.csv has",
        ),
        (
            {"part-00011.csv": "user,item,time\n\na,,3\n"},
            "part-00011.csv, line 3: column 'item' is",
        ),
        ({"part-00011.csv": "user,item,time\na,x,late\n"}, "part-00011.csv, line 2: column 'time'"),
        ({"part-00011.csv": 'user,item,time\na,x,"3\n'}, "part-00011.csv, line 2: a quote is not"),
    ],
)
def test_a_part_at_fault_is_named(tmp_path, files, message):
    refused(folder(tmp_path, PARTS | files), message)


def test_parts_of_other_types_and_optional_fields(tmp_path):
    parquet.write_table(pa.table({"user": [1], "item": ["x"]}), tmp_path / "0.parquet")
    parquet.write_table(pa.table({"user": ["1"], "item": ["x"]}), tmp_path / "1.parquet")
    refused(tmp_path, "column 'user' is of type int64 in 0.parquet, large_string in 1.parquet")
    lines = tmp_path / "lines"
    lines.mkdir()
    folder(lines, {"a.json": LINES, "b.json": '{"user": "b", "item": "y", "title": "T"}\n'})
    assert load(lines).titles == ["x", "T"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("year=2020", "is a folder with a folder within (year=2020)"),
        ("_delta_log", "is a versioned table (it has _delta_log)"),
    ],
)
def test_folders_within_are_told(tmp_path, name, message):
    (folder(tmp_path, PARTS) / name).mkdir()
    refused(tmp_path, message)


def test_a_folder_without_rows(tmp_path):
    refused(tmp_path, "is a folder without files")
    refused(folder(tmp_path, {"_SUCCESS": "", "a.csv": "user,item\n"}), "has no rows")


def test_what_can_be_read_once_only_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path / "pipe", "-", "/dev/stdin", "/dev/null", "/proc/self/fd/0"):
        refused(name, "can be read once only, and a run reads its data again: save it", read=load)
    refused(tmp_path / "none", "there is no file", read=load)


def test_columns_that_a_paper_does_not_read_are_refused(write, capsys):
    path = str(write("user,item,time,part\na,x,1,train\nb,y,2,test\n"))
    assert main(["data", path, "--data.columns", "split=part", "--data.min_interactions", "0"]) == 0
    capsys.readouterr()
    for paper, role in (
        ("f3crec", "split"),
        ("mtal", "split"),
        ("mtal", "time"),
        ("f3crec", "genres"),
    ):
        flags = ["--data.name", path, "--data.columns", f"{role}=part"]
        assert main(["train", paper, *flags]) == 2
        assert f"names a column for the {role}, which is not read here" in capsys.readouterr().err
