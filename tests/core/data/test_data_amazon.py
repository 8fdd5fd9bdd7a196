"""The official Amazon files: whole, broken, and read a second time."""

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.core.data.sources import json_lines
from coterie.core.data.sources.catalogue import list_data, load
from coterie.core.data.sources.json_lines import cached_json_lines
from coterie.core.data.sources.review_readers import read_games
from coterie.core.errors import UserError
from coterie.core.registry.data_sets import data_sets, default_core

REVIEWS, METADATA = "Video_Games_5.json", "meta_Video_Games.json"


def review(user, item, time=1445040000, rating=5.0, **more):
    return {
        **{"overall": rating, "verified": True, "reviewTime": "10 17, 2015"},
        **{"reviewerID": user, "asin": item, "reviewText": "t", "unixReviewTime": time},
        **more,
    }


def product(item, title="T", brand="N", category=("Video Games", "PC"), **more):
    return {"asin": item, "title": title, "brand": brand, "category": list(category), **more}


# Fields that come and go and change their type, as in the official files.
LINES = {
    REVIEWS: [
        review("A1", "B1", 30, style={"Format:": " Disc"}),
        review("A2", "B2", 20, 1, vote="5", image=["http://x"]),
        review("A1", "B3", 10, style={"Color:": " Red"}),
        review("A2", "B1", 40),
        review("A3", "B4", 50),
        review("A1", "B5", 60),
        review("A4", "B6", 70),
    ],
    METADATA: [
        product("B2", "  Twó ", None, rank=["#1"], price="$1"),
        product("B1", "One", rank="2,900 in Games", details={"UPC:": "1"}),
        product("B1", "One again"),
        product("B3", "Three", "", ("Video Games", "", "PC")),
        product("B4", "var aPageStart = (new Date()).getTime();"),
        product("B5", " "),
        product("B9", "Nobody's"),
    ],
}


def text_of(lines):
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def write(folder, files=LINES, zipped=False):
    for name, lines in files.items():
        content = lines if isinstance(lines, bytes) else text_of(lines)
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("block", [10, 1 << 20])
def test_official_layout(tmp_path, zipped, block, monkeypatch):
    monkeypatch.setattr(json_lines, "_BLOCK", block)
    write(tmp_path, zipped=zipped)
    data = read_games(tmp_path)
    assert data.user_names == ["A1", "A2"]
    assert data.item_names == ["B1", "B2", "B3"]  # B4 to B6 have no title that can be read
    assert data.titles == ["One", "Twó", "Three"]
    assert data.brands == ["N", "", ""]
    assert data.genres == [["Video Games", "PC"]] * 3
    assert data.user.tolist() == [0, 1, 0, 1]
    assert data.item.tolist() == [0, 1, 2, 0]
    assert data.time.tolist() == [30, 20, 10, 40]
    assert data.rating.tolist() == [5, 1, 5, 5]


def test_by_name(tmp_path):
    assert {"amazon-games", "amazon-books"} <= set(data_sets())
    assert default_core("amazon-books") == 0
    with pytest.raises(UserError, match=r"put Books_5\.json \(or \.gz\) into .*amazon-books"):
        load("amazon-books", tmp_path)
    (tmp_path / "amazon-games").mkdir()
    write(tmp_path / "amazon-games", zipped=True)
    assert len(load("amazon-games", tmp_path)) == 4
    listed = {entry.name: entry for entry in list_data(tmp_path)}
    assert (listed["amazon-games"].users, listed["amazon-books"].present) == (2, False)


def test_tables_are_kept_until_the_file_changes(tmp_path, monkeypatch):
    write(tmp_path)
    read_games(tmp_path)
    assert len(list((tmp_path / ".arrow").iterdir())) == 2

    def fail(*_):
        raise AssertionError("the file was parsed a second time")

    with monkeypatch.context() as patch:
        patch.setattr(json_lines, "_tables", fail)
        assert len(read_games(tmp_path)) == 4
    write(tmp_path, {REVIEWS: LINES[REVIEWS] + [review("A9", "B1")]})
    assert len(read_games(tmp_path)) == 5


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != ".arrow")
    assert len(read_games(tmp_path)) == 4
    assert list((tmp_path / ".arrow").iterdir()) == []
    (tmp_path / ".arrow").rmdir()
    (tmp_path / ".arrow").write_text("a file")
    assert len(read_games(tmp_path)) == 4


@pytest.mark.parametrize("name", [REVIEWS, METADATA])
def test_a_missing_file(tmp_path, name):
    write(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match=f"has no {name} .*: put the file of amazon-games there"):
        read_games(tmp_path)


def test_files_of_different_sets(tmp_path):
    write(tmp_path, LINES | {METADATA: [product("X1")]})
    with pytest.raises(UserError, match="has no rating of an item with a title"):
        read_games(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{not json}\n", "line 3: the line is no JSON object, or cut off"),
        (b'{"overall": 5.0, "revi', "line 3: the line is no JSON object, or cut off"),
        (b"[1, 2]\n", "line 3: the line is no JSON object"),
        (text_of([{"overall": 5.0}]), "line 3: there is no 'reviewerID'"),
        (text_of([review(None, "B1")]), "line 3: there is no 'reviewerID'"),
        (text_of([review(7, "B1")]), "line 3: 'reviewerID' is '7', not of type string"),
        (text_of([review("A", "B", "soon")]), "line 3: 'unixReviewTime' is 'soon', not of type"),
        (text_of([review("A", "B", 2**70)]), "line 3: 'unixReviewTime' is '1180591620717411303424"),
        (text_of([review("A", "B", 1, [5])]), "line 3: 'overall' is '[5]', not of type double"),
    ],
)
@pytest.mark.parametrize("block", [10, 200, 1 << 20])  # one line, two, all
def test_malformed_lines(tmp_path, line, message, block, monkeypatch):
    monkeypatch.setattr(json_lines, "_BLOCK", block)
    write(tmp_path, LINES | {REVIEWS: text_of(LINES[REVIEWS][:2]) + line})
    with pytest.raises(UserError) as caught:
        read_games(tmp_path)
    assert f"{REVIEWS}, {message}" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert list((tmp_path / ".arrow").iterdir()) == []


def test_empty_and_blank_files(tmp_path):
    for content in (b"", b"\n \n"):
        write(tmp_path, LINES | {REVIEWS: content})
        with pytest.raises(UserError, match="line 1: the file is empty"):
            read_games(tmp_path)


def test_blank_lines_are_counted(tmp_path):
    (tmp_path / "a.json").write_bytes(b'\n{"x": 1}\n\n{"x": 2}\n\n{"x": "3"}\n')
    with pytest.raises(UserError, match="line 6: 'x' is '3'"):
        cached_json_lines(tmp_path / "a.json", pa.schema([("x", pa.int64())]))


EDITS = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.sampled_from(["cut", "insert", "delete"]),
        st.one_of(st.binary(min_size=1, max_size=3), st.sampled_from([b'"', b"\n", b"{", b"}"])),
    ),
    min_size=1,
    max_size=4,
)


@given(edits=EDITS, name=st.sampled_from([REVIEWS, METADATA]), pack=st.sampled_from("nba"))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damaged_files_end_in_one_line(tmp_path, edits, name, pack):
    for path in tmp_path.iterdir():
        if path.is_file():
            path.unlink()
    write(tmp_path)
    content = text_of(LINES[name])
    packed = gzip.compress(content, mtime=0) if pack == "b" else content
    for place, kind, extra in edits:
        at = int(place * len(packed))
        after = at if kind != "delete" else at + len(extra)
        packed = (
            packed[:at]
            + (extra if kind == "insert" else b"")
            + (b"" if kind == "cut" else packed[after:])
        )
    if pack == "n":
        (tmp_path / name).write_bytes(packed)
    else:
        (tmp_path / name).unlink()
        whole = packed if pack == "b" else gzip.compress(packed, mtime=0)
        (tmp_path / f"{name}.gz").write_bytes(whole)
    try:
        data = read_games(tmp_path)
    except UserError as error:
        message = str(error)
    else:
        assert int(data.user.max()) < data.n_users == len(data.user_names)
        assert int(data.item.max()) < data.n_items == len(data.titles) == len(data.brands)
        return
    assert len(message.splitlines()) == 1
