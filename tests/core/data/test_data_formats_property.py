"""Any table, written by pandas, the csv module or Arrow in any form, is the same interactions.

Arrow writes the types of polars: large text, text views, large lists, dictionaries.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import feather, parquet

from coterie.core.data.sources import json_lines, text_columns
from coterie.core.data.sources.own_file import read_own
from coterie.core.errors import UserError

COLUMNS = ("user", "item", "time", "rating", "title", "genres")


@pytest.fixture(autouse=True)
def _in_pieces(monkeypatch):
    monkeypatch.setattr(text_columns, "_CHUNK", 16)
    monkeypatch.setattr(json_lines, "_BLOCK", 64)


def bytes_of(write):
    out = io.BytesIO()
    write(out)
    return out.getvalue()


def csv_module(rows, draw):
    out = io.StringIO(newline="")
    writer = csv.writer(
        out,
        delimiter=draw(st.sampled_from(",;\t")),
        quoting=draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])),
        lineterminator=draw(st.sampled_from(["\n", "\r\n"])),
    )
    flat = [{**row, "genres": "|".join(row["genres"] or [])} for row in rows]
    writer.writerows([COLUMNS, *([row[name] for name in COLUMNS] for row in flat)])
    return (draw(st.sampled_from(["", "\ufeff"])) + out.getvalue()).encode()


def frame_of(rows):
    frame = pd.DataFrame(rows, columns=COLUMNS)
    frame["genres"] = ["|".join(row["genres"] or []) for row in rows]
    return frame


def pandas_csv(rows, draw):
    mark = draw(st.sampled_from(",;\t"))
    return frame_of(rows).to_csv(index=False, sep=mark).encode()


def pandas_json(rows, draw):
    return frame_of(rows).to_json(orient="records", lines=True).encode()


def pandas_parquet(rows, draw):
    return bytes_of(lambda out: frame_of(rows).to_parquet(out, index=draw(st.booleans())))


def json_module(rows, draw):
    lines = []
    for row in rows:
        absent = [name for name, value in row.items() if value is None and draw(st.booleans())]
        lines.append({name: value for name, value in row.items() if name not in absent})
    ascii_only = draw(st.booleans())
    return "\n".join(json.dumps(line, ensure_ascii=ascii_only) for line in lines).encode()


def typed(rows, draw, words, numbers, lists):
    """Table of some types of each kind."""
    arrays = {}
    for name in COLUMNS:
        values = [row[name] for row in rows]
        if name == "genres":
            arrays[name] = pa.array(values, lists)
        elif name in ("time", "rating"):
            arrays[name] = pa.array(values, numbers if name == "time" else pa.float64())
        elif all(isinstance(value, int) for value in values):
            arrays[name] = pa.array(values, draw(st.sampled_from([pa.int64(), pa.uint64()])))
        else:
            texts = pa.array([None if v is None else str(v) for v in values], pa.string())
            arrays[name] = texts.dictionary_encode() if words is None else texts.cast(words)
    return pa.table(arrays)


WORDS = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), None)
NUMBERS = (pa.int64(), pa.float64(), pa.decimal128(20, 2), pa.uint64())
LISTS = (pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(pa.string_view()))


def arrow(rows, draw):
    found = typed(rows, draw, *(draw(st.sampled_from(each)) for each in (WORDS, NUMBERS, LISTS)))
    how = draw(st.sampled_from(["parquet", "feather", "file", "stream"]))
    if how == "parquet":
        return bytes_of(lambda out: parquet.write_table(found, out))
    if how == "feather":
        return bytes_of(lambda out: feather.write_feather(found, out))
    new = pa.ipc.new_file if how == "file" else pa.ipc.new_stream

    def write(out):
        with new(out, found.schema) as writer:
            writer.write_table(found, max_chunksize=draw(st.integers(1, 5)))

    return bytes_of(write)


def zipped(data):
    def write(out):
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("inner", data)

    return bytes_of(write)


WRITERS = (csv_module, pandas_csv, pandas_json, pandas_parquet, json_module, arrow)
PACKED = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zip": zipped,
}
TEXT = st.text(st.sampled_from('ab7"\n,;\t|é 0'), max_size=4)
IDS = st.one_of(
    st.integers(0, 9),
    TEXT.filter(lambda text: text.strip()),
    st.sampled_from(["007", "NA", "null", "9" * 25, " x", "x"]),
)
ROW = st.fixed_dictionaries(
    {
        "user": IDS,
        "item": IDS,
        "time": st.integers(0, 10**9),
        "rating": st.sampled_from([1.0, 2.5, 4.0]),
        "title": st.one_of(st.none(), TEXT),
        "genres": st.one_of(
            st.none(), st.lists(st.sampled_from(["A", "B b", " C"]), max_size=2, unique=True)
        ),
    }
)


def one_type(rows):
    """Ids of a column are all numbers or all text, as in typed files."""
    for name in ("user", "item"):
        if not all(isinstance(row[name], int) for row in rows):
            for row in rows:
                row[name] = str(row[name])
    return rows


def expected(rows):
    """Interactions in plain Python, row by row."""
    names = {name: [str(row[name]).strip() for row in rows] for name in ("user", "item")}
    users, items = (list(dict.fromkeys(names[name])) for name in ("user", "item"))
    first = {item: rows[names["item"].index(item)] for item in items}
    return {
        "user": [users.index(name) for name in names["user"]],
        "item": [items.index(name) for name in names["item"]],
        "time": [row["time"] for row in rows],
        "rating": [row["rating"] for row in rows],
        "user_names": users,
        "item_names": items,
        "titles": [(first[item]["title"] or "").strip() or item for item in items],
        "genres": [[word.strip() for word in first[item]["genres"] or []] for item in items],
    }


def found(data):
    """Interactions as lists; a column that no line of a file has is an empty one."""
    lists = {name: getattr(data, name).tolist() for name in ("user", "item", "time", "rating")}
    titles = data.item_names if data.titles is None else data.titles
    genres = [[] for _ in data.item_names] if data.genres is None else data.genres
    return lists | {
        "user_names": data.user_names,
        "item_names": data.item_names,
        "titles": titles,
        "genres": genres,
    }


@given(
    rows=st.lists(ROW, min_size=1, max_size=6).map(one_type),
    writer=st.sampled_from(WRITERS),
    packing=st.sampled_from(list(PACKED)),
    suffix=st.sampled_from(["", ".csv", ".TSV", ".data"]),
    cut=st.integers(0, 6),
    draw=st.data(),
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_table_in_any_form(tmp_path_factory, rows, writer, packing, suffix, cut, draw):
    folder = tmp_path_factory.mktemp("table")
    parts = [part for part in (rows[:cut], rows[cut:]) if part]
    for number, part in enumerate(parts):
        path = folder / f"part-{number}{suffix}{packing}"
        path.write_bytes(PACKED[packing](writer(part, draw.draw)))
    (folder / "_SUCCESS").touch()
    (folder / ".part-0.crc").write_bytes(b"\0\1")
    data = read_own(folder if len(parts) > 1 else path)
    assert found(data) == expected(rows)


@pytest.mark.parametrize("writer", [csv_module, pandas_json, pandas_parquet, arrow])
@pytest.mark.parametrize("name", ["user", "item", "rating", "time"])
@given(draw=st.data())
@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_field_without_a_value_is_told_by_its_place(tmp_path, writer, name, draw):
    row = {"user": "a", "item": "x", "time": 1, "rating": 2.0, "title": "T", "genres": None}
    rows = [row, {**row, "item": "y"}, {**row, name: None}, row]
    path = tmp_path / "table"
    path.write_bytes(writer(rows, draw.draw))
    place = "row 3" if writer in (pandas_parquet, arrow) else "line "
    with pytest.raises(UserError, match=rf"{place}.*column '{name}' is (missing|empty)") as caught:
        read_own(path)
    lines = {csv_module: "line 4:", pandas_json: "line 3:"}
    assert lines.get(writer, place) in str(caught.value)


def test_times_of_all_units_equal_those_of_pandas(tmp_path):
    words = pd.Series(["2020-01-01T00:00:01.500", "1969-12-31T23:59:59", "1900-01-01"])
    times = pd.to_datetime(words, format="ISO8601")
    wanted = times.to_numpy().astype("datetime64[us]").astype(np.int64).tolist()
    for unit in ("ms", "us", "ns"):
        for zone in (None, "Asia/Tokyo"):
            stamps = pa.array(times.dt.tz_localize("UTC"), pa.timestamp(unit, "UTC"))
            stamps = stamps.cast(pa.timestamp(unit, zone))
            path = tmp_path / "table.parquet"
            parquet.write_table(
                pa.table({"user": [1] * 3, "item": [1, 2, 3], "time": stamps}), path
            )
            assert read_own(path).time.tolist() == wanted
