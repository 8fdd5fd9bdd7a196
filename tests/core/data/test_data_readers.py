"""Official layouts, plain and gzipped, whole and broken."""

import gzip

import pytest
import torch

from coterie.core.data.sources.readers import (
    read_hetrec_movielens,
    read_lastfm_2k,
    read_ml_1m,
    read_ml_100k,
    read_ml_latest_small,
)
from coterie.core.errors import UserError

U_DATA = b"196\t242\t3\t881250949\n22\t377\t1\t878887116\n196\t377\t5\t881250949\n"
FLAGS = b"|".join([b"0"] * 5 + [b"1"] + [b"0"] * 13)
U_ITEM = b"242|Kolya (1996)|24-Jan-1997||http://x|" + FLAGS + b"\n377|Caf\xe9|||u|" + FLAGS + b"\n"


def rows(data):
    return [
        (data.user_names[u], data.item_names[i], t)
        for u, i, t in zip(data.user.tolist(), data.item.tolist(), data.time.tolist(), strict=True)
    ]


@pytest.mark.parametrize("zipped", [False, True])
def test_ml_100k(tmp_path, zipped):
    for name, content in (("u.data", U_DATA), ("u.item", U_ITEM)):
        path = tmp_path / (name + ".gz" * zipped)
        path.write_bytes(gzip.compress(content) if zipped else content)
    data = read_ml_100k(tmp_path)
    assert rows(data) == [
        ("196", "242", 881250949),
        ("22", "377", 878887116),
        ("196", "377", 881250949),
    ]
    assert data.titles == ["Kolya (1996)", "Café"]
    assert data.genres == [["Comedy"], ["Comedy"]]
    assert data.rating.tolist() == [3, 1, 5]


def test_titles_are_optional(tmp_path):
    (tmp_path / "u.data").write_bytes(U_DATA)
    data = read_ml_100k(tmp_path)
    assert data.titles is None
    assert data.genres is None


def test_ml_latest_small(tmp_path):
    head = "userId,movieId,rating,timestamp\r\n"
    (tmp_path / "ratings.csv").write_text(head + "1,7,4.5,964982703\r\n2,9,0.5,5\r\n", newline="")
    movies = 'movieId,title,genres\r\n7,"Seven, a ""film"" (1995)",Drama|War\r\n'
    movies += "9,Amélie,(no genres listed)\r\n"
    (tmp_path / "movies.csv").write_text(movies, newline="", encoding="utf-8")
    data = read_ml_latest_small(tmp_path)
    assert rows(data) == [("1", "7", 964982703), ("2", "9", 5)]
    assert data.titles == ['Seven, a "film" (1995)', "Amélie"]
    assert data.genres == [["Drama", "War"], []]
    assert data.rating.tolist() == [4.5, 0.5]


def test_ml_1m(tmp_path):
    (tmp_path / "ratings.dat").write_bytes(b"1::1193::5::978300760\n1::661::3::978302109\n")
    (tmp_path / "movies.dat").write_bytes(b"1193::Caf\xe9: it (1975)::Drama|War\n")
    data = read_ml_1m(tmp_path)
    assert rows(data) == [("1", "1193", 978300760), ("1", "661", 978302109)]
    assert data.titles == ["Café: it (1975)", "661"]  # an unnamed item is called by its id
    assert data.genres == [["Drama", "War"], []]


def test_lastfm_keeps_distinct_user_artist_time(tmp_path):
    text = "userID\tartistID\ttagID\ttimestamp\n2\t52\t13\t100\n2\t52\t15\t100\n2\t52\t13\t200\n"
    (tmp_path / "user_taggedartists-timestamps.dat").write_text(text)
    (tmp_path / "artists.dat").write_text('id\tname\turl\tpictureURL\n52\tA "B\tu\tp\n')
    data = read_lastfm_2k(tmp_path)
    assert rows(data) == [("2", "52", 100), ("2", "52", 200)]
    assert data.titles == ['A "B']


@pytest.mark.parametrize("header", ["", "userID\tmovieID\ttagID\ttimestamp\r\n"])
def test_hetrec_tags_with_and_without_header(tmp_path, header):
    text = header + "75\t353\t5290\t1162160415000\r\n75\t353\t1\t1162160415000\r\n"
    (tmp_path / "user_taggedmovies.dat").write_text(text, newline="")
    genres = "movieID\tgenre\n" * bool(header) + "353\tDrama\n353\tWar\n"
    (tmp_path / "movie_genres.dat").write_text(genres)
    data = read_hetrec_movielens(tmp_path)
    assert rows(data) == [("75", "353", 1162160415000)]
    assert data.genres == [["Drama", "War"]]
    assert "tag assignments" in data.source


def test_hetrec_prefers_ratings(tmp_path):
    tags = "75\t353\t5290\t1162160415000\r\n"
    (tmp_path / "user_taggedmovies.dat").write_text(tags)
    head = "userID\tmovieID\trating\ttimestamp\r\n"
    path = tmp_path / "user_ratedmovies-timestamps.dat"
    path.write_text(head + "75\t3\t1\t1162160236000\r\n75\t32\t4.5\t1162160624000\r\n", newline="")
    data = read_hetrec_movielens(tmp_path)
    assert rows(data) == [("75", "3", 1162160236000), ("75", "32", 1162160624000)]
    assert "(ratings, user_ratedmovies-timestamps.dat)" in data.source


def test_rows_rated_zero_or_less_are_dropped(tmp_path):
    (tmp_path / "u.data").write_bytes(b"1\t5\t0\t7\n2\t6\t1\t8\n3\t6\t-1\t8\n")
    data = read_ml_100k(tmp_path)
    assert rows(data) == [("2", "6", 8)]
    (tmp_path / "u.data").write_bytes(b"1\t5\t0\t7\n")
    with pytest.raises(UserError, match="no interaction with a rating above 0"):
        read_ml_100k(tmp_path)


GOOD = b"1\t2\t3\t4\n"
BROKEN = {
    "too few columns": (GOOD + b"5\t6\t7\n" + GOOD, 2, "expected 4 columns, found 3"),
    "too few columns in line 1": (b"5\t6\t7\n" + GOOD, 1, "expected 4 columns"),
    "too many columns": (GOOD * 2 + b"1\t2\t3\t4\t5\n", 3, "expected 4 columns, found 5"),
    "words for an id": (GOOD + b"bob\t2\t3\t4\n", 2, "'user' is 'bob', not a whole number"),
    "fraction for a time": (GOOD + b"1\t2\t3\t4.5\n", 2, "'time' is '4.5', not a whole number"),
    "words for a time": (GOOD * 3 + b"1\t2\t3\tnow\n", 4, "'time' is 'now'"),
    "words for a rating": (GOOD + b"1\t2\tgood\t4\n", 2, "'rating' is 'good', not a number"),
    "not a number": (GOOD + b"1\t2\tnan\t4\n", 2, "'rating' is 'nan'"),
    "infinite": (GOOD + b"1\t2\tinf\t4\n", 2, "'rating' is 'inf'"),
    "empty field": (GOOD + b"1\t\t3\t4\n", 2, "'item' is missing"),
    "id beyond 64 bits": (GOOD + b"1\t99999999999999999999\t3\t4\n", 2, "'item' is '9999"),
    "half a last line": (GOOD + b"1\t2", 2, "the last line has no line end"),
    "half a last number": (GOOD + b"1\t2\t3\t88", 2, "the last line has no line end"),
    "blank line first": (GOOD + b"\n\n1\t2\tx\t4\n", 4, "'rating' is 'x'"),
    "other separator": (b"1,2,3,4\n", 1, "expected 4 columns (user, item, rating, time), found 1"),
    "empty": (b"", 1, "the file is empty"),
    "blank": (b"\n \n", 1, "the file is empty"),
    "not text": (GOOD + b"1\t2\t3\t\xff\xfe\n", 2, "not UTF-8 text"),
    "UTF-16": ("1\t2\t3\t4\n".encode("utf-16") + b"\n", 1, "not UTF-8 text"),
    "zero bytes": (GOOD + b"\0\0\0\0\0\n", 2, "expected 4 columns, found 1"),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("case", BROKEN)
def test_malformed_ratings_name_file_and_line(tmp_path, case, zipped):
    content, line, what = BROKEN[case]
    path = tmp_path / ("u.data" + ".gz" * zipped)
    path.write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(UserError) as caught:
        read_ml_100k(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line {line}: ")
    assert any(part in message for part in what.split("|"))
    assert ";" in message  # a remedy follows
    assert "\n" not in message


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_corrupt_gzip_names_file_and_line(tmp_path, damage):
    content = b"".join(b"%d\t%d\t3\t%d\n" % (n, n * 7919 % 1000, n * n) for n in range(200_000))
    packed = bytearray(gzip.compress(content))
    if damage == "cut":
        packed = packed[: len(packed) // 2]
    else:
        packed[len(packed) // 2] ^= 0xFF
    path = tmp_path / "u.data.gz"
    path.write_bytes(bytes(packed))
    with pytest.raises(
        UserError, match=r"u\.data\.gz, line \d+: the gzip data are corrupt"
    ) as caught:
        read_ml_100k(tmp_path)
    line = int(str(caught.value).split("line ")[1].split(":")[0])
    assert 1 < line <= 200_001


def test_a_name_does_not_make_a_file_gzip(tmp_path):
    (tmp_path / "u.data.gz").write_bytes(U_DATA)
    named = read_ml_100k(tmp_path)
    (tmp_path / "u.data.gz").rename(tmp_path / "u.data")
    assert torch.equal(named.item, read_ml_100k(tmp_path).item)


def test_malformed_side_files_name_file_and_line(tmp_path):
    (tmp_path / "u.data").write_bytes(U_DATA)
    (tmp_path / "u.item").write_bytes(U_ITEM[:-20])
    with pytest.raises(UserError, match=r"u\.item, line 2: expected 24 columns, found 1"):
        read_ml_100k(tmp_path)
    head = "userId,movieId,rating,timestamp\n"
    (tmp_path / "ratings.csv").write_text(head + "1,7,4.5,964982703\n")
    (tmp_path / "movies.csv").write_text('movieId,title,genres\n7,Fine,War\n9,"Open,War\n1,b,c\n')
    with pytest.raises(UserError, match=r"movies\.csv, line 3: a quote is not closed"):
        read_ml_latest_small(tmp_path)
    (tmp_path / "movies.csv").write_text("movieId,title,genres\n7,Fine,War\n9,Hal")
    with pytest.raises(UserError, match=r"movies\.csv, line 3: expected 3 columns, found 2"):
        read_ml_latest_small(tmp_path)


def test_wrong_or_missing_header(tmp_path):
    path = tmp_path / "ratings.csv"
    path.write_text("1,7,4.5,964982703\n1,8,4.5,964982703\n")
    with pytest.raises(UserError, match=r"line 1: expected the header userId, movieId"):
        read_ml_latest_small(tmp_path)
    path.write_text("userId,movieId,rating,timestamp\n")
    with pytest.raises(UserError, match="the file has no rows"):
        read_ml_latest_small(tmp_path)
    path.write_text("userId,movieId,rating,timestamp\n1,2,3,4\nx,2,3,4\n")
    with pytest.raises(UserError, match="line 3: column 'userId' is 'x'"):
        read_ml_latest_small(tmp_path)


def test_missing_and_unreadable_files(tmp_path):
    with pytest.raises(UserError, match=r"has no u\.data \(nor \.gz\)"):
        read_ml_100k(tmp_path)
