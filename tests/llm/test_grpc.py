"""The middle in another process: exact, guarded, and gone without a hang."""

import math
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from tests.llm.split_process import Server
from tests.llm.split_server import MAX_BYTES, TRAINING
from tests.llm.tiny_split import TinyLlama, batch, gradients, use_start
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.local_training.row_optimizer import RowState
from coterie.core.tensors import tree
from coterie.llm.adapter import Adapter
from coterie.llm.mixing import Mixing
from coterie.llm.split.channel import Channel, Context, Diverged
from coterie.llm.split.cut import cut
from coterie.llm.split.kept_parts import OwnLayers
from coterie.llm.split.middle import Middle, Training
from coterie.llm.split.part import Kept
from coterie.llm.split.remote import link
from coterie.llm.split.remote.channel import GrpcLayers, GrpcSessions
from coterie.llm.split.remote.link import Link, Tls, grpc, is_loopback, options
from coterie.llm.split.remote.messages import CLIENT, SERVICE, SESSION, TOKEN, Done, Opened, Step
from coterie.llm.split.remote.server import MiddleServer
from coterie.llm.split.remote.tokens import admin_token, client_token, make_secret, read_secret

HIDDEN = torch.linspace(-1, 1, 2 * 5 * 32).reshape(2, 5, 32)
LEARN = Context(gradient=True, input_gradient=True)
SECRET = "s" * 64


@pytest.fixture
def fixed_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server takes in 64 KiB of what nobody reads: else the more, the faster the line just is."""
    monkeypatch.setattr(
        "coterie.llm.split.remote.server.options",
        lambda max_bytes: [*options(max_bytes), ("grpc.http2.bdp_probe", 0)],
    )


@pytest.fixture
def within(tmp_path: Path) -> Iterator[tuple[Middle, MiddleServer, str]]:
    """A server in this process with a part in use: quick, for what is refused."""
    parts = cut(TinyLlama(4), 1)
    middle = Middle(parts.stack, TRAINING)
    server = MiddleServer(middle, parts.model, SECRET, tmp_path, max_bytes=MAX_BYTES)
    server.start()
    use_start(middle)
    yield middle, server, parts.model
    server.stop(0)


def channel_to(
    server: MiddleServer, model: str, wire: str | None = None, **others: object
) -> Channel:
    link = Link(server.address, **others)
    return Channel(GrpcSessions(link, model, lambda client: client_token(SECRET, client)), wire)


def layers_to(server: MiddleServer, model: str, token: str | None = None, **how) -> GrpcLayers:
    link = Link(server.address, deadline=10.0, **how)
    return GrpcLayers(link, model, token or admin_token(SECRET), 6, optimizer=False)


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

    who = torch.tensor([0, 1])
    how = Mixing(who, who, torch.tensor([[0.75, 0.25], [0.25, 0.75]]).double())
    own = OwnLayers(middle, 2, optimizer=True)

    def both_play(far_kept: Kept, near_kept: Kept) -> tuple[Kept, Kept]:
        remote = servers[-1].layers(far_parts.model)
        far_parts.connect(servers[-1].channel(far_parts.model))
        kept = []
        for layers, one in ((remote, far_kept), (own, near_kept)):
            layers.use(one)
        for client in (0, 1):
            loss, grads = step_of(far, far_parts.block.channel, client)
            other, others = step_of(near, near_parts.block.channel, client)
            assert loss == other
            assert all(torch.equal(grads[name], grad) for name, grad in others.items())
        for changes in (False, True):
            assert torch.equal(remote.gram(who, changes), own.gram(who, changes))
        for layers, one in ((remote, far_kept), (own, near_kept)):
            kept.append(layers.mix(one, how, one.number + 1, floor=9, best=0))
        pairs = zip(
            tree.tensors(servers[-1].part(kept[0])), tree.tensors(kept[1].part), strict=True
        )
        assert all(torch.equal(given, leaf) for (_, given), (_, leaf) in pairs)
        return kept[0], kept[1]

    kept = both_play(servers[0].layers(far_parts.model).begin(), own.begin())
    servers[0].kill()
    servers.append(Server(tmp_path, n_layers=5, k=2))
    kept = both_play(*kept)  # its folder is all that a new server needs
    servers[-1].layers(far_parts.model).use(kept[0])
    own.use(kept[1])
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
    layers, one = servers[0].layers(parts.model, 1), torch.tensor([0])
    start = layers.begin()
    layers.use(start)
    split_loss, client = step_of(backbone, parts.block.channel)
    assert split_loss == loss
    for name, grad in client.items():
        assert torch.equal(grad, expected[name.replace("layers.2.", "layers.3.")])
    # What the server keeps tells.
    how = Mixing(one, one, torch.eye(1).double())
    state = servers[0].part(layers.mix(start, how, 1, floor=0, best=0)).optimizer
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
    layers = servers[0].layers(parts.model, 1)
    start = layers.begin()
    layers.use(start)
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
        layers.use(layers.anew(start))
    servers.append(Server(tmp_path))
    parts.connect(servers[1].channel(parts.model))
    with pytest.raises(UserError, match=r"no part for client 0 .* with --resume"):
        step_of(backbone, parts.block.channel)
    layers = servers[1].layers(parts.model, 1)
    layers.use(start)
    step_of(backbone, parts.block.channel)
    assert layers.gram(torch.tensor([0]), True).shape == (1, 1)


def test_wrong_tokens(within: tuple[Middle, MiddleServer, str]) -> None:
    _, server, model = within
    stranger = Channel(
        GrpcSessions(Link(server.address), model, lambda client: client_token(SECRET, 1))
    )
    with pytest.raises(UserError, match="token is not that of client 0"):
        stranger.open(0, training=True)
    stranger.open(1, training=True)
    clients = layers_to(server, model, client_token(SECRET, 1))
    who = torch.tensor([0])
    how = Mixing(who, who, torch.eye(1).double())
    for asked in (
        lambda: clients.use(clients.begin()),
        lambda: clients.gram(who, True),
        lambda: clients.mix(clients.begin(), how, 1, floor=0, best=0),
    ):
        with pytest.raises(UserError, match="not that of the coordinator"):
            asked()
    link = Link(server.address)
    for session in ("", "f" * 32):
        with pytest.raises(UserError, match=r"session is unknown or expired .* --resume"):
            link.call(Step(), Done, session=session)
    with pytest.raises(UserError, match="no gradient since"):
        link.call(Step(), Done, session=stranger._current())
    assert client_token(SECRET, 1) != client_token(SECRET, 11) != admin_token(SECRET)


def test_a_new_link_reaches_a_server_started_again_at_once(
    within: tuple[Middle, MiddleServer, str], tmp_path: Path
) -> None:
    middle, first, model = within
    with pytest.raises(UserError, match="session is unknown"):
        (older := Link(first.address)).call(Step(), Done)
    first.stop(0)
    with pytest.raises(UserError, match="cannot be reached"):
        older.call(Step(), Done)  # and waits now before it tries again
    second = MiddleServer(middle, model, SECRET, tmp_path, first.address, max_bytes=MAX_BYTES)
    second.start()
    try:
        channel_to(second, model).open(0, training=False)
    finally:
        second.stop(0)
        older.close()


def test_another_configuration(within: tuple[Middle, MiddleServer, str]) -> None:
    _, server, model = within
    assert cut(TinyLlama(4), 1, settings="rank 8").model != model != cut(TinyLlama(5), 1).model
    with pytest.raises(UserError, match="start both with the same configuration"):
        channel_to(server, "0" * 16).open(0, training=True)
    other = layers_to(server, "0" * 16)
    with pytest.raises(UserError, match="start both with the same configuration"):
        other.use(other.begin())


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
    middle, server, model = within
    session = middle.open(0, training=True).session
    known = {
        "Open": ((TOKEN, client_token(SECRET, 0)), (CLIENT, "0")),
        **dict.fromkeys(("Forward", "Backward", "Step", "Close"), ((SESSION, session),)),
        **dict.fromkeys(("Use", "Gram", "Mix"), ((TOKEN, admin_token(SECRET)),)),
    }
    with grpc.insecure_channel(server.address) as raw:
        for method, metadata in known.items():
            call = raw.unary_unary(f"/{SERVICE}/{method}")
            with pytest.raises(grpc.RpcError) as caught:
                call(data, timeout=10, metadata=metadata)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError) as caught:
            raw.unary_unary(f"/{SERVICE}/Shell")(data, timeout=10, metadata=known["Step"])
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    channel_to(server, model).open(0, training=True)


REFUSED = ("UNAUTHENTICATED", "FAILED_PRECONDITION")


class Wire:
    """Passes bytes on to a server, one connection, and counts those to it."""

    def __init__(self, address: str) -> None:
        self.up = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        host, _, port = address.rpartition(":")
        self._to = (host, int(port))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        near, _ = self._listening.accept()
        far = socket.create_connection(self._to)
        threading.Thread(target=self._pass, args=(far, near, False), daemon=True).start()
        self._pass(near, far, True)

    def _pass(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.up += len(data) if up else 0
                target.sendall(data)


METHODS = ("Open", "Forward", "Backward", "Step", "Close", "Use", "Gram", "Mix")


@pytest.mark.parametrize("size", [8, 64 << 20])
def test_a_stranger_is_refused_unread(
    fixed_window: None,
    within: tuple[Middle, MiddleServer, str],
    monkeypatch: pytest.MonkeyPatch,
    size: int,
) -> None:
    """Nothing of a message is decoded, and a large one is not received as a whole."""
    server = within[1]
    monkeypatch.setattr("coterie.llm.split.remote.server.decode", lambda *_, **__: 1 / 0)
    wire, data = Wire(server.address), bytes(size)
    strangers = (
        (),
        ((TOKEN, client_token(SECRET, 1)), (CLIENT, "0")),
        ((TOKEN, client_token(SECRET, 1)), (CLIENT, "x")),
        ((TOKEN, admin_token("other")), (SESSION, "f" * 32)),
    )
    unlimited = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(wire.address, unlimited) as raw:
        for method in METHODS:
            for metadata in strangers:
                call = raw.unary_unary(f"/{SERVICE}/{method}")
                with pytest.raises(grpc.RpcError) as caught:
                    call(data, timeout=10, metadata=metadata)
                assert caught.value.code().name in REFUSED
    assert wire.up < len(METHODS) * len(strangers) * max(min(size, 128 << 10), 4096)


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
    rows = [middle.trained(client).rows for client in range(6)]
    use_start(middle)
    for client in range(6):
        work(client)
        assert torch.equal(rows[client], middle.trained(client).rows)


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


def test_addresses(tmp_path: Path) -> None:
    for address in ("example", "host:", ":50551", "host:port"):
        with pytest.raises(UserError, match="write host:port"):
            Link(address)
    with pytest.raises(UserError, match="another machine: give the server's certificate"):
        Link("192.0.2.7:50551")
    assert is_loopback("127.8.8.8")
    assert not is_loopback("10.0.0.1")
    middle = Middle(cut(TinyLlama(4), 1).stack, Training(lr=0.1))
    with pytest.raises(UserError, match="can be reached from elsewhere"):
        MiddleServer(middle, "m", SECRET, tmp_path, "0.0.0.0:0")
    taken = MiddleServer(middle, "m", SECRET, tmp_path)
    taken.start()
    with pytest.raises(UserError, match="the port is taken"):
        MiddleServer(middle, "m", SECRET, tmp_path, taken.address)
    taken.stop(0)
    with pytest.raises(UserError, match="cannot be reached"):
        layers_to(taken, "m").gram(torch.tensor([0]), True)
    since = time.monotonic()
    with pytest.raises(UserError, match=r"no split server answers at .* start `coterie llm serve`"):
        Link(taken.address).connect(0.5)
    assert time.monotonic() - since < 5


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
def test_tls(certificates: Path, mutual: bool, tmp_path: Path) -> None:
    parts = cut(TinyLlama(4), 1)
    tls = pem(certificates, "ours" if mutual else None, "ours")
    server = MiddleServer(Middle(parts.stack, TRAINING), parts.model, SECRET, tmp_path, tls=tls)
    server.start()

    def call(how: Tls | None) -> None:
        layers = layers_to(server, parts.model, **({} if how is None else {"tls": how}))
        layers.use(layers.begin())

    for good in (pem(certificates, "ours", "ours"), pem(certificates, "ours")):
        if mutual and good.certificate is None:
            with pytest.raises(UserError, match=r"certificate|cannot be reached"):
                call(good)
        else:
            call(good)
    since = time.monotonic()
    with pytest.raises(UserError, match="do not accept each other's certificate") as caught:
        call(pem(certificates, "theirs", "ours"))
    assert "\n" not in str(caught.value)
    if mutual:
        with pytest.raises(UserError, match=r"certificate|cannot be reached"):
            call(pem(certificates, "ours", "theirs"))
    with pytest.raises(UserError, match="cannot be reached"):
        call(None)
    assert time.monotonic() - since < 25
    server.stop(0)


def test_tls_files(certificates: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="belong together"):
        Link("127.0.0.1:1", tls=Tls(certificate=certificates / "ours.pem"))
    with pytest.raises(UserError, match=r"cannot read .*nowhere\.pem"):
        Link("127.0.0.1:1", tls=Tls(certificates / "nowhere.pem"))
    wrong = Tls(None, certificates / "ours.pem", certificates / "theirs.key")
    middle = Middle(cut(TinyLlama(4), 1).stack, TRAINING)
    with pytest.raises(UserError, match="certificate and the key do not fit"):
        MiddleServer(middle, "m", SECRET, tmp_path, tls=wrong)


def test_metadata_names_are_lower_case() -> None:
    """Else gRPC refuses every call."""
    for name in (TOKEN, SESSION, CLIENT):
        assert name.lower() == name
