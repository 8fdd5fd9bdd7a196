"""LightFR: bit steps against brute force, Hamming scores, and packed bits on the wire."""

import itertools
from dataclasses import replace

import pytest
import torch
from tests.core.methods.ranking.few_users import (
    CLIENTS,
    KEY,
    LENGTHS,
    N_ITEMS,
    cohort_of,
    few_users,
    group_users,
    run,
)

from coterie.core.errors import UserError
from coterie.core.methods.ranking.client import draw_samples
from coterie.core.methods.ranking.lightfr import (
    UPDATE,
    BitVotes,
    ItemCodes,
    LightFRClient,
    LightFRServer,
    VoteSum,
    best_column,
    descend_users,
    hamming_similarity,
    pack,
    random_codes,
    unpack,
)
from coterie.core.methods.settings.ranking import LightFRSettings
from coterie.core.privacy.check import assert_no_shared_storage, assert_non_interference
from coterie.core.run.scoring import scores_of_newcomer
from coterie.core.tensors.rows import TouchedRows
from coterie.core.tensors.stacked import Ragged
from coterie.core.wire.codec import Header, decode, encode

SETTINGS = LightFRSettings(bits=16, bits_per_round=1, rounds=6, patience=6)


def build(n_items=N_ITEMS, lengths=LENGTHS, **options):
    both = replace(SETTINGS, **options), n_items, lengths
    return LightFRServer(*both), LightFRClient(*both)


def problem(n_users=5, n_items=7, bits=8):
    key = KEY.fold("problem")
    codes = unpack(random_codes(key.fold("b").fold(torch.arange(n_users)), bits))
    items = unpack(random_codes(key.fold("d").fold(torch.arange(n_items)), bits))
    draw = key.fold("r").uniform(2, n_users, n_items)
    return codes, items, bits * (2.0 * (draw[0] > 0.6) - 1.0), (draw[1] > 0.4).float()


def sweep(codes, items, target, weight):
    """One sweep on dense tables; gives the residuals as a table."""
    chosen = weight > 0
    samples = Ragged.from_lengths(chosen.nonzero()[:, 1], chosen.sum(1))
    residual = torch.zeros_like(target)
    residual[chosen] = descend_users(codes, items, samples, target[chosen])
    return residual


def loss_of(codes, items, target, weight):
    """Σ w (x - <b, d>)², term by term."""
    total = 0.0
    for b, xs, ws in zip(codes.tolist(), target.tolist(), weight.tolist(), strict=True):
        for d, x, w in zip(items.tolist(), xs, ws, strict=True):
            total += w * (x - sum(p * q for p, q in zip(b, d, strict=True))) ** 2
    return total


def test_packing_round_trips_and_is_one_bit_an_entry():
    codes = unpack(random_codes(KEY.fold(torch.arange(20)), 24))
    packed = pack(codes)
    assert packed.dtype == torch.uint8
    assert packed.shape == (20, 3)
    assert torch.equal(unpack(packed), codes)
    assert set(codes.unique().tolist()) == {-1.0, 1.0}


def test_hamming_similarity_is_the_dot_product_formula():
    users = unpack(random_codes(KEY.fold("u").fold(torch.arange(6)), 40))
    items = unpack(random_codes(KEY.fold("i").fold(torch.arange(9)), 40))
    found = hamming_similarity(pack(users), pack(items))
    torch.testing.assert_close(found, 0.5 + users @ items.T / 80)
    same = hamming_similarity(pack(users), pack(users)).diagonal()
    opposite = hamming_similarity(pack(users), pack(-users)).diagonal()
    assert same.tolist() == [1.0] * 6
    assert opposite.tolist() == [0.0] * 6


def test_flipping_a_bit_of_all_codes_changes_no_score():
    users, items = (unpack(random_codes(KEY.fold(n).fold(torch.arange(5)), 8)) for n in "ui")
    before = hamming_similarity(pack(users), pack(items))
    users[:, 3] *= -1
    items[:, 3] *= -1
    assert torch.equal(hamming_similarity(pack(users), pack(items)), before)


def test_user_sweeps_equal_bitwise_search_and_never_raise_the_loss():
    codes, items, target, weight = problem()
    expected, losses = codes.clone(), []
    for u, k in itertools.product(range(5), range(8)):  # users are independent of each other
        flipped = expected.clone()
        flipped[u, k] *= -1
        now, other = (loss_of(c, items, target, weight) for c in (expected, flipped))
        expected = flipped if other < now else expected
        losses.append(min(now, other))
    residual = sweep(codes, items, target, weight)
    assert torch.equal(codes, expected)
    assert losses == sorted(losses, reverse=True)
    assert loss_of(codes, items, target, weight) == losses[-1] < losses[0]
    assert torch.equal(residual, weight * (target - codes @ items.T))


def test_after_many_sweeps_no_flip_helps_and_no_code_beats_the_best_of_all():
    codes, items, target, weight = problem()
    for _ in range(10):
        sweep(codes, items, target, weight)
    every = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=8)))
    for u in range(5):
        part = (target[u : u + 1], weight[u : u + 1])
        found = loss_of(codes[u : u + 1], items, *part)
        errors = (part[0] - every @ items.T).square() * part[1]
        assert found >= errors.sum(1).min().item()
        for k in range(8):
            flipped = codes[u : u + 1].clone()
            flipped[0, k] *= -1
            assert loss_of(flipped, items, *part) >= found


def test_votes_are_the_exact_item_step():
    """The server's new bits minimise the clients' objective, by trying both values of each."""
    data = few_users()
    server, client = build()
    cohort = cohort_of(client, data)
    state = server.begin(KEY)
    for number in range(1, 20):
        cohort = replace(cohort, when=(0, number), _asked=cohort_of(client, data)._asked)
        before = unpack(state.public["codes"])
        keys = CLIENTS.fold(data.ids).fold("update", 0, number, 0).fold("negatives")
        samples = draw_samples(keys, data.train, N_ITEMS, SETTINGS.negatives)
        target, weight = 16 * (2 * samples.label - 1), samples.weight.clamp(max=1)
        old = unpack(cohort.store.take(data.ids).params["code"])
        bit = state.round % 16
        state = server.round(state, cohort, KEY)
        codes, after = (
            unpack(cohort.store.take(data.ids).params["code"]),
            unpack(state.public["codes"]),
        )
        descended = old.clone()
        sweep(descended, before, target, weight)
        assert torch.equal(descended, codes)
        untouched = [k for k in range(16) if k != bit]
        assert torch.equal(before[:, untouched], after[:, untouched])
        for i in range(N_ITEMS):
            losses = []
            for value in (1.0, -1.0):
                tried = before.clone()
                tried[i, bit] = value
                losses.append(loss_of(codes, tried, target, weight))
            if losses[0] == losses[1]:
                assert after[i, bit] == before[i, bit]
            else:
                assert after[i, bit] == (1.0 if losses[0] < losses[1] else -1.0)


@pytest.mark.parametrize("balance", [0.0, 0.3, 4.0, 1e6])
def test_balanced_columns_equal_brute_force(balance):
    for draw in range(5):
        vote = (KEY.fold("vote", draw).normal(9) * 8).round()
        column = KEY.fold("column", draw).normal(9).sign()
        every = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=9)))
        cost = -2 * every @ vote + balance * every.sum(1) ** 2
        found = best_column(vote, column, balance)
        assert (-2 * found @ vote + balance * found.sum() ** 2).item() == cost.min().item()
    assert torch.equal(best_column(torch.zeros(9), column, 0.0), column)


@pytest.mark.parametrize("lam", [0.0, 1e-4, 1e-3, 0.6])
def test_weighted_votes_minimise_the_weighted_objective(lam):
    """Σ_u |I_u| / N Σ_i (x - <b, d>)² + 4f²λ (Σ_i d_i)², over all columns of item bits by hand."""
    data = few_users()
    server, client = build(weighted=True, lam=lam)
    cohort = cohort_of(client, data)
    state = server.begin(KEY)
    before = unpack(state.public["codes"])
    after = unpack(server.train(state, cohort, KEY)["codes"])
    keys = CLIENTS.fold(data.ids).fold("update", *cohort.when, 0).fold("negatives")
    samples = draw_samples(keys, data.train, N_ITEMS, SETTINGS.negatives)
    target, sampled = 16 * (2 * samples.label - 1), samples.weight.clamp(max=1)
    codes = unpack(cohort.store.take(data.ids).params["code"])
    sizes = [len(items) for items in data.train.tolists()]

    def objective(column):
        tried = before.clone()
        tried[:, 0] = torch.tensor(column)
        left = sum(
            size / sum(sizes) * loss_of(codes[[u]], tried, target[[u]], sampled[[u]])
            for u, size in enumerate(sizes)
            if size
        )
        return left + 4 * 16**2 * lam * sum(column) ** 2

    best = min(map(objective, itertools.product((-1.0, 1.0), repeat=N_ITEMS)))
    assert objective(after[:, 0].tolist()) == pytest.approx(best, rel=1e-9)
    assert torch.equal(after[:, 1:], before[:, 1:])


def test_weights_are_what_an_upload_says():
    index = Ragged.from_lists([[2], [0, 2], []])
    votes = torch.tensor([[3], [-1], [5]], dtype=torch.int16)
    up = BitVotes(TouchedRows(index, votes, 4), torch.zeros(3), torch.tensor([10, 20, 7]))
    total = VoteSum().merge(VoteSum().of(up), VoteSum().of(up))
    assert total.votes.flatten().tolist() == [-40, 0, 260, 0]
    assert int(total.weight) == 74


def test_what_travels_is_packed_and_small():
    data = few_users()
    server, client = build(bits=64, bits_per_round=8)
    cohort = cohort_of(client, data)
    down = ItemCodes(server.begin(KEY).public["codes"])
    up = cohort.ask(UPDATE, down).up
    assert down.codes.dtype == torch.uint8
    assert down.codes.shape == (N_ITEMS, 8)
    assert up.votes.values.dtype == torch.int16
    assert up.votes.values.shape[1] == 8
    sizes = {(r["step"], r["direction"], r["field"]): r["bytes"] for r in cohort.ledger.rows()}
    assert sizes["update", "down", "codes"] == len(data.ids) * N_ITEMS * 8
    assert sizes["update", "up", "votes"] == up.votes.index.values.numel() * (4 + 16)
    header = Header("update", (0, 1))
    again = decode(encode(up, header), BitVotes)[0]
    assert torch.equal(again.votes.values, up.votes.values)


def test_the_training_loss_is_the_mean_over_the_clients():
    data = few_users()
    server, client = build()
    state = server.begin(KEY)
    up = cohort_of(client, data).ask(UPDATE, ItemCodes(state.public["codes"])).up
    cohort = cohort_of(client, data)
    server.train(state, cohort, KEY)
    assert cohort.journal.scalars["fed/loss"] == pytest.approx(up.loss.mean().item())
    assert cohort.journal.scalars["fed/clients"] == len(data.ids)


def test_votes_of_many_clients_do_not_overflow():
    n_clients, vote = 1000, 129
    index = Ragged.from_lists([[2]] * n_clients)
    votes = torch.full((n_clients, 1), vote, dtype=torch.int16)
    up = BitVotes(TouchedRows(index, votes, 4), torch.zeros(n_clients), None)
    fold = VoteSum()
    total = fold.merge(fold.of(up), fold.of(up))
    assert total.votes.flatten().tolist() == [0, 0, 2 * n_clients * vote, 0]


def test_uploads_depend_on_what_they_declare_and_share_no_memory():
    data = few_users()
    server, client = build()
    cohort = cohort_of(client, data)
    state, mine, key = server.begin(KEY), cohort.store.take(data.ids), CLIENTS.fold(data.ids)
    perturb = {
        name: lambda params: {"code": torch.bitwise_not(params["code"])}
        for name in ("params", "best")
    }
    down = server.table(state.public)
    for step in ("update", "evaluate"):
        assert_non_interference(client, step, down, mine, data, key, perturb)
    assert_no_shared_storage(client.update(down, mine, data, key)[0], mine)


@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_change_nothing(chunk):
    data = few_users()
    whole, cut = (run(*build(bits_per_round=4), data, 4, c) for c in (None, chunk))
    assert torch.equal(whole.server_state.public["codes"], cut.server_state.public["codes"])
    assert whole.results == cut.results


def test_learns_groups_and_places_a_newcomer():
    data, n_items = group_users()
    options = {"bits": 32, "bits_per_round": 4, "rounds": 30, "patience": 30}
    module = run(*build(n_items, (4,), **options), data)
    assert module.finished
    assert module.results["test/recall@4"] > 0.7  # by chance 4 of 32 items
    scores = scores_of_newcomer(module, torch.tensor([1, 5, 9, 13]))[0]
    assert scores.min() >= 0
    assert scores.max() <= 1
    group = torch.arange(1, n_items, 4)
    others = torch.ones(n_items, dtype=torch.bool)
    others[group] = False
    assert scores[group].mean() > scores[others].mean() + 0.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 12}, r"'lightfr\.bits' must be a multiple of 8, not 12"),
        ({"bits": 64, "bits_per_round": 7}, r"'lightfr\.bits_per_round' must divide the 64 bits"),
        ({"lam": -0.1}, r"'lightfr\.lam' must be at least 0"),
        ({"sweeps": 0}, r"'lightfr\.sweeps' must be at least 1"),
    ],
)
def test_settings_are_checked(options, message):
    with pytest.raises(UserError, match=message):
        LightFRSettings(**options)
