"""Loading by name: look-up, download, digests, no network."""

import functools
import hashlib
import http.server
import io
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace

import pytest

from coterie.core.data.sources.catalogue import download, list_data, load
from coterie.core.errors import UserError
from coterie.core.registry import data_sets as names
from coterie.core.registry.data_sets import DATA_SETS, data_root, data_set

U_DATA = "196\t242\t3\t881250949\n22\t377\t1\t878887116\n"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def site(tmp_path):
    """A local web site: the folder it serves and its address."""
    folder = tmp_path / "site"
    folder.mkdir()
    handler = functools.partial(_Quiet, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def packed(files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def entry_at(address, **changes):
    return replace(DATA_SETS["ml-100k"], url=address + "a.zip", **{"md5": "", **changes})


@pytest.mark.parametrize("inner", ["ml-100k/u.data", "u.data"])
@pytest.mark.parametrize("published", [True, False])
def test_download_unpacks_and_loads(site, tmp_path, monkeypatch, inner, published):
    folder, address = site
    content = packed({inner: U_DATA})
    (folder / "a.zip").write_bytes(content)
    if published:
        digest = hashlib.md5(content).hexdigest()
        (folder / "a.zip.md5").write_text(f"MD5 (a.zip) = {digest}\n")
    monkeypatch.setitem(names.DATA_SETS, "ml-100k", entry_at(address))
    root = tmp_path / "root"
    assert len(load("ml-100k", root)) == 2
    assert [path.name for path in root.iterdir()] == ["ml-100k"]
    (folder / "a.zip").unlink()
    assert len(load("ml-100k", root)) == 2  # nothing is fetched a second time


@pytest.mark.parametrize("where", ["known", "beside"])
def test_wrong_digest_leaves_nothing(site, tmp_path, where):
    folder, address = site
    (folder / "a.zip").write_bytes(packed({"u.data": U_DATA}))
    (folder / "a.zip.md5").write_text("0" * 32 + "  a.zip\n")
    entry = entry_at(address, md5="1" * 32 if where == "known" else "")
    with pytest.raises(UserError, match="digest"):
        download(entry, tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []


@pytest.mark.parametrize("content", [b"no zip", packed({"README": "x"})])
def test_damaged_archive_leaves_nothing(site, tmp_path, content):
    folder, address = site
    (folder / "a.zip").write_bytes(content)
    with pytest.raises(UserError, match=r"is damaged .*: download .* and unpack it"):
        download(entry_at(address), tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []


def test_without_network_one_line_says_what_to_put_where(tmp_path):
    entry = entry_at("http://127.0.0.1:9/")
    with pytest.raises(UserError) as caught:
        download(entry, tmp_path)
    message = str(caught.value)
    assert "Connection refused" in message
    assert (
        f"download http://127.0.0.1:9/a.zip and unpack it so that {tmp_path}/ml-100k/u.data"
        in message
    )
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []


def test_missing_page(site, tmp_path):
    with pytest.raises(UserError, match="File not found"):
        download(entry_at(site[1]), tmp_path / "root")


def test_folder_without_the_file_is_not_overwritten(tmp_path):
    (tmp_path / "ml-100k").mkdir()
    (tmp_path / "ml-100k" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"is there but has no u\.data"):
        load("ml-100k", tmp_path)
    assert (tmp_path / "ml-100k" / "notes.txt").read_text() == "mine"


def test_root_that_cannot_be_written(tmp_path, site):
    folder, address = site
    (folder / "a.zip").write_bytes(packed({"u.data": U_DATA}))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to"):
        download(entry_at(address), tmp_path / "file")


def test_unknown_names_and_paths(tmp_path):
    with pytest.raises(UserError, match="did you mean 'ml-100k'"):
        load("ml-100", tmp_path)
    with pytest.raises(UserError, match=r"known: .*sample"):
        load("zzzzzz", tmp_path)
    with pytest.raises(UserError, match=r"there is no file .*nope\.csv"):
        load(tmp_path / "nope.csv")
    with pytest.raises(UserError, match=r"leave --data\.columns out"):
        load("sample", columns={"user": "u"})


def test_own_csv_by_path(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text("u,i\na,x\n")
    assert len(load(str(path), columns={"user": "u", "item": "i"})) == 1


def test_root_of_the_data(monkeypatch, tmp_path):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert data_root("other").name == "other"
    monkeypatch.delenv("COTERIE_DATA")
    assert data_root().parts[-2:] == (".cache", "coterie")


def test_listing_names_absent_and_malformed_sets(tmp_path):
    (tmp_path / "ml-100k").mkdir()
    (tmp_path / "ml-100k" / "u.data").write_text("broken\n")
    found = {entry.name: entry for entry in list_data(tmp_path)}
    assert list(found) == list(names.data_sets())
    assert "line 1" in found["ml-100k"].problem
    assert not found["ml-1m"].present
    assert found["sample"].users == 300
    assert all(entry.terms and entry.about for entry in found.values())
    assert data_set("ml-1m").core == 10


def test_names_import_neither_torch_nor_pandas():
    module = "coterie.core.registry.data_sets"
    code = f"import sys, {module}; print({{'torch', 'pandas'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
