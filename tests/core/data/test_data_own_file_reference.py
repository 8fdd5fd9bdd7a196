"""Files of one's own against a slow, straightforward reading with Python's csv module."""

import csv
import gzip
import io
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.core.data.interactions.interactions import TEST, TRAIN, VALID
from coterie.core.data.sources import tables, text_columns, text_files
from coterie.core.data.sources.own_file import read_own
from coterie.core.data.sources.readers import codes_of
from coterie.core.errors import UserError
from coterie.core.tensors import ordering

PARTS = {"train": TRAIN, "valid": VALID, "test": TEST}


@pytest.fixture(params=["whole", "in small pieces"])
def pieces(request, monkeypatch):
    """Files are small here: let what is read in pieces be read in pieces."""
    if request.param == "in small pieces":
        monkeypatch.setattr(tables, "_BLOCK", 64)
        monkeypatch.setattr(text_columns, "_GROUP", 3)
        monkeypatch.setattr(text_files, "_CHUNK", 7)
        monkeypatch.setattr(ordering, "_CHUNK", 3)


def whole(word):
    return word.strip().lstrip("-").isdecimal()


def reference(text, separator):
    """Columns of a good file, row by row, in the order of the file."""
    rows = list(csv.DictReader(io.StringIO(text.lstrip("\ufeff"), newline=""), delimiter=separator))
    has = rows[0].keys()
    titles, genres = {}, {}
    for row in rows:
        titles.setdefault(row["item"], row.get("title"))
        genres.setdefault(row["item"], [g for g in row.get("genres", "").split("|") if g])
    times = [0] * len(rows)
    if "time" in has:
        words = [row["time"] for row in rows]
        scale = 1 if all(Decimal(word) % 1 == 0 for word in words) else 1_000_000
        times = [int(Decimal(word) * scale) for word in words]
    kept = [n for n, row in enumerate(rows) if Decimal(row.get("rating", "1")) > 0]
    users, items = ([rows[n][name] for n in kept] for name in ("user", "item"))
    user_names, item_names = list(dict.fromkeys(users)), list(dict.fromkeys(items))
    return {
        "user": [user_names.index(user) for user in users],
        "item": [item_names.index(item) for item in items],
        "time": [times[n] for n in kept],
        "rating": [float(np.float32(rows[n]["rating"])) for n in kept] if "rating" in has else None,
        "split": [PARTS[rows[n]["part"]] for n in kept] if "part" in has else None,
        "user_names": user_names,
        "item_names": item_names,
        "titles": [titles[i] or i for i in item_names] if "title" in has else None,
        "genres": [genres[i] for i in item_names] if "genres" in has else None,
    }


def found(data):
    lists = {
        name: None if (values := getattr(data, name)) is None else values.tolist()
        for name in ("user", "item", "time", "rating", "split")
    }
    names = ("user_names", "item_names", "titles", "genres")
    return lists | {name: getattr(data, name) for name in names}


IDS = st.one_of(
    st.integers(0, 12).map(str),
    st.sampled_from(
        ["007", "7", "user", "item", "NA", "null", "é", "a,b", 'a "b"', "a\nb", "9" * 25]
    ),
)
VALUES = {
    "user": IDS,
    "item": IDS,
    "time": st.one_of(
        st.just(st.integers(-(10**18), 10**18).map(str)),
        st.just(st.integers(0, 99).map(lambda n: f" {n:04} ")),
        st.just(st.sampled_from(["1", "2.5", "-3.25", "1e3", ".5", "+4", "0"])),
    ),
    "rating": st.sampled_from(["1", "0", "4.5", "-2", "3e-1", " 5", "+0.1"]),
    "title": st.sampled_from(["", "One", "One; two", 'A "b"']),
    "genres": st.sampled_from(["", "A|B", "|A", "C"]),
    "part": st.sampled_from(list(PARTS)),
    "extra": st.sampled_from(["", "x", "1,2"]),
}


@st.composite
def files(draw):
    more = draw(st.sets(st.sampled_from([name for name in VALUES if name not in ("user", "item")])))
    names = draw(st.permutations(["user", "item", *sorted(more)]))
    times = draw(VALUES["time"])
    values = [times if name == "time" else VALUES[name] for name in names]
    rows = draw(st.lists(st.tuples(*values), min_size=1, max_size=25))
    separator = draw(st.sampled_from([",", "\t", ";"]))
    out = io.StringIO(newline="")
    if draw(st.booleans()):
        out.write("\ufeff")
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    writer = csv.writer(out, delimiter=separator, quoting=quoting, lineterminator=end)
    writer.writerows([names, *rows])
    text = out.getvalue()
    return (text if draw(st.booleans()) else text.removesuffix(end)), separator


FIXTURES = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@given(made=files(), packed=st.booleans())
@FIXTURES
def test_what_is_read_equals_the_reference(tmp_path, pieces, made, packed):
    text, separator = made
    path = tmp_path / ("my.csv.gz" if packed else "my.csv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    named = {"split": "part"} if "part" in text.splitlines()[0] else {}
    expected = reference(text, separator)
    if not expected["user"]:
        with pytest.raises(UserError, match="no interaction with a rating above 0"):
            read_own(path, named)
        return
    assert found(read_own(path, named)) == expected


GOOD = ["u1", "i1", "3", "5"]


@given(
    before=st.integers(0, 60),
    after=st.integers(0, 10),
    blank=st.integers(0, 3),
    multiline=st.booleans(),
    fault=st.sampled_from(
        [
            ({1: " "}, "column 'item' is empty"),
            ({0: ""}, "column 'user' is empty"),
            ({0: "a\0"}, "column 'user' holds a NUL byte"),
            ({2: "nan"}, "column 'time' is 'nan', not a number"),
            ({2: "0x1F"}, "column 'time' is '0x1F', not a number"),
            ({2: "1e30"}, "column 'time' is too large for a time"),
            ({2: "2020-01-01"}, "column 'time' is '2020-01-01', not a number"),
            ({3: "inf"}, "column 'rating' is 'inf', not a number"),
            ({3: ""}, "column 'rating' is missing"),
            ({3: "1e300"}, "column 'rating' is too large for a rating"),
            ({3: "1,7"}, "expected 4 columns, found 5"),
            ({}, "expected 4 columns, found 3"),
            ({1: "\udcff"}, "not UTF-8 text"),
        ]
    ),
)
@FIXTURES
def test_a_fault_is_told_by_its_line(tmp_path, pieces, before, after, blank, multiline, fault):
    changes, message = fault
    bad = [changes.get(n, field) for n, field in enumerate(GOOD)][: 4 if changes else 3]
    first = ['"u\n2"', *GOOD[1:]] if multiline else GOOD
    lines = ["user,item,time,rating", *[""] * blank, ",".join(first)]
    lines += [",".join(GOOD)] * before
    at = sum(line.count("\n") + 1 for line in lines) + 1
    lines += [",".join(bad), *[",".join(GOOD)] * after]
    path = tmp_path / "my.csv"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError) as caught:
        read_own(path)
    assert f"my.csv, line {at}: {message}; " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("chunk", [5, 1 << 20])
def test_a_character_that_is_cut_off(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(text_files, "_CHUNK", chunk)
    path = tmp_path / "my.csv"
    path.write_bytes(b"user,item\na,\xc3\xa9\nb,\xc3")
    with pytest.raises(UserError, match=r"my\.csv, line 3: not UTF-8 text"):
        read_own(path)


@pytest.mark.parametrize("chunk", [*range(1, 9), 1 << 20])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "latin-1"])
def test_colons_and_other_encodings_in_pieces(tmp_path, monkeypatch, chunk, encoding):
    monkeypatch.setattr(text_files, "_CHUNK", chunk)
    rows = [["1", "é: one", "a:b"], ["23", "", "ü"], ["", ":x", ""]]
    path = tmp_path / "films.dat"
    path.write_bytes("".join("::".join(row) + "\n" for row in rows).encode(encoding))
    table = tables.read_table(path, text_files.Layout(("a", "b", "c"), "::", encoding=encoding))
    # Of three colons the first two are the separator, in whatever piece they come.
    rows[2] = ["", ":x", ""]
    assert [table.strings(name) for name in "abc"] == [
        list(part) for part in zip(*rows, strict=True)
    ]


def test_codes_of_a_slice():
    coded = pa.array(["a", "b", "c", "b"]).dictionary_encode()
    assert codes_of(coded).tolist() == [0, 1, 2, 1]
    assert codes_of(coded.slice(1, 2)).tolist() == [1, 2]


@pytest.mark.parametrize("width", [10, 1000])
def test_a_row_longer_than_a_block(tmp_path, monkeypatch, width):
    monkeypatch.setattr(tables, "_BLOCK", 100)
    path = tmp_path / "my.csv"
    path.write_text("user,item,note\n" + f"a,x,{'n' * width}\n" * 5)
    assert read_own(path).item.tolist() == [0] * 5
