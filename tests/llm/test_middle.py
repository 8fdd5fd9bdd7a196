"""The server's half: rounds, what is taken back, what is kept on disk, what expires."""

import json
import math
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from tests.llm.tiny_split import TinyLlama, TinyLongformer
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.local_training.row_optimizer import RowAdam, RowSGD
from coterie.core.wire.codec import ProtocolError
from coterie.llm.split.context import Context
from coterie.llm.split.cut import cut
from coterie.llm.split.diverged import Diverged
from coterie.llm.split.middle import Middle
from coterie.llm.split.state_folder import StateFolder
from coterie.llm.split.training import Limits, Training

HIDDEN = torch.linspace(-1, 1, 2 * 5 * 32).reshape(2, 5, 32)
GRADIENT = torch.linspace(1, -2, 2 * 5 * 32).reshape(2, 5, 32).sin()
LEARN = Context(gradient=True, input_gradient=True)
ADAM = Training(lr=0.01)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make(training: Training = ADAM, folder: Path | None = None, **others: object) -> Middle:
    parts = cut(TinyLlama(4), 1)
    assert parts.stack is not None
    kept = None if folder is None else StateFolder(folder, parts.model)
    return Middle(parts.stack, training, folder=kept, **others)


def train(middle: Middle, client: int, steps: int = 2, *, keep: bool = True) -> Tensor:
    """Some steps whose data differ by client; the trained row."""
    session = middle.open(client, training=True)
    for _ in range(steps):
        _, call = middle.forward(session, HIDDEN * (client + 1), LEARN)
        middle.backward(session, call, GRADIENT)
        middle.step(session)
    middle.close(session, keep=keep)
    return middle.trained([client])[0] if keep else torch.empty(0)


def play(middle: Middle, round: int, ids: tuple[int, ...] = (0, 1)) -> Tensor:
    """A round without mixing."""
    middle.begin(round)
    rows = torch.stack([train(middle, client) for client in ids])
    middle.commit(round, rows, ids)
    return rows


def output(middle: Middle, client: int, which: str = "current") -> Tensor:
    session = middle.open(client, training=False, which=which)
    out, _ = middle.forward(session, HIDDEN, Context())
    middle.close(session)
    return out


def test_steps_are_those_of_torch_adam() -> None:
    middle = make(Training(lr=0.01, mu=0.1))
    parts = cut(TinyLlama(4), 1)
    stack = parts.stack
    trained = [parameter for parameter in stack.parameters() if parameter.requires_grad]
    start = [parameter.detach().clone() for parameter in trained]
    adam = torch.optim.Adam(trained, lr=0.01)
    for _ in range(4):
        adam.zero_grad()
        stack(HIDDEN * 3, LEARN).backward(GRADIENT)
        for parameter, first in zip(trained, start, strict=True):
            parameter.grad += 0.1 * (parameter.detach() - first)
        adam.step()
    middle.begin(0)
    row = train(middle, 2, steps=4)
    expected = torch.cat([parameter.detach().flatten() for parameter in trained])
    torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(row, middle.row(2), atol=1e-3)


def test_gradients_add_up_until_the_step() -> None:
    sgd = Training(lr=1.0, optimizer=RowSGD())
    rows = []
    for twice in (True, False):
        middle = make(sgd)
        middle.begin(0)
        session = middle.open(0, training=True)
        calls = [middle.forward(session, HIDDEN, LEARN)[1] for _ in range(2 if twice else 1)]
        for call in calls:
            middle.backward(session, call, GRADIENT if twice else 2 * GRADIENT)
        middle.step(session)
        middle.close(session)
        rows.append(middle.trained([0])[0])
    torch.testing.assert_close(rows[0], rows[1], rtol=0, atol=1e-6)


def test_clip_bounds_the_step() -> None:
    middle = make(Training(lr=1.0, optimizer=RowSGD(), clip=0.25))
    middle.begin(0)
    moved = train(middle, 0, steps=1) - middle.row(0)
    assert float(moved.norm()) == pytest.approx(0.25, rel=1e-4)


def test_interleaved_clients_do_not_meet() -> None:
    alone = make()
    alone.begin(0)
    expected = [train(alone, client) for client in (0, 1)]
    middle = make()
    middle.begin(0)
    sessions = [middle.open(client, training=True) for client in (0, 1)]
    for _ in range(2):
        calls = [
            middle.forward(session, HIDDEN * (client + 1), LEARN)[1]
            for client, session in enumerate(sessions)
        ]
        for session, call in reversed(list(zip(sessions, calls, strict=True))):
            middle.backward(session, call, GRADIENT)
            middle.step(session)
    for session in sessions:
        middle.close(session)
    assert torch.equal(middle.trained([0, 1]), torch.stack(expected))


def test_a_dropped_client_loses_row_and_optimizer() -> None:
    dropped, absent = make(), make()
    for middle in (dropped, absent):
        play(middle, 0)
        middle.begin(1)
        rows = train(middle, 1)[None]
        if middle is dropped:
            train(middle, 0, steps=5)
        middle.commit(1, rows, [1])
    for client in (0, 1):
        assert torch.equal(dropped.row(client), absent.row(client))
    # The next round would differ if Adam remembered the dropped steps.
    assert torch.equal(play(dropped, 2), play(absent, 2))


def test_a_client_that_failed_tries_again_from_before() -> None:
    middle = make()
    middle.begin(0)
    train(middle, 0, steps=7, keep=False)
    with pytest.raises(UserError, match="client 0 has not finished training"):
        middle.trained([0])
    train(middle, 0, steps=3)
    again = train(middle, 0)
    other = make()
    other.begin(0)
    assert torch.equal(again, train(other, 0))


def test_mixed_rows_are_what_the_next_round_starts_from() -> None:
    middle = make()
    middle.begin(0)
    trained = torch.stack([train(middle, 0), train(middle, 1)])
    mixed = torch.tensor([[0.75, 0.25], [0.5, 0.5]]) @ trained
    before = output(middle, 0)
    middle.commit(0, mixed, [0, 1])
    assert torch.equal(middle.row(1), mixed[1])
    assert not torch.equal(output(middle, 0), before)
    assert torch.equal(middle.row(5), make().row(5))  # never trained


def test_evaluation_within_a_round_sees_what_was_trained() -> None:
    middle = make()
    before = output(middle, 0)
    middle.begin(0)
    row = train(middle, 0)
    during = output(middle, 0)
    assert not torch.equal(during, before)
    middle.commit(0, row[None], [0])
    assert torch.equal(output(middle, 0), during)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_round_is_taken_back_when_the_coordinator_lost_it(tmp_path: Path, on_disk: bool) -> None:
    folder = tmp_path if on_disk else None
    middle = make(folder=folder)
    play(middle, 0)
    first = play(middle, 1)
    if on_disk:
        middle = make(folder=folder)  # the server was killed, too
    again = play(middle, 1)
    assert torch.equal(first, again)
    straight = make()
    play(straight, 0)
    play(straight, 1)
    assert torch.equal(play(middle, 2), play(straight, 2))


def test_rounds_further_back_are_gone() -> None:
    middle = make()
    for round in range(3):
        play(middle, round)
    with pytest.raises(UserError, match=r"after rounds 1, 2, not after 0: resume"):
        middle.begin(1)
    with pytest.raises(UserError, match="not after 3"):
        middle.begin(4)
    kept = make(limits=Limits(keep=4))
    for round in range(3):
        play(kept, round)
    kept.begin(1)
    assert kept.round == 0
    with pytest.raises(UserError, match="at least 2"):
        make(limits=Limits(keep=1))


def test_best_is_kept_and_taken_back_with_its_round(tmp_path: Path) -> None:
    middle = make(folder=tmp_path)
    with pytest.raises(UserError, match="no best round"):
        middle.open(0, training=False, which="best")
    play(middle, 0)
    middle.keep_best()
    best = middle.row(0)
    play(middle, 1)
    assert torch.equal(middle.row(0, "best"), best)
    assert torch.equal(output(middle, 0, "best"), output(_at(best), 0))
    middle.keep_best()
    for server in (middle, make(folder=tmp_path)):
        assert not torch.equal(server.row(0, "best"), best)
        server.begin(1)
        assert torch.equal(server.row(0, "best"), best)
    middle.begin(1)
    with pytest.raises(UserError, match="cannot be trained further"):
        middle.open(0, training=True, which="best")


def _at(row: Tensor) -> Middle:
    middle = make()
    middle.begin(0)
    middle.commit(0, row[None], [0])
    return middle


def test_checkpoint_of_the_run() -> None:
    middle = make()
    play(middle, 0)
    middle.keep_best()
    play(middle, 1)
    other = make()
    other.load_plain(middle.to_plain())
    assert other.round == 1
    assert torch.equal(other.row(0, "best"), middle.row(0, "best"))
    assert torch.equal(play(other, 2), play(middle, 2))
    small = Middle(cut(TinyLlama(3), 1).stack, ADAM)
    with pytest.raises(UserError, match="use the settings it was made with"):
        small.load_plain(middle.to_plain())


def test_checkpoint_is_plain(tmp_path: Path) -> None:
    middle = make()
    play(middle, 0)
    torch.save(middle.to_plain(), tmp_path / "last.ckpt")
    other = make()
    other.load_plain(torch.load(tmp_path / "last.ckpt", weights_only=True))
    assert torch.equal(play(other, 1), play(middle, 1))


def test_folder_holds_whole_rounds_and_nothing_else(tmp_path: Path) -> None:
    middle = make(folder=tmp_path)
    play(middle, 0, (0, 1, 2))
    sizes = []
    for round in (1, 2, 3):
        play(middle, round, (0,))
        sizes.append(len(list(tmp_path.iterdir())))
    # The list, the start, two rounds of client 0, one state of each other.
    assert sizes == [1 + 1 + 2 + 2] * 3
    again = make(folder=tmp_path)
    assert again.round == 3
    for client in range(4):
        assert torch.equal(again.row(client), middle.row(client))
    names = sorted(path.name for path in tmp_path.iterdir())
    again.keep_best()
    play(again, 4, (0,))
    assert len(set(names) & {path.name for path in tmp_path.iterdir()}) == 5  # none written twice
    assert not list(tmp_path.glob(".*"))


def test_a_disk_that_fails_leaves_the_old_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    middle = make(folder=tmp_path)
    play(middle, 0)
    middle.begin(1)
    rows = torch.stack([train(middle, 0), train(middle, 1)])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.replace", full)
        with pytest.raises(UserError, match="no space left"):
            middle.commit(1, rows, [0, 1])
    assert make(folder=tmp_path).round == 0
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(UserError, match="no best"):
        middle.row(0, "best")
    middle.commit(1, rows, [0, 1])
    assert torch.equal(make(folder=tmp_path).row(1), rows[1])


def test_folder_of_another_model_or_damaged(tmp_path: Path) -> None:
    play(make(folder=tmp_path), 0)
    with pytest.raises(UserError, match="another model"):
        Middle(cut(TinyLlama(4), 1).stack, ADAM, folder=StateFolder(tmp_path, "other"))
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(UserError, match="is damaged"):
        make(folder=tmp_path)
    (tmp_path / "rounds.json").write_text(json.dumps([1]))
    with pytest.raises(UserError, match="is damaged"):
        make(folder=tmp_path)


def test_sessions_and_calls_expire() -> None:
    clock = Clock()
    middle = make(clock=clock, limits=Limits(ttl=10))
    middle.begin(0)
    session = middle.open(0, training=True)
    _, old = middle.forward(session, HIDDEN, LEARN)
    clock.now = 8
    _, call = middle.forward(session, HIDDEN, LEARN)
    clock.now = 11
    with pytest.raises(UserError, match=f"call {old} is unknown, used up or expired"):
        middle.backward(session, old, GRADIENT)
    middle.backward(session, call, GRADIENT)
    with pytest.raises(UserError, match="used up"):
        middle.backward(session, call, GRADIENT)
    clock.now = 30
    with pytest.raises(UserError, match="unknown or expired"):
        middle.forward(session, HIDDEN, LEARN)


def test_bounds() -> None:
    middle = make(limits=Limits(sessions=2, pending=3, tokens=20))
    middle.begin(0)
    session = middle.open(0, training=True)
    for _ in range(3):
        middle.forward(session, HIDDEN, LEARN)
    with pytest.raises(UserError, match="3 calls await"):
        middle.forward(session, HIDDEN, LEARN)
    middle.forward(session, HIDDEN, Context())
    with pytest.raises(ProtocolError, match="40 tokens in a call, 20 are the most"):
        middle.forward(session, HIDDEN.repeat(4, 1, 1), Context())
    middle.open(1, training=False)
    with pytest.raises(UserError, match="2 sessions are open"):
        middle.open(2, training=False)


@pytest.mark.parametrize(
    ("hidden", "context", "match"),
    [
        (HIDDEN[0], Context(), "expected \\(sequences, tokens, 32\\)"),
        (HIDDEN[..., :31], Context(), "expected \\(sequences, tokens, 32\\)"),
        (HIDDEN[:0], Context(), "expected \\(sequences"),
        (HIDDEN.double(), Context(), "float64, expected torch.float32"),
        (HIDDEN.long(), Context(), "int64"),
        (HIDDEN * math.nan, Context(), "not every number is finite"),
        (HIDDEN / 0, Context(), "not every number is finite"),
        (HIDDEN, Context(mask=torch.ones(2, 4).bool()), "mask is"),
        (HIDDEN, Context(mask=torch.ones(2, 5)), "mask is torch.float32"),
        (HIDDEN, Context(mask=torch.ones(2, 5, dtype=torch.int8)), "must be bool"),
        (HIDDEN, Context(positions=torch.ones(3, 5, dtype=torch.int32)), "positions"),
        (HIDDEN, Context(past=3), "past tokens without a cache"),
        (HIDDEN, Context(past=-3, cache=0), "past tokens"),
        (HIDDEN, Context(past=3, cache=0), "cache is unknown"),
        (HIDDEN, Context(cache=0, gradient=True), "without gradients"),
        (HIDDEN, Context(order=torch.zeros(3, dtype=torch.int32)), "order is"),
    ],
)
def test_what_does_not_fit_is_refused(hidden: Tensor, context: Context, match: str) -> None:
    middle = make()
    session = middle.open(0, training=False)
    with pytest.raises(ProtocolError, match=match):
        middle.forward(session, hidden, context)
    middle.forward(session, HIDDEN, Context())


def test_cache_is_the_one_the_client_means() -> None:
    middle = make()
    session = middle.open(0, training=False)
    middle.forward(session, HIDDEN, Context(cache=4))
    last = HIDDEN[:, :1]
    one = torch.ones(1, dtype=torch.int32)
    for context, match in (
        (Context(cache=3, past=5), "unknown"),
        (Context(cache=4, past=6), "unknown"),
        (Context(cache=4, past=5, order=torch.tensor([0, 2], dtype=torch.int32)), r"outside 0..1"),
    ):
        with pytest.raises(ProtocolError, match=match):
            middle.forward(session, last, context)
    with pytest.raises(ProtocolError, match="1 sequences, but 2"):
        middle.forward(session, last[:1], Context(cache=4, past=5))
    middle.forward(session, last[:1], Context(cache=4, past=5, order=one))


def test_a_gradient_that_does_not_fit_is_refused() -> None:
    middle = make()
    middle.begin(0)
    session = middle.open(0, training=True)
    _, call = middle.forward(session, HIDDEN, LEARN)
    for wrong in (GRADIENT[:1], GRADIENT.long(), GRADIENT * math.inf):
        with pytest.raises(ProtocolError, match="gradient"):
            middle.backward(session, call, wrong)
    middle.backward(session, call, GRADIENT)


def test_longformer_needs_its_window_and_codes() -> None:
    middle = Middle(cut(TinyLongformer(4), 1).stack, ADAM)
    session = middle.open(0, training=False)
    hidden = torch.ones(2, 8, 32)
    codes = torch.ones(2, 8, dtype=torch.int8)
    for wrong_hidden, mask, match in (
        (hidden, None, "needs an int8 mask"),
        (hidden, codes.bool(), "needs an int8 mask"),
        (hidden, 3 * codes, "0 \\(masked\\)"),
        (hidden[:, :7], codes[:, :7], "window 8"),
    ):
        with pytest.raises(ProtocolError, match=match):
            middle.forward(session, wrong_hidden, Context(mask=mask))
    with pytest.raises(ProtocolError, match="an encoder has no cache"):
        middle.forward(session, hidden, Context(mask=codes, cache=0))
    middle.forward(session, hidden, Context(mask=codes))


def test_rounds_in_the_wrong_order() -> None:
    middle = make()
    with pytest.raises(UserError, match="no round has begun"):
        middle.open(0, training=True)
    with pytest.raises(UserError, match="-1 is no client"):
        middle.open(-1, training=False)
    middle.begin(0)
    row = train(middle, 0)
    for round, rows, ids, match in (
        (1, row[None], [0], "round 1 has not begun"),
        (0, row[None], [0, 1], "expected \\(2, "),
        (0, row[None, :-1], [0], "expected \\(1, "),
        (0, row.expand(2, -1), [0, 0], "given twice"),
        (0, row[None] * math.nan, [0], "not finite"),
    ):
        with pytest.raises(UserError, match=match):
            middle.commit(round, rows, ids)
    middle.commit(0, row[None], [0])
    with pytest.raises(UserError, match="round 0 has not begun"):
        middle.commit(0, row[None], [0])


def test_steps_need_a_gradient_and_a_training_session() -> None:
    middle = make()
    middle.begin(0)
    session = middle.open(0, training=True)
    with pytest.raises(UserError, match="no gradient since"):
        middle.step(session)
    with pytest.raises(UserError, match="does not train"):
        middle.step(middle.open(0, training=False))


def test_gradients_pass_through_without_training() -> None:
    middle = make()
    session = middle.open(0, training=False)
    for through in (True, False):
        context = Context(gradient=True, input_gradient=through)
        _, call = middle.forward(session, HIDDEN, context)
        assert (middle.backward(session, call, GRADIENT) is not None) == through


def test_a_row_that_diverged_is_dropped() -> None:
    middle = make(Training(lr=math.inf, optimizer=RowSGD()))
    middle.begin(0)
    with pytest.raises(Diverged, match="not finite any more"):
        train(middle, 0, steps=1)
    middle.commit(0, torch.empty(0, middle.size), [])
    assert torch.equal(middle.row(0), make().row(0))


@pytest.mark.parametrize("kept", [True, False])
def test_an_optimizer_that_diverged_is_dropped_where_it_is_kept(kept: bool) -> None:
    middle = make(Training(lr=0.01, keep_optimizer=kept))
    middle.begin(0)
    session = middle.open(0, training=True)
    _, call = middle.forward(session, HIDDEN, LEARN)
    middle.backward(session, call, GRADIENT * 1e25)  # its square is more than a float32
    middle.step(session)
    with pytest.raises(Diverged) if kept else nullcontext():
        middle.close(session)
    assert (0 in middle._pending) == (not kept)


def test_optimizer_may_start_anew_every_round() -> None:
    kept, anew = make(), make(Training(lr=0.01, optimizer=RowAdam(), keep_optimizer=False))
    assert torch.equal(play(kept, 0), play(anew, 0))
    assert not torch.equal(play(kept, 1), play(anew, 1))


def test_a_frozen_middle_is_refused() -> None:
    with pytest.raises(UserError, match="adapter is empty"):
        Middle(cut(TinyLlama(4).requires_grad_(False), 1).stack, ADAM)


def test_a_thousand_clients_share_what_they_have_not_changed() -> None:
    middle = make()
    middle.begin(0)
    rows = middle.row(0).expand(1000, -1)
    middle.commit(0, rows, list(range(1000)))
    play(middle, 1)
    before, after = middle._generations.all
    same = [after.clients[client] is before.clients[client] for client in range(1000)]
    assert sum(same) == 998
