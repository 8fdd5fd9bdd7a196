"""Damaged files of every layout end in one line for the user, never in another exception."""

import gzip

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from coterie.core.data.sources.own_file import read_own
from coterie.core.errors import UserError
from coterie.core.registry.data_sets import data_set
from coterie.core.registry.papers import load

HEADER = b"userID\tartistID\ttagID\ttimestamp\n"
WHOLE = {
    "ml-100k": {
        "u.data": b"196\t242\t3\t881250949\n22\t377\t1\t878887116\n" * 3,
        "u.item": b"242|Kolya|24-Jan-1997||http://x|" + b"|".join([b"0"] * 19) + b"\n",
    },
    "ml-latest-small": {
        "ratings.csv": b"userId,movieId,rating,timestamp\r\n" + b"1,7,4.5,964982703\r\n" * 5,
        "movies.csv": b'movieId,title,genres\r\n7,"Seven, ""a"" film",Drama|War\r\n',
    },
    "ml-1m": {
        "ratings.dat": b"1::1193::5::978300760\n1::661::3::978302109\n",
        "movies.dat": b"1193::Caf\xe9: it (1975)::Drama|War\n",
    },
    "ml-10m": {
        "ratings.dat": b"1::122::5::838985046\n1::185::4.5::838983525\n",
        "movies.dat": b"122::Caf\xc3\xa9 (1992)::Children|Romance\n",
    },
    "ml-100k profiles": {
        "u.data": b"196\t242\t3\t881250949\n22\t377\t1\t878887116\n" * 3,
        "u.user": b"196|24|M|technician|85711\n22|53|F|other|94043\n",
    },
    "ml-1m profiles": {
        "ratings.dat": b"1::1193::5::978300760\n1::661::3::978302109\n",
        "users.dat": b"1::F::1::10::48067\n2::M::56::16::70072\n",
    },
    "amazon-domains": {
        "Books.csv": b"0001713353,A1C6M8LCIX4M6M,5.0,1123804800\n" * 2,
        "Video_Games.csv": b"0700026657,A1HP7NVNPFMA4N,4.0,1444089600\n",
        "Digital_Music.csv": b"5557706259,A1C6M8LCIX4M6M,5.0,1378857600\n",
        "Movies_and_TV.csv": b"0001527665,A1C6M8LCIX4M6M,5.0,1362960000\n",
    },
    "douban": {
        "douban.csv": b"user_id,item_id,rating,domain,living_place\n1,7,5,book,\n2,7,4,movie,x\n",
        "other.txt": b"",
    },
    "lastfm-2k": {
        "user_taggedartists-timestamps.dat": HEADER + b"2\t52\t13\t100\n" * 4,
        "artists.dat": b"id\tname\turl\tpictureURL\n52\tA\tu\tp\n",
    },
    "hetrec2011-movielens": {
        "user_taggedmovies.dat": b"75\t353\t5290\t1162160415000\r\n" * 3,
        "movie_genres.dat": b"353\tDrama\n353\tWar\n",
    },
    "amazon-titles": {
        "Industrial_and_Scientific.interactions.csv": (
            b"user_id,item_id,position,split,title\n"
            b'A1,7,0,train,"Glue, 2 g"\nA1,8,1,valid,Tape\nA1,7,2,test,"Glue, 2 g"\n'
            b"A2,8,0,train,Tape\n"
        ),
        "Industrial_and_Scientific.item.json": b'{"7": {"title": "Glue", "brand": "UHU"}, "8": {}}',
    },
    "microlens": {
        "MicroLens-50k_pairs.csv": b"user,item,timestamp\n" + b"36,4,1668504763932\n" * 4,
        "MicroLens-50k_titles.csv": b'item,title\n4,"one, two"\n5,three\n',
    },
}
EDITS = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.sampled_from(["cut", "insert", "delete", "replace"]),
        st.one_of(st.binary(min_size=1, max_size=3), st.sampled_from([b'"', b"\n", b"\r", b"::"])),
    ),
    min_size=1,
    max_size=4,
)


def damaged(content, edits):
    for place, kind, extra in edits:
        at = int(place * len(content))
        if kind == "cut":
            content = content[:at]
        elif kind == "insert":
            content = content[:at] + extra + content[at:]
        elif kind == "delete":
            content = content[:at] + content[at + len(extra) :]
        else:
            content = content[:at] + extra + content[at + len(extra) :]
    return content


def read_or_refuse(read, *arguments):
    try:
        data = read(*arguments)
    except UserError as error:
        message = str(error)
    else:
        assert len(data) > 0
        assert int(data.user.max()) < data.n_users
        assert int(data.item.max()) < data.n_items
        return
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("name", WHOLE)
@given(edits=EDITS, which=st.integers(0, 1), pack=st.sampled_from(["no", "before", "after"]))
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_official_layouts(tmp_path, name, edits, which, pack):
    for path in tmp_path.iterdir():
        path.unlink()
    for number, (file, content) in enumerate(WHOLE[name].items()):
        if number != which:
            (tmp_path / file).write_bytes(content)
        elif pack == "no":
            (tmp_path / file).write_bytes(damaged(content, edits))
        elif pack == "before":
            (tmp_path / f"{file}.gz").write_bytes(damaged(gzip.compress(content), edits))
        else:
            (tmp_path / f"{file}.gz").write_bytes(gzip.compress(damaged(content, edits)))
    read_or_refuse(load(data_set(name.split()[0]).reader), tmp_path)


@given(edits=EDITS)
@example(edits=[(1.0, "insert", b'"'), (1.0, "insert", b'"')])
@settings(
    max_examples=75, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_own_csv(tmp_path, edits):
    path = tmp_path / "my.csv"
    rows = b'a,x,2020-01-01T10:00:00Z,3,"T, t"\nb,y,2020-01-02,4.5,U\n' * 2
    path.write_bytes(damaged(b"user,item,time,rating,title\n" + rows, edits))
    read_or_refuse(read_own, path)
