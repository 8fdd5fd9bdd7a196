"""What crosses between organisations: residuals of common rows, outputs that were asked for."""

from dataclasses import replace

import pytest
import torch
from tests.assisted.small_organisations import (
    N_ROWS,
    cells_of,
    finished,
    make_organisations,
    make_run,
    make_settings,
    state_of,
)

from benchmarks.assisted.loop import PlainAAE
from coterie.assisted.aae.network import AAE
from coterie.assisted.client import Organisation
from coterie.assisted.data import Organisations
from coterie.assisted.messages import COMBINE, FIT, PATTERN, RESIDUAL, Fits, Residuals, Turn
from coterie.assisted.prediction_messages import ANSWER, QUERY
from coterie.assisted.routes import align, check_common
from coterie.assisted.settings import AssistSettings
from coterie.core.errors import UserError
from coterie.core.privacy.check import assert_no_shared_storage, assert_non_interference
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

pytestmark = pytest.mark.usefixtures("rounds_alone")


class Listening(Organisation):
    """An organisation whose messages are written down."""

    def __init__(self, settings):
        super().__init__(settings)
        self.sent, self.received = [], []

    def _noted(self, name, down, data, up):
        self.received.append((name, data.id, down))
        self.sent.append((name, data.id, up))


def _listen(name):
    bound = getattr(Organisation, name)

    def method(self, down, mine, data, key):
        up, new = bound(self, down, mine, data, key)
        self._noted(name, down, data, up)
        return up, new

    method.__name__, method.step = name, bound.step
    return method


for step in Organisation.steps():
    setattr(Listening, step, _listen(step))


def partly_common():
    """Rows 0-5 are common to all, 6-8 to organisations 0 and 1 only, the rest nobody else's."""
    rows = torch.arange(N_ROWS)
    own = [torch.where(rows < 6, rows, rows + 100 * (k + 1)) for k in range(3)]
    for k in (0, 1):
        own[k][6:9] = rows[6:9]
    return make_organisations(names=own)


def listened(settings, data):
    client = Listening(settings)
    run = finished(make_run(settings, data, client))
    return run, client


def test_no_residual_of_an_unaligned_row_leaves() -> None:
    settings = make_settings(rounds=2)
    run, client = listened(settings, partly_common())
    each = run.newest_data.each
    for name, k, up in client.sent:
        if name != "residual":
            continue
        rows = each[k].train.rows
        assert up.values.numel() == int((rows < (9 if k < 2 else 6)).sum())
    for name, k, down in client.received:
        if name == "fit":
            for peer, values in down.residuals.items():
                common = 9 if {k, int(peer)} == {0, 1} else 6
                rows = each[int(peer)].train.rows
                assert values.numel() == int((rows < common).sum())


def test_a_third_one_never_sees_a_row_that_two_have_in_common() -> None:
    settings = make_settings(rounds=1)
    run, client = listened(settings, partly_common())
    numbers = {k: state_of(run, k).shared for k in range(3)}
    of_two = set(numbers[0].tolist()) - set(numbers[2].tolist()) - {-1}
    assert len(of_two) == 3
    for name, k, down in client.received:
        if k == 2:
            for path, leaf in tree.values(down):
                if name in ("meet", "answer") and path.endswith("rows"):
                    assert not of_two & set(leaf.tolist()), (name, path)


def test_unaligned_rows_move_by_the_own_model_alone() -> None:
    settings = make_settings(rounds=1)
    whole = finished(make_run(settings, make_organisations()))
    parted = finished(make_run(settings, partly_common()))
    one = parted.newest_data[2]
    mine = state_of(parted, 2)
    start = parted.federation.client.learner(one).base.at(one.train)
    step = (mine.scores - start) / settings.assist.eta
    view_rows = one.train.rows
    model = mine.models[-1]
    from coterie.assisted.aae.network import predict
    from coterie.assisted.view import Matrices, View

    view = View(mine, one, Matrices())
    learner = parted.federation.client.learner(one)
    own = view.own(one.train)
    network = learner.network(view.n_columns)
    found = predict(network, model.params, learner.inputs(view.first_column), own.pattern)
    found = own.parted(found)[2]
    alone = view_rows >= 6
    torch.testing.assert_close(step[alone], found[alone])
    assert not torch.allclose(step[~alone], found[~alone])
    assert not torch.allclose(mine.scores, state_of(whole, 2).scores)


def test_nothing_that_crosses_in_a_round_depends_on_a_test_cell() -> None:
    settings = make_settings(rounds=2)
    _, plain = listened(settings, make_organisations())
    data = make_organisations()
    poisoned = [
        replace(one, domain=replace(one.domain, test=cells_of(*_inverted(one.test))))
        for one in data.each
    ]
    _, other = listened(settings, Organisations(data.ids, poisoned))
    rounds = ("align", "pattern", "meet", "residual", "fit", "combine")
    before = [entry for entry in plain.sent if entry[0] in rounds]
    after = [entry for entry in other.sent if entry[0] in rounds]
    assert len(before) == len(after) == 3 * 2 + 3 * 3 * 2 + 3
    for (name, k, up), (name2, k2, up2) in zip(before, after, strict=True):
        assert (name, k) == (name2, k2)
        for (path, leaf), (_, leaf2) in zip(tree.values(up), tree.values(up2), strict=True):
            assert torch.equal(leaf, leaf2), (name, path)


def _inverted(test):
    """Other test cells: the unrated ones of the first half, each with an absurd rating."""
    mask = test.to_dense(torch.nan).isnan()
    return mask, torch.full(mask.shape, 99.0).double()


def test_every_test_cell_is_asked_for_once_at_the_end() -> None:
    run, client = listened(make_settings(rounds=2), make_organisations())
    asked = {k: up.cells for name, k, up in client.sent if name == "query"}
    assert [name for name, *_ in client.sent].count("query") == 3
    for k, places in asked.items():
        assert len(places) == len(run.newest_data[k].test)


@pytest.mark.parametrize("step", ["residual", "fit", "answer"])
def test_uploads_depend_on_what_they_say_and_share_no_storage(step) -> None:
    settings = make_settings(rounds=2)
    run, client = listened(settings, make_organisations())
    down = next(down for name, k, down in reversed(client.received) if name == step and k == 1)
    plain = Organisation(settings)
    mine, data, key = state_of(run, 1), run.newest_data[1], Key.from_seed(1)
    valid = {"shared": lambda numbers: numbers.flip(0), "peers": lambda peers: peers}
    assert_non_interference(plain, step, down, mine, data, key, valid)
    up, _ = getattr(plain, step)(down, mine, data, key)
    assert_no_shared_storage(up, mine)


class Broken(Organisation):
    """Organisation 1 sends NaN in one step of round 2."""

    broken = ""

    @RESIDUAL
    def residual(self, down, mine, data, key):
        up, new = super().residual(down, mine, data, key)
        return (Residuals(up.values * torch.nan) if self._now("residual", down, data) else up), new

    @FIT
    def fit(self, down, mine, data, key):
        up, new = super().fit(down, mine, data, key)
        if self._now("fit", down, data):
            up = Fits({name: values * torch.nan for name, values in up.values.items()}, None)
        return up, new

    @COMBINE
    def combine(self, down, mine, data, key):
        up, new = super().combine(down, mine, data, key)
        if self._now("combine", down, data):
            new = replace(new, scores=new.scores * torch.nan)
        return up, new

    def _now(self, step, down, data):
        return self.broken == step and data.id == 1 and down.round == 2


@pytest.mark.parametrize("step", ["residual", "fit", "combine"])
def test_who_sends_nan_is_left_out_for_the_round_and_named(step) -> None:
    settings = make_settings(rounds=3)
    client = Broken(settings)
    client.broken = step
    run = make_run(settings, client=client)
    run.advance()
    before = state_of(run, 1).scores
    run.advance()
    assert [(name, who) for name, who, _ in run.journal.refused] == [(step, 1)]
    mine, other = state_of(run, 1), state_of(run, 0)
    assert torch.equal(mine.scores, before)
    there = [0, 2] if step != "combine" else [0, 1, 2]
    assert sorted(other.choices[-1].models.tolist()) == there
    assert float(other.choices[-1].weights.sum()) == pytest.approx(1)
    run.advance()
    assert len(state_of(run, 1).choices) == 2
    assert run.finished
    assert run.results["test/rmse"] < 3  # the prediction stage copes with the gap


@pytest.mark.parametrize("own", ["use", "leave-out"])
def test_predictions_do_without_who_does_not_answer_at_the_end(own) -> None:
    """The others' mean stands in, so with equal weights theirs sum to 1 again."""

    class Silent(Organisation):
        @ANSWER
        def answer(self, down, mine, data, key):
            up, new = super().answer(down, mine, data, key)
            broken = {name: values * torch.nan for name, values in up.values.items()}
            return (replace(up, values=broken) if data.id == 1 else up), new

    settings = make_settings(rounds=2, assist=AssistSettings(own=own))
    run = finished(make_run(settings, client=Silent(settings)))
    assert [(name, who) for name, who, _ in run.journal.refused] == [("answer", 1)]
    whole = finished(make_run(settings))
    one, mine = run.newest_data[0], state_of(whole, 0)
    there = [0, 2] if own == "use" else [2]
    learner = run.federation.client.learner(one)
    scores = learner.base.at(one.test).clone()
    for t in range(2):
        outputs = []
        for k in there:
            theirs, state = whole.newest_data[k], state_of(whole, k)
            net = AAE(theirs.train.n_columns, 12, {}, 6, 4, 0.0)
            plain = PlainAAE(net).double().load(state.models[t].params)
            table = plain({"ratings": theirs.train.to_dense()}).detach()
            # The columns of organisation 0 are the first ones.
            outputs.append(table[one.test.rows, one.test.columns.values])
        scores += settings.assist.eta * torch.stack(outputs).mean(0)
    assert float(mine.choices[-1].eta) == settings.assist.eta
    truth = (one.test.values - scores).square().mean().sqrt()
    assert float(run.client_results["test/rmse"][1][0]) == pytest.approx(float(truth), abs=1e-6)


def test_who_sends_another_number_of_values_is_refused() -> None:
    class Short(Organisation):
        @RESIDUAL
        def residual(self, down, mine, data, key):
            up, new = super().residual(down, mine, data, key)
            return (Residuals(up.values[1:]) if data.id == 2 else up), new

    settings = make_settings(rounds=1)
    run = make_run(settings, client=Short(settings))
    run.advance()
    ((name, who, why),) = run.journal.refused
    assert (name, who) == ("residual", 2)
    wanted = len(run.newest_data[2].train)
    assert why == f"upload 'values' has {wanted - 1} numbers, not {wanted} numbers"


@pytest.mark.parametrize(
    ("part", "value", "why"),
    [
        ("columns", 99, "column 99"),
        ("columns", -1, "column -1"),
        ("rows", 99, "not in common"),
        ("rows", -1, "not in common"),
    ],
)
def test_who_names_a_cell_that_it_cannot_have_is_left_out(part, value, why) -> None:
    class Elsewhere(Organisation):
        @PATTERN
        def pattern(self, down, mine, data, key):
            up, new = super().pattern(down, mine, data, key)
            if data.id == 1:
                wrong = getattr(up.cells, part).clone()
                wrong[0] = value
                up = replace(up, cells=replace(up.cells, **{part: wrong}))
            return up, new

    settings = make_settings(rounds=1)
    run = make_run(settings, client=Elsewhere(settings))
    run.advance()
    ((name, who, said),) = run.journal.refused
    assert (name, who) == ("pattern", 1)
    assert why in said
    assert sorted(state_of(run, 0).choices[-1].models.tolist()) == [0, 2]
    assert len(state_of(run, 1).choices) == 0


def test_who_asks_for_a_cell_that_it_cannot_have_is_not_answered() -> None:
    class Asking(Organisation):
        @QUERY
        def query(self, down, mine, data, key):
            up, new = super().query(down, mine, data, key)
            wrong = up.cells.columns + (99 if data.id == 1 else 0)
            return replace(up, cells=replace(up.cells, columns=wrong)), new

    settings = make_settings(rounds=1)
    run = make_run(settings, client=Asking(settings))
    run.advance()
    ((name, who, said),) = run.journal.refused
    assert (name, who) == ("query", 1)
    assert "3 columns" in said
    assert sorted(run.client_results["test/rmse"][0].tolist()) == [0, 2]


def test_rows_are_numbered_only_where_two_have_them() -> None:
    rows = {0: torch.tensor([5, 9, 5]), 1: torch.tensor([7, 8])}
    assert all((each == -1).all() for each in align(rows).values())
    with pytest.raises(UserError, match="no two organisations"):
        check_common(rows)
    check_common(rows | {2: torch.tensor([8])})


def test_turns_tell_how_many_residuals_are_expected() -> None:
    _, client = listened(make_settings(rounds=1), partly_common())
    turns = {k: down for name, k, down in client.received if name == "residual"}
    assert all(isinstance(turn, Turn) for turn in turns.values())
    sent = {k: up.values.numel() for name, k, up in client.sent if name == "residual"}
    assert {k: turn.cells for k, turn in turns.items()} == sent
