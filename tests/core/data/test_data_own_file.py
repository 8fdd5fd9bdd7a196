"""A CSV file of the user's own."""

import gzip

import pytest

from coterie.core.data.interactions.blocks import temporal_blocks
from coterie.core.data.sources.own_file import read_own
from coterie.core.errors import UserError

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
        ('u,i,t\n1,2,3\n1,"2,3\n', COLUMNS, "line 3: expected 3 columns"),
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


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_own(tmp_path, COLUMNS)
