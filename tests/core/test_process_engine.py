"""A client's own process answers the same bytes as the in-process engine at C = 1."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.core.linear_client import (
    EXPLODE,
    MEASURE,
    UPDATE,
    Error,
    LinearClient,
    Slope,
    SlopeUpdate,
    make_client,
    make_fedavg,
)
from tests.in_process import OpenCohort, cohort_in_process, in_process_bytes, request_bytes

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.engines import folder as folder_module
from coterie.core.engines.folder import ClientFolder
from coterie.core.engines.process import answer, main, read_reply, serve
from coterie.core.errors import UserError
from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.methods.kit.model_client import GlobalModel
from coterie.core.privacy.noise import Clip, GaussianNoise
from coterie.core.protocol.journal import Journal
from coterie.core.tensors.keys import Key
from coterie.core.wire.codec import Header, ProtocolError, decode, encode, peek

ROOT = Path(__file__).resolve().parents[2]
SECRET = Key.from_seed(8).fold("clients")
FACTORY = "tests.core.linear_client:make_client"
LENGTHS = {3: 5, 8: 1, 11: 4}
NOISE = [
    {"factory": "coterie.core.privacy.noise:Clip", "arguments": {"norm": 0.05}},
    {"factory": "coterie.core.privacy.noise:GaussianNoise", "arguments": {"scale": 0.01}},
]


def sample_data() -> SampleData:
    key = Key.from_seed(1)
    return SampleData.from_clients(
        [
            {"x": key.fold("x", c).normal(n, 3), "y": key.fold("y", c).normal(n)}
            for c, n in LENGTHS.items()
        ],
        list(LENGTHS),
    )


def cohort_of(client, when=(0, 1), store=None, middleware=(), data=None) -> OpenCohort:
    data = sample_data() if data is None else data
    store = PrivateStore() if store is None else store
    cohort = cohort_in_process(
        client, data, store, SECRET, when, Ledger(), Journal(), middleware=middleware
    )
    cohort.enrol()
    return cohort


def slope(epochs=2) -> Slope:
    return Slope({"linear.w": torch.tensor([0.3, -0.2, 0.1])}, epochs)


def own(place: int) -> SampleData:
    return sample_data().take(torch.tensor([place]))


def make_folders(root: Path, factory=FACTORY, data=None, **options) -> dict[int, Path]:
    paths, data = {}, sample_data() if data is None else data
    for place, client in enumerate(LENGTHS):
        paths[client] = root / str(client)
        mine = data.take(torch.tensor([place]))
        ClientFolder.create(paths[client], factory, mine, SECRET.fold(client), **options)
    return paths


def child(path: Path, request: bytes, *extra: str, flags=(), **options):
    """The real thing: a Python process with nothing but a folder and a request."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *flags, "-m", "coterie.core.engines.process", "--folder", str(path)]
    return subprocess.run(
        [*command, *extra],
        input=request,
        env=environment,
        capture_output=True,
        timeout=120,
        check=False,
        **options,
    )


def test_a_process_answers_the_same_bytes(tmp_path):
    """Four asks in two rounds; training, the step that matters, in a real child."""
    path = make_folders(tmp_path)[11]
    store: PrivateStore = PrivateStore()
    asks = [((0, 1), "update", slope(), 0), ((0, 1), "measure", slope(), 1)]
    asks += [((0, 2), "forget", None, 0), ((0, 2), "update", slope(1), 1)]
    for when, step, down, asked in asks:
        cohort = cohort_of(LinearClient(), when, store)
        expected = in_process_bytes(cohort, step, down, asked)
        request = request_bytes(cohort, step, down, asked)
        if step != "update":
            assert serve(path, request) == expected[11]
            continue
        result = child(path, request)
        assert result.returncode == 0, result.stderr.decode()
        assert result.stdout == expected[11]
    kept, _ = decode(ClientFolder(path).private(("none", ())), type(store.take(torch.tensor([11]))))
    assert kept.visits.tolist() == [3]
    ours = store.take(torch.tensor([11]))
    assert torch.equal(kept.value, ours.value)
    assert torch.equal(kept.state.moments["exp_avg"]["w"], ours.state.moments["exp_avg"]["w"])


def test_the_process_imports_nothing_heavy_and_nothing_that_runs_rounds(tmp_path):
    data = SplitSamples.of(sample_data(), valid=sample_data())
    path = make_folders(tmp_path, "tests.core.linear_client:make_fedavg", data)[3]
    cohort = cohort_of(make_fedavg(), data=data)
    down = GlobalModel({"linear.weight": torch.zeros(1, 3), "linear.bias": torch.zeros(1)})
    expected = in_process_bytes(cohort, "update", down)[3]
    result = child(path, request_bytes(cohort, "update", down), flags=["-X", "importtime"])
    assert result.stdout == expected, result.stderr.decode()[-500:]
    imported = {line.split("|")[-1].strip() for line in result.stderr.decode().splitlines()}
    assert {"torch", "coterie.core.wire.codec", "coterie.core.methods.fedavg"} <= imported
    forbidden = ("lightning", "pytorch_lightning", "torchmetrics", "wandb", "pandas", "sklearn")
    assert not [name for name in imported if name.split(".")[0] in forbidden]
    assert not [name for name in imported if name.startswith("coterie.core.run")]


def test_all_clients_in_this_process(tmp_path):
    """The same without a child, for every client and with noise on a table of rows."""
    layers = (Clip(0.05), GaussianNoise(0.01))
    cohort = cohort_of(LinearClient(), middleware=layers)
    expected = in_process_bytes(cohort, "update", slope())
    request = request_bytes(cohort, "update", slope())
    for client, path in make_folders(tmp_path, middleware=NOISE).items():
        assert serve(path, request) == expected[client]
    plain = in_process_bytes(cohort_of(LinearClient()), "update", slope())
    assert plain[3] != expected[3]


def test_replies_match_the_stacked_engine():
    """What the bytes say is what all clients stacked at once upload."""
    cohort = cohort_of(LinearClient())
    request = request_bytes(cohort, "update", slope())
    replies = [
        answer(LinearClient(), request, b"", own(place), SECRET.fold(client))[0]
        for place, client in enumerate(LENGTHS)
    ]
    read = [read_reply(reply, UPDATE, peek(request)) for reply in replies]
    assert [client for _, client in read] == list(LENGTHS)

    class Keep:
        def add(self, total, up):
            return up

    stacked = cohort.ask(UPDATE, slope(), reduce=Keep()).total
    for place, (up, _) in enumerate(read):
        change = stacked.change["linear.w"][place]
        torch.testing.assert_close(up.change["linear.w"][0], change, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(
            up.rows.dense()[0], stacked.rows.dense()[place], atol=1e-6, rtol=1e-6
        )


def test_a_repeated_request_gives_the_same_reply_and_state(tmp_path):
    """The reply was lost after the private state was kept: nothing is trained twice."""
    path = make_folders(tmp_path)[3]
    cohort = cohort_of(LinearClient())
    first, second = (request_bytes(cohort, "update", slope(), asked) for asked in (0, 1))
    one = serve(path, first)
    state = (path / "private.safetensors").read_bytes()
    assert serve(path, first) == one
    assert (path / "private.safetensors").read_bytes() == state
    two = serve(path, second)
    assert two != one
    assert serve(path, second) == two
    expected = cohort_of(LinearClient())
    assert in_process_bytes(expected, "update", slope(), 0)[3] == one
    assert in_process_bytes(expected, "update", slope(), 1)[3] == two


def test_a_child_that_cannot_deliver_its_reply_recovers(tmp_path):
    """A real process whose reader has gone away."""
    path = make_folders(tmp_path)[3]
    cohort = cohort_of(LinearClient())
    request = request_bytes(cohort, "update", slope())
    expected = in_process_bytes(cohort, "update", slope())[3]
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    failed = subprocess.run(
        [sys.executable, "-m", "coterie.core.engines.process", "--folder", str(path)],
        input=request,
        stdout=writing,
        stderr=subprocess.PIPE,
        env=environment,
        timeout=120,
        check=False,
    )
    os.close(writing)
    assert failed.returncode != 0
    assert (path / "private.safetensors").exists()
    assert serve(path, request) == expected


@pytest.mark.parametrize("at", ["write", "fsync", "replace"])
def test_a_crash_while_keeping_state_changes_nothing(tmp_path, monkeypatch, at):
    path = make_folders(tmp_path)[3]
    cohort = cohort_of(LinearClient())
    serve(path, request_bytes(cohort, "update", slope(), 0))
    before = (path / "private.safetensors").read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if at == "write":
            patch.setattr(folder_module.os, "fdopen", fail)
        else:
            patch.setattr(folder_module.os, at, fail)
        with pytest.raises(UserError, match="No space left"):
            serve(path, request_bytes(cohort, "update", slope(), 1))
    assert (path / "private.safetensors").read_bytes() == before
    assert sorted(p.name for p in path.iterdir()) == [
        "client.json",
        "data.safetensors",
        "private.safetensors",
    ]
    expected = cohort_of(LinearClient())
    in_process_bytes(expected, "update", slope(), 0)
    again = serve(path, request_bytes(cohort, "update", slope(), 1))
    assert again == in_process_bytes(expected, "update", slope(), 1)[3]


def test_files_of_a_client_are_its_own(tmp_path):
    path = make_folders(tmp_path)[3]
    serve(path, request_bytes(cohort_of(LinearClient()), "update", slope()))
    for file in path.iterdir():
        assert file.stat().st_mode & 0o077 == 0


def test_a_result_that_is_not_finite_is_rolled_back_on_both_sides(tmp_path):
    path = make_folders(tmp_path)[3]
    cohort = cohort_of(LinearClient())
    serve(path, request_bytes(cohort, "update", slope(), 0))
    in_process_bytes(cohort, "update", slope(), 0)
    before = (path / "private.safetensors").read_bytes()
    request = request_bytes(cohort, "explode", None, 1)
    reply = serve(path, request)
    assert (path / "private.safetensors").read_bytes() == before
    assert in_process_bytes(cohort, "explode", None, 1) == {}
    why = dict((client, why) for _, client, why in cohort.journal.refused)[3]
    with pytest.raises(ProtocolError, match="client 3 refused: NaN or infinity in private") as got:
        read_reply(reply, EXPLODE, peek(request))
    assert why in str(got.value)


def test_what_goes_wrong_in_a_client_stays_there(tmp_path):
    path = make_folders(tmp_path)[3]
    result = child(path, request_bytes(cohort_of(LinearClient()), "crash", None))
    assert result.returncode == 1
    assert result.stdout == b""
    assert b"are private" in result.stderr


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (b"junk", "not a message"),
        (encode(slope(), Header("updat", (0,))), "no step 'updat': did you mean 'update'"),
        (encode(slope(), Header("__init__", (0,))), "no step '__init__'"),
        (encode(slope(), Header("forget", (0,))), "expected NoneType"),
        (encode(Error(torch.ones(1)), Header("update", (0,))), "expected Slope"),
        (encode(None, Header("update", (0,))), "expected Slope"),
    ],
)
def test_wrong_requests_are_one_line_and_status_2(
    tmp_path, capsysbinary, monkeypatch, request_, complaint
):
    path = make_folders(tmp_path)[3]
    with pytest.raises(ProtocolError, match=complaint):
        serve(path, request_)
    assert not (path / "private.safetensors").exists()
    monkeypatch.setattr("sys.stdin", open_bytes(tmp_path / "request", request_))
    assert main(["--folder", str(path)]) == 2
    out, error = capsysbinary.readouterr()
    assert out == b""
    assert len(error.decode().splitlines()) == 1


def open_bytes(path: Path, content: bytes):
    path.write_bytes(content)
    return path.open()


def edited(path: Path, **changes) -> Path:
    settings = json.loads((path / "client.json").read_text()) | changes
    (path / "client.json").write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"factory": "tests.core.linear_client:make_clint"},
            "make_clint' .* not found",
        ),
        ({"factory": "no_such_module:f"}, "not found"),
        ({"factory": "nonsense"}, "not found"),
        ({"factory": ""}, "not found"),
        ({"factory": "tests.core.linear_client:make_number"}, "gives no Client"),
        ({"arguments": {"rate": 1}}, "does not take its arguments"),
        ({"arguments": []}, "'arguments' must be there and of type dict"),
        ({"secret": None}, "'secret' must be there"),
        ({"secrets": 1}, "'secrets' is unknown: did you mean 'secret'"),
        ({"middleware": [{"factory": "coterie.core.privacy.noise:Clap"}]}, "Clap.* not found"),
    ],
)
def test_wrong_settings_are_named(tmp_path, changes, complaint):
    path = edited(make_folders(tmp_path)[3], **changes)
    request = request_bytes(cohort_of(LinearClient()), "update", slope())
    with pytest.raises(UserError, match=complaint):
        serve(path, request)


def test_damaged_or_missing_files_are_named(tmp_path):
    path = make_folders(tmp_path)[3]
    request = request_bytes(cohort_of(LinearClient()), "update", slope())
    serve(path, request)
    good = (path / "private.safetensors").read_bytes()
    (path / "private.safetensors").write_bytes(good[:-3])
    with pytest.raises(UserError, match=r"private\.safetensors is damaged"):
        serve(path, request)
    (path / "private.safetensors").unlink()
    (path / "client.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        serve(path, request)
    (path / "client.json").write_text("[]")
    with pytest.raises(UserError, match="must hold an object"):
        serve(path, request)
    with pytest.raises(UserError, match="cannot read"):
        serve(tmp_path / "nowhere", request)
    other = make_folders(tmp_path / "more")[3]
    (other / "data.safetensors").unlink()
    with pytest.raises(UserError, match=r"data\.safetensors"):
        serve(other, request)


def test_state_of_another_client_is_refused():
    request = request_bytes(cohort_of(LinearClient()), "update", slope())
    _, state = answer(LinearClient(), request, b"", own(0), SECRET)
    with pytest.raises(ProtocolError, match="of client 3, not 8"):
        answer(LinearClient(), request, state, own(1), SECRET)
    with pytest.raises(UserError, match="data of one client, got 3"):
        answer(LinearClient(), request, b"", sample_data(), SECRET)


def test_the_server_reads_only_replies_to_its_request():
    cohort = cohort_of(LinearClient())
    request = request_bytes(cohort, "update", slope())
    reply, _ = answer(make_client(), request, b"", own(0), SECRET)
    up, client = read_reply(reply, UPDATE, peek(request))
    assert isinstance(up, SlopeUpdate)
    assert client == 3
    with pytest.raises(ProtocolError, match="not to this request"):
        read_reply(reply, UPDATE, Header("update", (0, 2, 0)))
    wide = dataclasses.replace(up, loss=up.loss.double())
    with pytest.raises(ProtocolError, match="field 'loss' is"):
        read_reply(reply, UPDATE, peek(request), like=wide)
    with pytest.raises(ProtocolError, match="expected Error"):
        read_reply(reply, MEASURE, peek(request))


def test_the_client_option_chooses_another_half(tmp_path):
    path = make_folders(tmp_path, "no_such_module:f")[3]
    request = request_bytes(cohort_of(LinearClient()), "update", slope())
    assert (
        serve(path, request, FACTORY)
        == in_process_bytes(cohort_of(LinearClient()), "update", slope())[3]
    )
