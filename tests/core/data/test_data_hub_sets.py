"""Data sets of the hub: fetched once and kept; without a network one line, at once."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest
from tests.core.data.small_hub import COMMIT, NAME, hub

from coterie.core.cli.main import main
from coterie.core.data.sources import hub_sets
from coterie.core.data.sources.catalogue import load
from coterie.core.errors import UserError
from coterie.core.registry.data_sets import HubName, hub_name, stem

pytest.importorskip("datasets")

# The client reads its environment when it is imported, so each case would need a process.
CODE = """
import json, sys
from coterie.core.data.interactions.canonical import data_digest
from coterie.core.data.sources.catalogue import load
from coterie.core.errors import UserError

found = {}
for name in json.loads(sys.argv[1]):
    try:
        data = load(name)
        found[name] = [len(data), data.user_names, data_digest(data)]
    except UserError as error:
        found[name] = str(error)
print(json.dumps(found))
"""
TRAIN = f"hf:{NAME}:small#train"
ONE = f"hf:{NAME}:one"


def asked(names, folder, **environment):
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(names)],
        capture_output=True,
        text=True,
        env=os.environ
        | {"HF_HOME": str(folder / "hub"), "COTERIE_DATA": str(folder / "data"), "NO_PROXY": "*"}
        | environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def fetched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fetched")
    names = [
        TRAIN, ONE, f"{ONE}@v1", f"hf:{NAME}", f"hf:{NAME}:small", f"{TRAIN}x", f"hf:{NAME}:big",
        f"{ONE}@nope", "hf:owner/nothing",
    ]  # fmt: skip
    with hub() as address:
        return asked(names, folder, HF_ENDPOINT=address), folder


@pytest.mark.long
def test_rows_are_those_of_the_split(fetched):
    found, _ = fetched
    assert found[TRAIN][:2] == [3, ["a", "b"]]
    assert found[ONE][:2] == [2, ["x", "y"]]
    assert found[f"{ONE}@v1"] == found[ONE]


def test_what_must_be_chosen_is_said(fetched):
    found, _ = fetched
    assert found[f"hf:{NAME}"] == (
        f"hf:{NAME} has the configurations small, one: name one, as hf:{NAME}:small"
    )
    splits = f"has the splits train, test: name one, as {TRAIN}"
    assert found[f"hf:{NAME}:small"] == f"hf:{NAME}:small {splits}"
    assert found[f"{TRAIN}x"] == f"{TRAIN}x {splits}"
    assert "has the configurations small, one" in found[f"hf:{NAME}:big"]
    assert f"cannot fetch {ONE}@nope (" in found[f"{ONE}@nope"]
    assert "cannot fetch hf:owner/nothing (" in found["hf:owner/nothing"]
    assert not any("\n" in text for text in found.values() if isinstance(text, str))


def test_what_is_kept_needs_no_network(fetched):
    found, folder = fetched
    again = asked([TRAIN, ONE], folder, HF_HUB_OFFLINE="1")
    assert again == {name: found[name] for name in (TRAIN, ONE)}
    kept = HubName(NAME, "one").folder(folder / "data")
    assert json.loads((kept / "_hub.json").read_text()) == {"name": ONE, "commit": COMMIT}
    assert not [each.name for each in kept.parent.iterdir() if each.name.startswith(".")]


def test_without_a_network_it_is_one_line_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    from huggingface_hub import constants

    with socket.socket() as mute:  # takes connections and says nothing
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = f"http://127.0.0.1:{mute.getsockname()[1]}"
        cases = {"http://127.0.0.1:9": "", "http://no-such-host.invalid": "", address: "timed out"}
        monkeypatch.setattr(hub_sets, "_PROBE", 0.3)
        for endpoint, message in cases.items():
            monkeypatch.setattr(constants, "ENDPOINT", endpoint)
            began = time.monotonic()
            assert main(["train", "f3crec", "--data", ONE, "--out", str(tmp_path / "runs")]) == 2
            assert time.monotonic() - began < 10
            error = capsys.readouterr().err
            assert f"{ONE} is not here, and the hub cannot be reached ({endpoint}: " in error
            assert message in error
            assert error.count("\n") == 1
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="cannot be reached \\(HF_HUB_OFFLINE is set\\)"):
        load(ONE)
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_it_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install 'coterie-core\[datasets\]'"):
        load(ONE, tmp_path)


def test_names():
    full = "hf:o/n:c@refs/pr/1#s"
    assert hub_name(full) == HubName("o/n", "c", "refs/pr/1", "s")
    assert str(hub_name(full)) == full
    assert stem(full) == "n-c-s"
    names = ("hf:o/n", "hf:o/n:c", "hf:o/n@c", "hf:o/n#c", "hf:o-n/c")
    assert len({hub_name(name).folder(hub_sets.data_root("/")) for name in names}) == len(names)
    for name in ("hf:n", "hf:o/n/m", "hf:o/n#s@r", "hf:o/n:", "hf:o/n#train[:10%]", "hf:../n#x/.."):
        with pytest.raises(UserError, match="is no name on the hub"):
            hub_name(name)
