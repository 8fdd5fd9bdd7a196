"""The server's half: what is trained and mixed, what is refused, what expires."""

import math
from contextlib import nullcontext

import pytest
import torch
from tests.llm.tiny_split import TinyLlama, TinyLongformer, use_start
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.local_training.row_adam import RowAdam
from coterie.core.local_training.row_optimizer import RowSGD
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.wire.codec import ProtocolError
from coterie.llm.mixing import Mixing
from coterie.llm.split.channel import Context, Diverged
from coterie.llm.split.cut import cut
from coterie.llm.split.middle import Middle, Training
from coterie.llm.split.part import Part
from coterie.llm.split.sessions import Limits

HIDDEN = torch.linspace(-1, 1, 2 * 5 * 32).reshape(2, 5, 32)
GRADIENT = torch.linspace(1, -2, 2 * 5 * 32).reshape(2, 5, 32).sin()
LEARN = Context(gradient=True, input_gradient=True)
ADAM = Training(lr=0.01)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make(training: Training = ADAM, **others: object) -> Middle:
    parts = cut(TinyLlama(4), 1)
    assert parts.stack is not None
    return Middle(parts.stack, training, **others)


def start(middle: Middle) -> Tensor:
    return middle.adapter.row()


def begin(middle: Middle, optimizer: bool = True) -> Part:
    """Let all clients begin with the common start."""
    return use_start(middle, optimizer=optimizer)


def train(middle: Middle, client: int, steps: int = 2, *, keep: bool = True) -> Tensor:
    """Some steps whose data differ by client; the trained row."""
    session = middle.open(client, training=True).session
    for _ in range(steps):
        _, call = middle.forward(session, HIDDEN * (client + 1), LEARN)
        middle.backward(session, call, GRADIENT)
        middle.step(session)
    middle.close(session, keep=keep)
    return middle.trained(client).rows[0] if keep else torch.empty(0)


def alone(*ids: int) -> Mixing:
    """A round in which nobody learns of others."""
    who = torch.tensor(ids)
    return Mixing(who, who, torch.eye(len(ids)).double())


def play(middle: Middle, part: Part, ids: tuple[int, ...] = (0, 1)) -> Part:
    """A round without mixing, as the coordinator does it; all parts after it."""
    middle.use(part)
    for client in ids:
        train(middle, client)
    return middle.mix(alone(*ids))


def rows_of(middle: Middle, *ids: int) -> Tensor:
    """What clients have trained."""
    return torch.cat([middle.trained(client).rows for client in ids])


def output(middle: Middle, client: int) -> Tensor:
    session = middle.open(client, training=False).session
    out, _ = middle.forward(session, HIDDEN, Context())
    middle.close(session)
    return out


def same(first: Part, second: Part) -> bool:
    pairs = zip(tree.tensors(first), tree.tensors(second), strict=True)
    return all(torch.equal(one, other) for (_, one), (_, other) in pairs)


def test_steps_are_those_of_torch_adam() -> None:
    middle = make(Training(lr=0.01, mu=0.1))
    parts = cut(TinyLlama(4), 1)
    stack = parts.stack
    of_torch = [parameter for parameter in stack.parameters() if parameter.requires_grad]
    first_values = [parameter.detach().clone() for parameter in of_torch]
    adam = torch.optim.Adam(of_torch, lr=0.01)
    for _ in range(4):
        adam.zero_grad()
        stack(HIDDEN * 3, LEARN).backward(GRADIENT)
        for parameter, first in zip(of_torch, first_values, strict=True):
            parameter.grad += 0.1 * (parameter.detach() - first)
        adam.step()
    begin(middle)
    row = train(middle, 2, steps=4)
    expected = torch.cat([parameter.detach().flatten() for parameter in of_torch])
    torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(row, start(middle), atol=1e-3)


def test_gradients_add_up_until_the_step() -> None:
    sgd = Training(lr=1.0, optimizer=RowSGD())
    rows = []
    for twice in (True, False):
        middle = make(sgd)
        begin(middle, optimizer=False)
        session = middle.open(0, training=True).session
        calls = [middle.forward(session, HIDDEN, LEARN)[1] for _ in range(2 if twice else 1)]
        for call in calls:
            middle.backward(session, call, GRADIENT if twice else 2 * GRADIENT)
        middle.step(session)
        middle.close(session)
        rows.append(middle.trained(0).rows[0])
    torch.testing.assert_close(rows[0], rows[1], rtol=0, atol=1e-6)


def test_interleaved_clients_do_not_meet() -> None:
    alone = make()
    begin(alone)
    expected = [train(alone, client) for client in (0, 1)]
    middle = make()
    begin(middle)
    sessions = [middle.open(client, training=True).session for client in (0, 1)]
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
    assert torch.equal(rows_of(middle, 0, 1), torch.stack(expected))


def test_what_a_dropped_client_trained_is_lost_with_its_optimizer() -> None:
    dropped, absent = make(), make()
    after = []
    for middle in (dropped, absent):
        part = play(middle, begin(middle))
        middle.use(part)
        train(middle, 1)
        if middle is dropped:
            train(middle, 0, steps=5)
        part = middle.mix(alone(1))  # nobody asks for client 0's
        after.append(play(middle, part))  # it would differ if Adam remembered the dropped steps
    assert same(*after)


def test_a_client_that_failed_tries_again_from_before() -> None:
    middle = make()
    begin(middle)
    train(middle, 0, steps=7, keep=False)
    with pytest.raises(UserError, match="client 0 has not finished training"):
        middle.trained(0)
    train(middle, 0, steps=3)
    again = train(middle, 0)
    other = make()
    begin(other)
    assert torch.equal(again, train(other, 0))


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("receivers", [(0, 2), (0, 1, 2), (1, 2)])
def test_mixing_equals_a_loop(receivers: tuple[int, ...], keeps: bool) -> None:
    """Clients 0 and 2 trained; others get the first mixed row, or keep theirs."""
    middle = make()
    part = play(middle, begin(middle, keeps), (0, 1, 2))
    rows = [train(middle, client).double() for client in (0, 2)]
    weights = torch.tensor([[0.75, 0.25], [0.5, 0.5]]).double()
    trained = [middle.trained(client) for client in (0, 2)]
    who = torch.tensor([0, 2])
    after = middle.mix(Mixing(who, torch.tensor(receivers), weights))
    for client in range(6):
        expected = part.rows[client].double()
        if client in receivers:
            place = receivers.index(client) if len(receivers) == 2 else 0
            expected = weights[place, 0] * rows[0] + weights[place, 1] * rows[1]
        torch.testing.assert_close(after.rows[client].double(), expected, rtol=1e-6, atol=1e-7)
    assert (after.optimizer is not None) == keeps
    if after.optimizer is not None:
        moments = after.optimizer.moments["exp_avg"]["row"]
        assert torch.equal(moments[0], trained[0].optimizer.moments["exp_avg"]["row"][0])
        assert torch.equal(moments[1], part.optimizer.moments["exp_avg"]["row"][1])
        assert after.optimizer.steps.tolist() == [4, 2, 4, 0, 0, 0]


def test_inner_products_equal_a_loop() -> None:
    middle = make()
    part = begin(middle)
    rows = {client: train(middle, client).double() for client in (0, 2, 5)}
    who = torch.tensor([5, 0, 2])
    for changes in (False, True):
        seen = [rows[c] - (part.rows[c].double() if changes else 0) for c in who.tolist()]
        found = middle.gram(who, changes)
        assert found.dtype == torch.float64
        for i, one in enumerate(seen):
            for j, other in enumerate(seen):
                assert float(found[i, j]) == pytest.approx(float(one @ other), rel=1e-5)
    with pytest.raises(UserError, match="client 1 has not finished"):
        middle.gram(torch.tensor([0, 1]), True)


def test_what_is_in_use_is_what_runs() -> None:
    middle = make()
    begin(middle)
    before = output(middle, 0)
    for client in (0, 1):
        train(middle, client)
    who = torch.tensor([0, 1])
    weights = torch.tensor([[0.75, 0.25], [0.5, 0.5]]).double()
    mixed = middle.mix(Mixing(who, who, weights))
    assert not torch.equal(output(middle, 0), before)
    other = make()
    other.use(Part(mixed.rows[[1]]))
    assert torch.equal(output(middle, 1), output(other, 0))


def test_nothing_outlasts_what_is_used_next() -> None:
    middle = make()
    part = begin(middle)
    session = middle.open(0, training=True).session
    train(middle, 1)
    middle.use(tree.take(part, torch.tensor([0, 1])))
    for client in (-1, 2):
        with pytest.raises(UserError, match=f"the server has no part for client {client}"):
            middle.open(client, training=False)
    with pytest.raises(UserError, match="has not finished"):
        middle.trained(1)
    # The client of a coordinator that was killed comes late.
    with pytest.raises(UserError, match="unknown or expired"):
        middle.close(session)


def test_a_late_client_does_not_train_what_is_mixed() -> None:
    middle = make()
    part = begin(middle)
    train(middle, 1)
    late = middle.open(0, training=True).session
    _, call = middle.forward(late, HIDDEN, LEARN)
    middle.backward(late, call, GRADIENT)
    middle.step(late)
    after = middle.mix(alone(1))
    with pytest.raises(UserError, match="unknown or expired"):
        middle.close(late)
    assert torch.equal(after.rows[0], part.rows[0])


def test_a_part_goes_on_anywhere() -> None:
    """Row and optimizer are all there is: another server makes the same of them."""
    middle = make()
    part = play(middle, play(middle, begin(middle)))
    other = make()
    assert same(play(other, part), play(middle, part))


def test_what_was_given_is_not_changed() -> None:
    middle = make()
    part = begin(middle)
    kept = tree.clone(part)
    play(middle, part)
    assert same(part, kept)


def test_sessions_and_calls_expire() -> None:
    clock = Clock()
    middle = make(clock=clock, limits=Limits(ttl=10))
    begin(middle)
    session = middle.open(0, training=True).session
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
    middle = make(limits=Limits(pending=3, tokens=20))
    begin(middle)
    session = middle.open(0, training=True).session
    for _ in range(3):
        middle.forward(session, HIDDEN, LEARN)
    with pytest.raises(UserError, match="3 calls await"):
        middle.forward(session, HIDDEN, LEARN)
    middle.forward(session, HIDDEN, Context())
    with pytest.raises(ProtocolError, match="40 tokens in a call, 20 are the most"):
        middle.forward(session, HIDDEN.repeat(4, 1, 1), Context())


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
    begin(middle)
    session = middle.open(0, training=False).session
    with pytest.raises(ProtocolError, match=match):
        middle.forward(session, hidden, context)
    middle.forward(session, HIDDEN, Context())


def test_cache_is_the_one_the_client_means() -> None:
    middle = make()
    begin(middle)
    session = middle.open(0, training=False).session
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
    begin(middle)
    session = middle.open(0, training=True).session
    _, call = middle.forward(session, HIDDEN, LEARN)
    for wrong in (GRADIENT[:1], GRADIENT.long(), GRADIENT * math.inf):
        with pytest.raises(ProtocolError, match="gradient"):
            middle.backward(session, call, wrong)
    middle.backward(session, call, GRADIENT)


def test_longformer_needs_its_window_and_codes() -> None:
    middle = Middle(cut(TinyLongformer(4), 1).stack, ADAM)
    begin(middle)
    session = middle.open(0, training=False).session
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


def test_a_client_takes_no_session_from_another() -> None:
    clock = Clock()
    middle = make(limits=Limits(sessions=3), clock=clock)
    begin(middle)
    other = middle.open(1, training=True).session
    own = []
    for number in range(2000):
        clock.now = number / 10  # less than the time to live
        own.append(middle.open(0, training=False).session)
    assert len(middle._sessions) == 4
    middle.forward(other, HIDDEN, LEARN)
    for name in own[-3:]:
        middle.forward(name, HIDDEN, Context())
    with pytest.raises(UserError, match="unknown or expired"):
        middle.forward(own[-4], HIDDEN, Context())
    for client in range(2, 6):
        middle.open(client, training=True)


def test_parts_that_do_not_fit_are_refused() -> None:
    middle = make()
    with pytest.raises(UserError, match=r"no part for client 0 .* run again with --resume"):
        middle.open(0, training=True)
    row = start(middle)[None]
    state = RowAdam().begin({"row": row})
    for part, match in (
        (Part(row[:, :-1]), r"expected \(1, "),
        (Part(row[:, :-1], state), r"expected \(1, "),
        (Part(row.repeat(2, 1), state), r"expected \(2, "),
        (Part(row * math.nan), "not finite"),
    ):
        with pytest.raises(UserError, match=match):
            middle.use(part)
    with pytest.raises(UserError, match="no part for client 0"):
        middle.open(0, training=True)


def test_steps_need_a_gradient_and_a_training_session() -> None:
    middle = make()
    begin(middle)
    session = middle.open(0, training=True).session
    with pytest.raises(UserError, match="no gradient since"):
        middle.step(session)
    with pytest.raises(UserError, match="does not train"):
        middle.step(middle.open(0, training=False).session)


def test_gradients_pass_through_without_training() -> None:
    middle = make()
    begin(middle)
    session = middle.open(0, training=False).session
    for through in (True, False):
        context = Context(gradient=True, input_gradient=through)
        _, call = middle.forward(session, HIDDEN, context)
        assert (middle.backward(session, call, GRADIENT) is not None) == through


def test_a_row_that_diverged_is_dropped() -> None:
    middle = make(Training(lr=math.inf, optimizer=RowSGD()))
    begin(middle, optimizer=False)
    with pytest.raises(Diverged, match="not finite any more"):
        train(middle, 0, steps=1)
    with pytest.raises(UserError, match="has not finished"):
        middle.trained(0)


@pytest.mark.parametrize("kept", [True, False])
def test_an_optimizer_that_diverged_is_dropped_where_it_is_kept(kept: bool) -> None:
    middle = make()
    begin(middle, optimizer=kept)
    session = middle.open(0, training=True).session
    _, call = middle.forward(session, HIDDEN, LEARN)
    middle.backward(session, call, GRADIENT * 1e25)  # its square is more than a float32
    middle.step(session)
    with pytest.raises(Diverged) if kept else nullcontext():
        middle.close(session)
    with pytest.raises(UserError) if kept else nullcontext():
        middle.trained(0)


def test_optimizer_may_start_anew_every_round() -> None:
    kept, anew = make(), make()
    one, other = play(kept, begin(kept)), play(anew, begin(anew, optimizer=False))
    assert torch.equal(one.rows, other.rows)
    assert other.optimizer is None
    assert not torch.equal(play(kept, one).rows, play(anew, other).rows)


def test_a_frozen_middle_runs_and_has_nothing_to_mix() -> None:
    """Its rows have no numbers; a step, a mixture and a gradient of the input go on as ever."""
    frozen = Middle(cut(TinyLlama(4).requires_grad_(False), 1).stack, ADAM)
    assert frozen.size == 0
    use_start(frozen, 2)
    for client in (0, 1):
        session = frozen.open(client, training=True).session
        hidden = Key.from_seed(1).normal(1, 3, 32)
        context = Context(gradient=True, input_gradient=True)
        out, call = frozen.forward(session, hidden, context)
        assert bool(frozen.backward(session, call, torch.ones_like(out)).any())
        frozen.step(session)
        frozen.close(session)
    ids = torch.arange(2)
    assert torch.equal(frozen.gram(ids, True), torch.zeros(2, 2, dtype=torch.float64))
    mixed = frozen.mix(Mixing(ids, ids, torch.full((2, 2), 0.5, dtype=torch.float64)))
    assert mixed.rows.shape == (2, 0)
