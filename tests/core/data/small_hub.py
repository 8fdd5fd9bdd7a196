"""A hub on this machine, with one data set: what its clients ask for, and no more."""

import hashlib
import io
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import parquet

NAME = "owner/films"
COMMIT = "0123456789" * 4
_CARD = """---
configs:
- config_name: small
  data_files:
  - split: train
    path: small/train.parquet
  - split: test
    path: small/test.parquet
- config_name: one
  data_files:
  - split: whole
    path: one/all.parquet
---
"""


def _parquet(**columns) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(pa.table(columns), sink)
    return sink.getvalue()


FILES = {
    "README.md": _CARD.encode(),
    "small/train.parquet": _parquet(user=["a", "b", "a"], item=[1, 1, 2], time=[5, 6, 7]),
    "small/test.parquet": _parquet(user=["a"], item=[3], time=[8]),
    "one/all.parquet": _parquet(user=["x", "y"], item=[1, 2]),
}


class _Hub(BaseHTTPRequestHandler):
    def do_GET(self):
        path = unquote(self.path.split("?")[0])
        if path == "/":
            self._send(200, b"")
        elif found := re.fullmatch(rf"/api/datasets/{NAME}(?:/revision/(\w+))?", path):
            self._about(found[1])
        elif found := re.fullmatch(rf"/api/datasets/{NAME}/tree/\w+/?(.*)", path):
            self._tree(found[1])
        elif found := re.fullmatch(rf"/datasets/{NAME}/resolve/\w+/(.*)", path):
            self._file(found[1])
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def log_message(self, *_):
        pass

    def _about(self, revision):
        if revision not in (None, "main", "v1", COMMIT):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return
        files = [{"rfilename": name} for name in FILES]
        self._json({"id": NAME, "sha": COMMIT, "private": False, "siblings": files})

    def _tree(self, folder):
        found = [
            {"type": "file", "path": name, "size": len(content), "oid": _etag(content)}
            for name, content in FILES.items()
            if name.startswith(folder)
        ]
        if not folder:
            found += [
                {"type": "directory", "path": name, "size": 0, "oid": "0" * 40}
                for name in ("small", "one")
            ]
        self._json(found)

    def _file(self, name):
        if name not in FILES:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        head = {"ETag": f'"{_etag(FILES[name])}"', "X-Repo-Commit": COMMIT}
        self._send(200, FILES[name], head)

    def _json(self, value):
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status, body, head=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(head or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _etag(content):
    return hashlib.sha1(content).hexdigest()


@contextmanager
def hub() -> Iterator[str]:
    """Serve it; gives its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
