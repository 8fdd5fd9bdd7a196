"""The middle in another process: exact, guarded, and gone without a hang."""

import math
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.llm.split_process import Server
from tests.llm.split_server import MAX_BYTES, TRAINING
from tests.llm.tiny_split import TinyLlama, batch, gradients, lend_start
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.local_training.row_optimizer import RowState
from coterie.core.tensors import tree
from coterie.llm.adapter import Adapter
from coterie.llm.split.channel import Channel
from coterie.llm.split.context import Context, Diverged
from coterie.llm.split.cut import cut
from coterie.llm.split.middle import Middle, Training
from coterie.llm.split.part import Part, given_back, lend
from coterie.llm.split.remote import link
from coterie.llm.split.remote.channel import GrpcMiddle, GrpcSessions
from coterie.llm.split.remote.link import Link, Tls, grpc, is_loopback
from coterie.llm.split.remote.messages import LEND, SERVICE, SESSION, TOKEN, Done, Opened, Step
from coterie.llm.split.remote.server import MiddleServer
from coterie.llm.split.remote.tokens import admin_token, client_token, make_secret, read_secret

HIDDEN = torch.linspace(-1, 1, 2 * 5 * 32).reshape(2, 5, 32)
LEARN = Context(gradient=True, input_gradient=True)
SECRET = "s" * 64


@pytest.fixture
def within() -> Iterator[tuple[Middle, MiddleServer, str]]:
    """A server in this process that was lent parts: quick, for what is refused."""
    parts = cut(TinyLlama(4), 1)
    middle = Middle(parts.stack, TRAINING)
    server = MiddleServer(middle, parts.model, SECRET, max_bytes=MAX_BYTES)
    server.start()
    lend_start(middle, middle.adapter.row())
    yield middle, server, parts.model
    server.stop(0)


def channel_to(
    server: MiddleServer, model: str, wire: str | None = None, **others: object
) -> Channel:
    link = Link(server.address, **others)
    return Channel(GrpcSessions(link, model, lambda client: client_token(SECRET, client)), wire)


def step_of(backbone: TinyLlama, channel, client: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """One training step of the client; its part's gradients."""
    backbone.zero_grad()
    with channel.session(client, training=True):
        loss = backbone.value(*batch(seed=client))
        loss.backward()
        channel.step()
    return loss.detach(), gradients(backbone)


def test_second_process_is_exact_and_resumes(tmp_path: Path, servers: list[Server]) -> None:
    servers.append(Server(tmp_path, n_layers=5, k=2))
    far, near = TinyLlama(5), TinyLlama(5)
    far_parts, near_parts = cut(far, 2), cut(near, 2)
    middle = Middle(near_parts.stack, TRAINING)
    near_parts.connect(Channel(middle))
    far_parts.release()

    def both_play(part: Part) -> Part:
        remote = servers[-1].middle(far_parts.model)
        far_parts.connect(servers[-1].channel(far_parts.model))
        for one in (remote, middle):
            lend(one, [0, 1], part)
        for client in (0, 1):
            loss, grads = step_of(far, far_parts.block.channel, client)
            other, others = step_of(near, near_parts.block.channel, client)
            assert loss == other
            assert all(torch.equal(grads[name], grad) for name, grad in others.items())
        back, own = given_back(remote, [0, 1]), given_back(middle, [0, 1])
        for (_, given), (_, leaf) in zip(tree.tensors(back), tree.tensors(own), strict=True):
            assert torch.equal(given, leaf)
        return replace(back, rows=torch.tensor([[0.75, 0.25], [0.25, 0.75]]) @ back.rows)

    part = both_play(lend_start(middle, middle.adapter.row(), 2, optimizer=True))
    servers[0].kill()
    servers.append(Server(tmp_path, n_layers=5, k=2))
    part = both_play(part)  # row and optimizer are all that a new server needs
    for one in (servers[1].middle(far_parts.model), middle):
        lend(one, [0, 1], part)
    far.eval()
    near.eval()
    tokens, mask = batch(3, 7)
    written = []
    for parts in (far_parts, near_parts):
        with parts.block.channel.session(1, training=False):
            network = parts.backbone.network
            written.append(
                network.generate(tokens, attention_mask=mask, num_beams=3, max_length=20)
            )
    assert torch.equal(*written)


def test_gradients_of_the_middle_equal_the_whole_model(
    tmp_path: Path, servers: list[Server]
) -> None:
    """By Adam's first moment, which after one step is a tenth of the gradient."""
    servers.append(Server(tmp_path))
    whole = TinyLlama(4)
    loss = whole.value(*batch())
    loss.backward()
    expected = gradients(whole)
    backbone = TinyLlama(4)
    parts = cut(backbone, 1)
    names = Adapter(parts.stack.named_parameters())
    parts.connect(servers[0].channel(parts.model))
    middle = servers[0].middle(parts.model)
    lend_start(middle, names.row(), 1, optimizer=True)
    split_loss, client = step_of(backbone, parts.block.channel)
    assert split_loss == loss
    for name, grad in client.items():
        assert torch.equal(grad, expected[name.replace("layers.2.", "layers.3.")])
    # What the server gives back tells.
    state = middle.trained(0).optimizer
    assert isinstance(state, RowState)
    grads = names.named_tensors(state.moments["exp_avg"]["row"][0] / 0.1)
    assert len(grads) == 8
    for name, grad in grads.items():
        _, place, rest = name.split(".", 2)
        whole_grad = expected[f"network.model.layers.{int(place) + 1}.{rest}"]
        torch.testing.assert_close(grad, whole_grad, rtol=1e-5, atol=1e-6)


def test_killed_in_the_middle_of_a_step(tmp_path: Path, servers: list[Server]) -> None:
    servers.append(Server(tmp_path, "--slow", "60"))
    backbone = TinyLlama(4)
    parts = cut(backbone, 1)
    parts.connect(servers[0].channel(parts.model))
    middle, row = servers[0].middle(parts.model), Adapter(parts.stack.named_parameters()).row()
    lend_start(middle, row, 1)
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(step_of, backbone, parts.block.channel)
        assert servers[0].line() == "backward"
        since = time.monotonic()
        servers[0].kill()
        with pytest.raises(UserError, match=r"has gone: start it \(again\).*--resume") as caught:
            step.result(timeout=30)
    assert time.monotonic() - since < 20
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="cannot be reached"):
        middle.clear()
    servers.append(Server(tmp_path))
    parts.connect(servers[1].channel(parts.model))
    with pytest.raises(UserError, match=r"nothing is lent to the server .* with --resume"):
        step_of(backbone, parts.block.channel)
    middle = servers[1].middle(parts.model)
    lend_start(middle, row, 1)
    step_of(backbone, parts.block.channel)
    assert middle.trained(0).rows.shape == (1, len(row))


def test_wrong_tokens(within: tuple[Middle, MiddleServer, str]) -> None:
    _, server, model = within
    stranger = Channel(
        GrpcSessions(Link(server.address), model, lambda client: client_token(SECRET, 1))
    )
    with pytest.raises(UserError, match="token is not that of client 0"):
        stranger.open(0, training=True)
    stranger.open(1, training=True)
    with pytest.raises(UserError, match="not that of the coordinator"):
        GrpcMiddle(Link(server.address), model, client_token(SECRET, 1)).clear()
    link = Link(server.address)
    for session in ("", "f" * 32):
        with pytest.raises(UserError, match=r"session is unknown or expired .* --resume"):
            link.call(Step(), Done, session=session)
    with pytest.raises(UserError, match="no gradient since"):
        link.call(Step(), Done, session=stranger._current())
    assert client_token(SECRET, 1) != client_token(SECRET, 11) != admin_token(SECRET)


def test_another_configuration(within: tuple[Middle, MiddleServer, str]) -> None:
    _, server, model = within
    assert cut(TinyLlama(4), 1, settings="rank 8").model != model != cut(TinyLlama(5), 1).model
    with pytest.raises(UserError, match="start both with the same configuration"):
        channel_to(server, "0" * 16).open(0, training=True)
    with pytest.raises(UserError, match="start both with the same configuration"):
        GrpcMiddle(Link(server.address), "0" * 16, admin_token(SECRET)).clear()


@pytest.mark.parametrize(
    ("hidden", "context", "match"),
    [
        (HIDDEN[0], LEARN, "expected \\(sequences, tokens, 32\\)"),
        (HIDDEN.double(), LEARN, "float64"),
        (HIDDEN * math.nan, LEARN, "not every number is finite"),
        (HIDDEN, Context(mask=torch.ones(9, 9).bool()), "mask is"),
        (HIDDEN, Context(past=5, cache=3), "cache is unknown"),
        (HIDDEN.repeat(900, 1, 1), LEARN, "too large|larger than max"),
    ],
)
def test_tensors_that_do_not_fit(
    within: tuple[Middle, MiddleServer, str], hidden: Tensor, context: Context, match: str
) -> None:
    _, server, model = within
    channel = channel_to(server, model, deadline=10.0)
    channel.open(0, training=True)
    # Not by `forward` and `backward`, which send nothing that is not finite.
    with pytest.raises(UserError, match=match):
        channel.middle.forward(channel._current(), hidden, context)
    out, call = channel.forward(HIDDEN, LEARN)  # the session goes on
    with pytest.raises(UserError, match="gradient: not every number is finite"):
        channel.middle.backward(channel._current(), call, out * math.nan)
    assert channel.backward(call, out).shape == HIDDEN.shape


def test_what_diverges_is_known_as_such_on_both_sides(
    within: tuple[Middle, MiddleServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    middle, server, model = within
    channel = channel_to(server, model)
    with channel.session(0, training=True):
        with pytest.raises(Diverged):
            channel.forward(HIDDEN * math.nan, LEARN)
        out, call = channel.forward(HIDDEN, LEARN)
        with pytest.raises(Diverged):
            channel.backward(call, out / 0)
        channel.backward(call, out)
        monkeypatch.setattr(middle, "forward", lambda *_: (HIDDEN * math.nan, 2))
        with pytest.raises(Diverged):
            channel.forward(HIDDEN, LEARN)
        monkeypatch.setattr(middle, "backward", lambda *_: HIDDEN / 0)
        with pytest.raises(Diverged):
            channel.backward(2, HIDDEN)
    channel.open(1, training=True)
    one = middle._sessions.get(channel._current())
    one.row = one.row.detach() * math.nan
    with pytest.raises(Diverged, match="client 1 is not finite any more"):
        channel.close()
    assert not len(middle._sessions)
    assert list(middle._trained) == [0]


def test_a_wire_of_bfloat16_overflows_where_float32_does_not(
    within: tuple[Middle, MiddleServer, str],
) -> None:
    _, server, model = within
    largest = torch.full_like(HIDDEN, torch.finfo(torch.float32).max)
    with pytest.raises(Diverged):
        channel_to(server, model, wire="bfloat16").forward(largest, LEARN)


def test_oversized_for_the_client_itself(
    within: tuple[Middle, MiddleServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, server, model = within
    monkeypatch.setattr(link, "MAX_BYTES", 4096)
    channel = channel_to(server, model)
    channel.open(0, training=True)
    with pytest.raises(UserError, match="use smaller batches, or raise --max-mib"):
        channel.forward(HIDDEN.repeat(4, 1, 1), LEARN)


@pytest.mark.parametrize(
    "data", [b"", b"junk", b"\xff" * 64, b"\x80\x04K\x01.", (1 << 62).to_bytes(8, "little") + b"{}"]
)
def test_malformed_bytes(within: tuple[Middle, MiddleServer, str], data: bytes) -> None:
    _, server, model = within
    with grpc.insecure_channel(server.address) as raw:
        for method in ("Open", "Forward", "Backward", "Step", "Close", "Clear"):
            with pytest.raises(grpc.RpcError) as caught:
                raw.unary_unary(f"/{SERVICE}/{method}")(data, timeout=10)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        for method in (LEND, "Trained"):
            for token, code in ((admin_token(SECRET), "INVALID_ARGUMENT"), ("", "UNAUTHENTICATED")):
                call = raw.stream_stream(f"/{SERVICE}/{method}")
                with pytest.raises(grpc.RpcError) as caught:
                    list(call(iter([data]), timeout=10, metadata=((TOKEN, token),)))
                assert caught.value.code() == grpc.StatusCode[code]
        with pytest.raises(grpc.RpcError) as caught:
            raw.unary_unary(f"/{SERVICE}/Shell")(data, timeout=10)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    channel_to(server, model).open(0, training=True)


def test_a_bug_on_the_server_tells_nothing(
    within: tuple[Middle, MiddleServer, str], monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    middle, server, model = within

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("/home/secret/path")

    monkeypatch.setattr(middle, "open", broken)
    with pytest.raises(UserError) as caught:
        channel_to(server, model).open(0, training=True)
    assert "secret" not in str(caught.value)
    assert "/home/secret/path" in caplog.text


def test_no_answer_in_time(within: tuple[Middle, MiddleServer, str]) -> None:
    _, server, model = within
    with server._device, pytest.raises(UserError, match=r"has not answered in 0\.3 s"):
        channel_to(server, model, deadline=0.3).open(0, training=True)


def test_clients_at_once_share_the_device(within: tuple[Middle, MiddleServer, str]) -> None:
    middle, server, model = within

    def work(client: int) -> None:
        channel = channel_to(server, model)
        with channel.session(client, training=True):
            for _ in range(3):
                out, call = channel.forward(HIDDEN * (client + 1), LEARN)
                channel.backward(call, out)
                channel.step()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    rows = given_back(middle, range(6)).rows
    lend_start(middle, middle.adapter.row())
    for client in range(6):
        work(client)
    assert torch.equal(rows, given_back(middle, range(6)).rows)


def test_bfloat16_wire(within: tuple[Middle, MiddleServer, str]) -> None:
    middle, server, model = within
    link = Link(server.address)
    sessions = GrpcSessions(link, model, lambda client: client_token(SECRET, client))
    far = Channel(sessions, "bfloat16")
    near = Channel(middle, "bfloat16")
    results = []
    for channel in (far, near):
        channel.open(0, training=True)
        out, call = channel.forward(HIDDEN, LEARN)
        results.append((out, channel.backward(call, out), channel.traffic.drain()))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert results[0][2] == results[1][2]
    assert results[0][0].dtype == torch.float32
    with pytest.raises(UserError, match="known: float32, bfloat16"):
        Channel(middle, "float8")


def test_a_dishonest_server() -> None:
    """What a server answers is checked on the client, too."""
    handlers = {
        "Open": lambda request, context: b"junk",
        "Step": lambda request, context: context.abort(grpc.StatusCode.UNKNOWN, "a\nb"),
    }
    server = grpc.server(ThreadPoolExecutor(1))
    wrapped = {name: grpc.unary_unary_rpc_method_handler(h) for name, h in handlers.items()}
    generic = grpc.method_handlers_generic_handler(SERVICE, wrapped)
    server.add_generic_rpc_handlers((generic,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    link = Link(f"127.0.0.1:{port}")
    with pytest.raises(UserError, match="answered nonsense"):
        Channel(GrpcSessions(link, "m", str)).open(0, training=True)
    with pytest.raises(UserError, match="refused: a b"):
        link.call(Step(), Opened)
    server.stop(0)


def test_addresses() -> None:
    for address in ("example", "host:", ":50551", "host:port"):
        with pytest.raises(UserError, match="write host:port"):
            Link(address)
    with pytest.raises(UserError, match="another machine: give the server's certificate"):
        Link("192.0.2.7:50551")
    assert is_loopback("127.8.8.8")
    assert not is_loopback("10.0.0.1")
    middle = Middle(cut(TinyLlama(4), 1).stack, Training(lr=0.1))
    with pytest.raises(UserError, match="can be reached from elsewhere"):
        MiddleServer(middle, "m", SECRET, "0.0.0.0:0")
    taken = MiddleServer(middle, "m", SECRET)
    taken.start()
    with pytest.raises(UserError, match="the port is taken"):
        MiddleServer(middle, "m", SECRET, taken.address)
    taken.stop(0)
    with pytest.raises(UserError, match="cannot be reached"):
        GrpcMiddle(Link(taken.address), "m", "").clear()


def test_secret_is_private_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "server" / "secret"
    with pytest.raises(UserError, match="written by `coterie llm serve`"):
        read_secret(path)
    secret = make_secret(path)
    assert make_secret(path) == read_secret(path) == secret
    assert path.stat().st_mode & 0o077 == 0
    path.write_text("short\n")
    with pytest.raises(UserError, match="shorter than 32"):
        make_secret(path)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities, each with a certificate for this machine."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl program to make certificates")
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    for name in ("ours", "theirs"):
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        openssl("req", "-x509", *curve, "-keyout", f"{name}-ca.key", "-out", f"{name}-ca.pem",
                "-days", "2", "-subj", f"/CN={name}")  # fmt: skip
        openssl("req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr",
                "-subj", "/CN=localhost")  # fmt: skip
        (folder / "san").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{name}-ca.pem", "-CAkey",
                f"{name}-ca.key", "-CAcreateserial", "-out", f"{name}.pem", "-days", "2",
                "-extfile", "san")  # fmt: skip
    return folder


def pem(folder: Path, root: str | None, own: str | None = None) -> Tls:
    return Tls(
        folder / f"{root}-ca.pem" if root else None,
        folder / f"{own}.pem" if own else None,
        folder / f"{own}.key" if own else None,
    )


@pytest.mark.parametrize("mutual", [False, True])
def test_tls(certificates: Path, mutual: bool) -> None:
    parts = cut(TinyLlama(4), 1)
    tls = pem(certificates, "ours" if mutual else None, "ours")
    server = MiddleServer(Middle(parts.stack, TRAINING), parts.model, SECRET, tls=tls)
    server.start()
    for good in (pem(certificates, "ours", "ours"), pem(certificates, "ours")):
        link = Link(server.address, tls=good, deadline=10.0)
        middle = GrpcMiddle(link, parts.model, admin_token(SECRET))
        if mutual and good.certificate is None:
            with pytest.raises(UserError, match=r"certificate|cannot be reached"):
                middle.clear()
        else:
            middle.clear()
    since = time.monotonic()
    with pytest.raises(UserError, match="do not accept each other's certificate") as caught:
        GrpcMiddle(
            Link(server.address, tls=pem(certificates, "theirs", "ours"), deadline=10.0),
            parts.model,
            admin_token(SECRET),
        ).clear()
    assert "\n" not in str(caught.value)
    if mutual:
        with pytest.raises(UserError, match=r"certificate|cannot be reached"):
            GrpcMiddle(
                Link(server.address, tls=pem(certificates, "ours", "theirs"), deadline=10.0),
                parts.model,
                admin_token(SECRET),
            ).clear()
    with pytest.raises(UserError, match="cannot be reached"):
        GrpcMiddle(Link(server.address, deadline=10.0), parts.model, admin_token(SECRET)).clear()
    assert time.monotonic() - since < 25
    server.stop(0)


def test_tls_files(certificates: Path) -> None:
    with pytest.raises(UserError, match="belong together"):
        Link("127.0.0.1:1", tls=Tls(certificate=certificates / "ours.pem"))
    with pytest.raises(UserError, match=r"cannot read .*nowhere\.pem"):
        Link("127.0.0.1:1", tls=Tls(certificates / "nowhere.pem"))
    wrong = Tls(None, certificates / "ours.pem", certificates / "theirs.key")
    middle = Middle(cut(TinyLlama(4), 1).stack, TRAINING)
    with pytest.raises(UserError, match="certificate and the key do not fit"):
        MiddleServer(middle, "m", SECRET, tls=wrong)


def test_metadata_names_are_lower_case() -> None:
    """Else gRPC refuses every call."""
    assert TOKEN.lower() == TOKEN
    assert SESSION.lower() == SESSION
