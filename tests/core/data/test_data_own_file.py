"""A file of the user's own."""

import datetime as dt
import gzip
import json
import time

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from coterie.core.data.interactions.interactions import TEST, TRAIN, VALID
from coterie.core.data.interactions.splits import temporal_blocks
from coterie.core.data.sources.catalogue import load, load_filtered
from coterie.core.data.sources.file_forms import check_columns
from coterie.core.data.sources.own_file import read_own
from coterie.core.errors import UserError
from coterie.core.settings.sections import DataSettings

COLUMNS = {"user": "u", "item": "i", "time": "t"}


@pytest.fixture
def write(tmp_path):
    def to_file(text, name="my.csv"):
        path = tmp_path / name
        data = text if isinstance(text, bytes) else text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return to_file


@pytest.mark.parametrize("separator", [",", "\t", ";"])
@pytest.mark.parametrize("name", ["my.csv", "my.csv.gz"])
def test_separator_is_sniffed_and_ids_stay_text(write, separator, name):
    lines = [["u", "extra", "i", "t"], ["007", "a", "x-1", "5"], ["NA", "b", "x-2", "3"]]
    path = write("\r\n".join(separator.join(line) for line in lines), name)
    data = read_own(path, COLUMNS)
    assert data.user_names == ["007", "NA"]
    assert data.item_names == ["x-1", "x-2"]
    assert data.time.tolist() == [5, 3]
    assert data.rating is None
    assert data.titles is None


def test_a_comma_in_a_quoted_header_does_not_mislead(write):
    path = write('"u";"a,b,c,d,e";"i"\nx;1;y\n')
    assert read_own(path, {"user": "u", "item": "i"}).user_names == ["x"]


def test_roles_under_their_own_names(write):
    path = write("user,item,time,rating,title,genres\na,x,1,0,T,A|B\nb,x,2,4.5,T2,A\nb,y,3,1,,\n")
    data = read_own(path)
    assert data.user_names == ["b"]  # the row rated 0 is dropped
    assert data.rating.tolist() == [4.5, 1]
    assert data.titles == ["T", "y"]
    assert data.genres == [["A", "B"], []]


def test_dates_keep_their_order_and_zone(write):
    times = ["2020-01-01", "2020-01-01T00:00:01Z", "2020-01-01 01:00:00+01:00", "1969-12-31"]
    data = read_own(
        write("u,i,t\n" + "".join(f"a,{n},{t}\n" for n, t in enumerate(times))), COLUMNS
    )
    base = 1_577_836_800_000_000
    assert data.time.tolist() == [base, base + 1_000_000, base, -86_400_000_000]


def test_fractions_of_seconds_keep_their_order(write):
    data = read_own(write("u,i,t\na,x,1.25\na,y,1.5\na,z,1\n"), COLUMNS)
    assert data.time.tolist() == [1_250_000, 1_500_000, 1_000_000]


def test_nanoseconds_are_exact(write):
    data = read_own(write("u,i,t\na,x,1600000000000000001\na,y,1600000000000000000\n"), COLUMNS)
    assert data.time.tolist() == [1_600_000_000_000_000_001, 1_600_000_000_000_000_000]


def test_missing_time_is_refused_only_where_needed(write):
    path = write("u,i\n" + "a,x\nb,y\n" * 20)
    data = read_own(path, {"user": "u", "item": "i"})
    assert len(data) == 40
    with pytest.raises(UserError, match=r"needs timestamps.*--data\.columns time=COLUMN"):
        temporal_blocks(data)


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("u,i,t\n", COLUMNS, "line 1: the file has no rows"),
        ("", COLUMNS, "line 1: the file is empty"),
        ("usr,i,t\n1,2,3\n", {"user": "use"}, "no column 'use' for the user; did you mean 'usr'"),
        ("u,i,t\n1,2,3\n", {"user": "u", "item": "i", "time": "when"}, "no column 'when'"),
        ("u,i,t\n1,2,3\n", {"usr": "u"}, "'usr' is no role: did you mean 'user'?"),
        ("u,i,u\n1,2,3\n", COLUMNS, "a column name occurs twice"),
        ("u,i,t\n1,2,3\n1,2\n", COLUMNS, "line 3: expected 3 columns, found 2"),
        ("u,i,t\n1,2,3\n1,2,3,4\n", COLUMNS, "line 3: expected 3 columns, found 4"),
        ("u,i,t\n1,2,3\n,2,3\n", COLUMNS, "line 3: column 'u' is empty"),
        ('u,i,t\n"1\n1",2,3\n1,2,late\n', COLUMNS, "line 4: column 't' is 'late'"),
        ("u,i,t\n1,2,3\n1,2,2020-01-01\n", COLUMNS, "line 3: column 't' is '2020-01-01'"),
        ("u,i,t\n1,2,2020-01-01\n1,2,3.x\n", COLUMNS, "line 3: column 't' is '3.x', neither"),
        ("u,i,t\n1,2,1e30\n", COLUMNS, "line 2: column 't' is too large"),
        ("u,i,t\n1,2,nan\n", COLUMNS, "line 2: column 't' is 'nan'"),
        ("u,i,t\n1,2,inf\n", COLUMNS, "line 2: column 't' is 'inf'"),
        ("u,i,t\n1,2,3\n1,\xe9,3\n".encode("latin-1"), COLUMNS, "line 3: not UTF-8 text"),
        ('u,i,t\n1,2,3\n1,"2,3\n', COLUMNS, "line 3: a quote is not closed"),
    ],
)
def test_malformed_files(write, text, columns, message):
    path = write(text)
    with pytest.raises(UserError) as caught:
        read_own(path, columns)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    if "role" not in message:
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("u,i,t\n1,2,3\n", {"usr": "u"}, "'usr' is no role: did you mean 'user'?"),
        ("u;i;t\n1;2;3\n", {**COLUMNS, "user": "uu"}, "no column 'uu' for the user"),
        ("u,i,t\n1,2,late\n", {**COLUMNS, "time": "when"}, "no column 'when' for the time"),
    ],
)
@pytest.mark.parametrize("name", ["my.csv", "my.data.gz"])
def test_a_mistyped_column_is_told_by_the_first_line(write, text, columns, message, name):
    path = write(text, name)
    with pytest.raises(UserError) as early:
        check_columns(str(path), columns)
    with pytest.raises(UserError) as late:
        read_own(path, columns)
    assert message in str(early.value)
    assert str(early.value) == str(late.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "my.csv"),
        ("\n", "my.csv"),
        ("a,b", "my.csv"),
        ('a,"b\n1,2\n', "my.csv"),
        (b"\xff\xfe\n", "my.csv"),
        (b"\n", "plain.json"),
        (b"\n", "my.parquet"),
    ],
)
def test_other_faults_are_left_to_the_reader(write, text, name):
    path = write(text, name)
    check_columns(str(path), COLUMNS)
    with pytest.raises(UserError, match=r"my|plain"):
        read_own(path, COLUMNS)


def test_what_packs_a_file_is_told_by_its_bytes(tmp_path):
    path = tmp_path / "my.csv.gz"
    path.write_bytes(b"u,i\n1,2\n")
    named = {"user": "u", "item": "i"}
    check_columns(str(path), named)
    assert read_own(path, named).item_names == ["2"]


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(UserError, match="is a folder without files"):
        read_own(tmp_path, COLUMNS)


def test_parts_and_positions_of_the_file(write):
    path = write("u,i,part,place\na,x,train,10\nb,x,train,1\na,z,test,30\na,y,valid,20\n")
    named = {"user": "u", "item": "i", "split": "part", "order": "place"}
    data = read_own(path, named)
    assert data.split.tolist() == [TRAIN, TRAIN, TEST, VALID]
    assert data.time.tolist() == [10, 1, 30, 20]
    with pytest.raises(UserError, match="only the order of each user's interactions"):
        temporal_blocks(data)


def test_times_beside_parts_are_times(write):
    path = write("user,item,time,part\n" + "".join(f"a,i{n},{n},train\n" for n in range(9)))
    assert read_own(path, {"split": "part"}).require_time("it").tolist() == list(range(9))


def test_columns_called_split_and_order_are_read_only_where_named(write):
    data = read_own(write("user,item,time,split,order\na,x,5,mine,first\na,y,6,yours,second\n"))
    assert (data.split, data.time.tolist(), data.positions) == (None, [5, 6], False)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,x,train,0\na,y,dev,1\n", "line 3: column 'part' is 'dev', not train, valid or test"),
        ("a,x,train,0\nb,x,test,0\na,y,test,0\n", "line 4: the user has this position twice"),
        ("a,x,test,0\nb,x,train,0\na,y,train,1\n", "line 4: the part is before that of"),
        ("a,x,train,0\na,y,test,1.5\n", "line 3: column 'place' is '1.5', not a whole number"),
    ],
)
def test_parts_and_positions_that_contradict(write, rows, message):
    with pytest.raises(UserError, match=message):
        read_own(write("user,item,part,place\n" + rows), {"split": "part", "order": "place"})


def test_a_time_and_an_order_exclude_each_other(write):
    with pytest.raises(UserError, match="'order' takes the place of 'time'"):
        read_own(write("user,item,time,order\na,x,1,1\n"), {"time": "time", "order": "order"})


ROWS = [
    {"user": 7, "item": "007", "rating": 3, "time": "2020-01-02T00:00:00Z", "title": "T"},
    {"user": 8, "item": "x", "rating": 4.5, "time": "2020-01-01", "title": "é"},
    {"user": 7, "item": "x", "rating": 0.5, "time": "2020-01-03", "title": ""},
]


def as_csv(path):
    lines = [",".join(map(str, row.values())) for row in ROWS]
    path.write_text("\n".join([",".join(ROWS[0]), *lines]), encoding="utf-8")


def as_json(path):
    text = "\n\n".join(json.dumps(row) for row in ROWS).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def as_parquet(path):
    table = pa.Table.from_pylist(ROWS)
    item = table["item"].dictionary_encode()
    parquet.write_table(table.drop(["item"]).append_column("item", item), path)


@pytest.mark.parametrize(
    ("name", "make"),
    [("a.jsonl", as_json), ("a.json.gz", as_json), ("a.parquet", as_parquet)],
)
def test_other_forms_read_as_the_csv_does(tmp_path, name, make):
    make(tmp_path / name)
    as_csv(tmp_path / "a.csv")
    found, wanted = load(tmp_path / name), load(tmp_path / "a.csv")
    for column in ("user", "item", "time", "rating"):
        assert torch.equal(getattr(found, column), getattr(wanted, column))
    for column in ("user_names", "item_names", "titles"):
        assert getattr(found, column) == getattr(wanted, column)
    assert wanted.item_names == ["007", "x"]


def test_times_and_genres_of_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    day = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    zoned = pa.array([day, day + dt.timedelta(seconds=1)], pa.timestamp("ns", "Asia/Tokyo"))
    genres = [["A", "B"], []]
    parquet.write_table(
        pa.table({"user": [1, 2], "item": ["x", "y"], "time": zoned, "genres": genres}), path
    )
    data = read_own(path)
    assert data.time.tolist() == [1_577_836_800_000_000, 1_577_836_801_000_000]
    assert data.genres == genres


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user": [1.0, 2.5], "item": ["a", "b"]}, r"'user' is of type double: ids, titles"),
        ({"user": [1, None], "item": ["a", "b"]}, "row 2: column 'user' is missing"),
        ({"user": [1, 2], "item": ["a", " "]}, "row 2: column 'item' is empty"),
        ({"user": [1, 2], "item": ["a", "b"], "time": [1, None]}, "row 2: column 'time' is miss"),
        ({"user": [1, 2], "itm": ["a", "b"]}, "no column 'item' for the item; did you mean 'itm'"),
        ({"user": pa.array([], "string"), "item": pa.array([], "string")}, "has no rows"),
    ],
)
def test_malformed_parquet(tmp_path, columns, message):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table(columns), path)
    with pytest.raises(UserError, match=message):
        read_own(path)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match="is no whole Parquet file"):
        read_own(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"user": 1, "item": 2}]', "line 1: the line is no JSON object"),
        ('{"user": 1, "item": 2}\n\n{"user": "b", "item": 2}', "line 3: 'user' is 'b', not of"),
        ('{"user": 1, "item": 2}\n{"user": 1.5, "item": 2}', "is of type double: ids, titles"),
        ('{"user": 1, "item": "a"}\n\n{"user": 2, "item": " "}', "line 3: column 'item' is empty"),
        ('{"usr": 1, "item": "a"}', "line 1: no column 'user' for the user; did you mean 'usr'"),
        ("\n", "line 1: the file is empty"),
    ],
)
def test_malformed_json_lines(write, text, message):
    with pytest.raises(UserError, match=message):
        read_own(write(text, "a.jsonl"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user,item\na,x\na,\0y\n", "line 3: column 'item' holds a NUL byte"),
        ('user,item\na,x\na,"y\nb,z\n', "line 3: a quote is not closed"),
        ("user,item,rating\na,x,1\na,y,1e308\n", "line 3: column 'rating' is too large"),
    ],
)
def test_what_would_slip_into_ids_and_ratings(write, text, message, recwarn):
    with pytest.raises(UserError, match=message):
        read_own(write(text))
    assert not recwarn.list


def test_twenty_thousand_columns(write):
    many = ",".join(f"c{n}" for n in range(20_000))
    start = time.process_time()
    data = read_own(write(f"user,{many},item\n" + f"a,{many},x\n" * 50))
    assert (len(data), data.item_names) == (50, ["x"])
    for text, message in (
        (f"{many},item\n" + f"{many},x\n" * 50, "the file has 20,001 columns, the first are c0"),
        (f"user,{many},item\n" + f"a,{many}\n" * 50, "line 2: expected 20002 columns"),
        (many.replace(",", "\t") + "\n1\n", "the file has 20,000 columns"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            read_own(write(text))
        assert len(str(caught.value)) < 500
    assert time.process_time() - start < 5


@pytest.mark.parametrize("least", [4, 4.5])
def test_rating_threshold(write, least):
    rows = [("a", "x", 3), ("b", "y", 4), ("b", "x", 4.5), ("a", "z", 5)]
    path = write("user,item,rating\n" + "".join(f"{u},{i},{r}\n" for u, i, r in rows))
    data = load(path, min_rating=least)
    wanted = sorted((u, i) for u, i, r in rows if r >= least)  # the canonical order
    pairs = zip(data.user.tolist(), data.item.tolist(), strict=True)
    assert [(data.user_names[u], data.item_names[i]) for u, i in pairs] == wanted
    assert data.user[0] == data.item[0] == 0  # numbered anew
    with pytest.raises(UserError, match=r"no rating of 6 or more \(the highest is 5\)"):
        load(path, min_rating=6)
    with pytest.raises(UserError, match=r"has no ratings: leave --data\.min_rating out"):
        load(write("user,item\na,x\n", "b.csv"), min_rating=1)


def test_the_threshold_of_the_settings_reaches_the_data(write):
    path = str(write("user,item,rating\na,x,3\nb,y,4\n"))
    settings = DataSettings(name=path, min_rating=4, min_interactions=0)
    assert load_filtered(settings).user_names == ["b"]
    with pytest.raises(UserError, match=r"'data\.min_rating' must be above 0"):
        DataSettings(min_rating=0)
