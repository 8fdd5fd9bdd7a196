"""FedMF: gradient descent on its objective, the three transports, and what they hide."""

import io
import math
import sys
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
from tests.core.scored import scores_of_user

from coterie.core.data.interactions.splits import UserRows
from coterie.core.errors import UserError
from coterie.core.methods.ranking.client import draw_samples, known_items
from coterie.core.methods.ranking.fedmf import (
    UPDATE,
    ClientKeys,
    FedMFClient,
    FedMFServer,
    ItemGradients,
    ItemTable,
)
from coterie.core.methods.settings.ranking import FedMFSettings
from coterie.core.metrics.ranking import ranking_metrics
from coterie.core.privacy.check import assert_no_shared_storage, assert_non_interference
from coterie.core.protocol.common_secret import CommonSecret, from_fixed, pairwise_masks, to_fixed
from coterie.core.protocol.messages import declared
from coterie.core.run.scoring import scores_of_newcomer
from coterie.core.tensors.stacked import Ragged
from coterie.core.wire.codec import Header, decode, encode

SECRET = KEY.fold("secret")  # of masks alone
SETTINGS = FedMFSettings(
    dim=3, lr=0.05, item_lr=0.03, lam=0.2, mu=0.3, init_std=0.5, fold_in=3, rounds=6, patience=6
)
TRANSPORTS = ["plain", "masked_sum", "ckks"]


def build(dtype=torch.float64, n_items=N_ITEMS, lengths=LENGTHS, **options):
    both = replace(SETTINGS, **options), n_items, lengths
    return FedMFServer(*both, dtype), FedMFClient(*both, CommonSecret(), dtype)


def needs(transport):
    if transport == "ckks":
        pytest.importorskip("tenseal")


def objective(vectors, items, data, number, settings):
    """Σ w (y - <p, q>)² of the samples of a round, one after the other."""
    keys = CLIENTS.fold(data.ids).fold("update", 0, number, 0).fold("negatives")
    samples = draw_samples(keys, data.train, N_ITEMS, settings.negatives, torch.float64)
    loss = settings.lam * vectors.square().sum()
    for u in range(len(data.ids)):
        for i in range(N_ITEMS):
            error = samples.label[u, i] - (vectors[u] * items[i]).sum()
            loss = loss + samples.weight[u, i] * error**2
    return loss, settings.mu * items.square().sum()


def test_rounds_are_gradient_descent_on_the_objective():
    data = few_users()
    server, client = build()
    cohort = cohort_of(client, data)
    state = server.begin(KEY)
    vectors, items = cohort.store.take(data.ids).params["vector"], state.public["items"]
    for number in (1, 2, 3):
        cohort = replace(cohort, when=(0, number), _asked=cohort_of(client, data)._asked)
        state = server.round(state, cohort, KEY)
        p, q = vectors.clone().requires_grad_(), items.clone().requires_grad_()
        sums = objective(p, q, data, number, SETTINGS)
        of_p, of_q = torch.autograd.grad(sum(sums), [p, q])
        vectors, items = vectors - SETTINGS.lr * of_p, items - SETTINGS.item_lr * of_q
        torch.testing.assert_close(state.public["items"], items, rtol=1e-12, atol=1e-12)
        found = cohort.store.take(data.ids).params["vector"]
        torch.testing.assert_close(found, vectors, rtol=1e-12, atol=1e-12)


def test_samples_hold_positives_once_and_no_positive_as_negative():
    data = few_users()
    keys = KEY.fold(data.ids)
    samples = draw_samples(keys, data.train, N_ITEMS, 4)
    known = data.train.mask(N_ITEMS)
    assert torch.equal(samples.label, known.float())
    assert bool((samples.weight[known] == 1).all())
    drawn = samples.weight.masked_fill(known, 0.0).sum(1)
    assert drawn.tolist() == [12, 4, 8, 16, 0, 0, 0]  # who has every item has no negatives


@pytest.mark.parametrize("transport", TRANSPORTS[1:])
def test_protected_transports_give_the_same_table(transport):
    needs(transport)
    data, rounds = few_users(), 3
    plain = run(*build(), data, rounds)
    module = run(*build(transport=transport), data, rounds)
    down = module.federation.server.table(module.server_state.public)
    found = module.federation.client._read(down)[0]
    expected = plain.server_state.public["items"]
    limit = {"masked_sum": rounds * len(data.ids) * 2.0**-20, "ckks": 1e-6}[transport]
    assert (found - expected).abs().max() < limit
    vectors = [m.store.take(data.ids).params["vector"] for m in (plain, module)]
    assert (vectors[0] - vectors[1]).abs().max() < limit


def test_masked_sum_is_exact_in_integers():
    data = few_users()
    server, client = build(transport="masked_sum")
    cohort = cohort_of(client, data)
    state = server.begin(KEY)
    down = server._training(state, cohort)
    masked = cohort.ask(UPDATE, down).up.masked
    tables = plain_tables(state, data)
    decay = 2 * SETTINGS.item_lr * SETTINGS.mu / len(data.ids) * state.public["items"]
    assert torch.equal(masked.sum(0), to_fixed(tables - decay).sum(0))
    new = server.train(state, cohort_of(client, data), KEY)["items"]
    expected = state.public["items"] + from_fixed(to_fixed(tables - decay).sum(0), torch.float64)
    assert torch.equal(new, expected)


def plain_tables(state, data, **options):
    server, client = build(**options)
    cohort = cohort_of(client, data)
    return cohort.ask(UPDATE, server._training(state, cohort)).up.rows.dense()


@pytest.mark.parametrize("partners", [2, 4, 50])
@pytest.mark.parametrize("size", [2, 3, 10])
def test_masks_cancel_for_the_roster_alone(size, partners):
    roster = torch.tensor([40, 3, 17, 8, 25, 1, 99, 6, 7, 50])[:size]
    masks = pairwise_masks(SECRET, roster, roster, (4, 3), partners)
    assert torch.equal(masks.sum(0), torch.zeros(4, 3, dtype=torch.int64))
    assert not torch.equal(masks[1:].sum(0), torch.zeros(4, 3, dtype=torch.int64))
    few = pairwise_masks(SECRET, roster, roster[[1, 0]], (4, 3), partners)
    assert torch.equal(few, masks[[1, 0]])
    assert not torch.equal(masks, pairwise_masks(KEY, roster, roster, (4, 3), partners))


def test_one_masked_upload_looks_uniform():
    data, n_items = group_users(8)
    server, client = build(n_items=n_items, dim=32, transport="masked_sum")
    cohort = cohort_of(client, data)
    up = cohort.ask(UPDATE, server._training(server.begin(KEY), cohort)).up
    for upload in up.masked:
        # Chi-squared of the 256 values of a byte: mean 255, standard deviation sqrt(510).
        counts = torch.bincount(upload.view(torch.uint8).flatten().long(), minlength=256).double()
        expected = counts.sum() / 256
        chi = ((counts - expected).square() / expected).sum().item()
        assert abs(chi - 255) < 5 * math.sqrt(510)


def test_a_single_client_is_not_hidden():
    data = few_users().take(torch.tensor([0]))
    with pytest.raises(UserError, match="hides nothing"):
        run(*build(transport="masked_sum"), data, 1)


def test_a_lost_client_loses_the_masked_round():
    data = few_users()
    server, client = build(transport="masked_sum")
    cohort = cohort_of(client, data)
    broken = cohort.store.take(data.ids[:1])
    broken.params["vector"][:] = torch.inf
    cohort.store.commit(data.ids[:1], broken)
    state = server.begin(KEY)
    assert torch.equal(server.train(state, cohort, KEY)["items"], state.public["items"])
    assert [(step, client) for step, client, _ in cohort.journal.refused] == [("update", 2)]


def test_plain_upload_names_the_sampled_rows_and_protected_ones_all():
    data = few_users()
    server, client = build()
    cohort = cohort_of(client, data)
    up = cohort.ask(UPDATE, server._training(server.begin(KEY), cohort)).up
    keys = CLIENTS.fold(data.ids).fold("update", 0, 1, 0).fold("negatives")
    samples = draw_samples(keys, data.train, N_ITEMS, SETTINGS.negatives)
    rows = [row.nonzero().flatten().tolist() for row in samples.weight]
    assert up.rows.wire().index.tolists() == rows
    server, client = build(transport="masked_sum")
    cohort = cohort_of(client, data)
    up = cohort.ask(UPDATE, server._training(server.begin(KEY), cohort)).up
    assert up.masked.shape == (7, N_ITEMS, 3)
    assert up.rows is None


def recovered_labels(first, second, items, settings):
    """Solve for the labels from the uploads of two successive steps (Chai et al., section 3).

    Upload i is 2γ e_i p, so uploads give the direction u of p = s u, in both steps; p moves by
    what the uploads and Q say, which fixes s up to its sign.
    """
    lr, item_lr = settings.lr, settings.item_lr
    u, v = (t[t.norm(dim=1).argmax()] / t.norm(dim=1).max() for t in (first, second))
    along = first @ u
    kept, moved = (1 - 2 * lr * settings.lam) * u, lr / item_lr * along @ items
    kept, moved = (x - (x @ v) * v for x in (kept, moved))
    s = (-(moved @ kept) / (kept @ kept)).abs().sqrt()
    labels = along / (2 * item_lr * s) + s * (items @ u)
    return labels if labels.sum() > 0 else -labels


def test_two_plain_uploads_reveal_the_labels_and_masked_ones_do_not():
    data = UserRows(
        torch.tensor([0, 1]),
        Ragged.from_lists([[0, 3, 4, 8], [1, 2, 3]]),
        *[Ragged.from_lists([[], []])] * 2,
    )
    label = data.train.mask(N_ITEMS)[0]
    found = {}
    for transport in TRANSPORTS[:2]:
        # All items are samples of weight 1, so that the sums are known.
        server, client = build(transport=transport, negatives=0, item_lr=0.01, lam=0.1)
        cohort, state = cohort_of(client, data), server.begin(KEY)
        uploads = []
        for _ in range(2):
            up = cohort.ask(UPDATE, server._training(state, cohort)).up
            table = up.rows.dense() if transport == "plain" else from_fixed(up.masked).double()
            uploads.append(table[0])
        settings = replace(SETTINGS, item_lr=0.01, lam=0.1)
        found[transport] = recovered_labels(*uploads, state.public["items"], settings)
    # Without negatives, rows with an upload are positives: it is their value that is recovered.
    torch.testing.assert_close(found["plain"][label], torch.ones(4, dtype=torch.float64))
    assert not bool(((found["masked_sum"][label] - 1).abs() < 0.5).all())


def test_a_random_start_leaves_the_line_of_equal_columns():
    data, n_items = group_users()
    module = run(*build(n_items=n_items, dim=8, lr=0.01, item_lr=0.01, init_std=0.1), data, 6)
    items = module.server_state.public["items"]
    assert int(torch.linalg.matrix_rank(items)) == 8


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("transport", TRANSPORTS[:2])
def test_chunks_change_nothing(transport, chunk):
    data = few_users()
    whole, cut = (run(*build(transport=transport), data, 3, c) for c in (None, chunk))
    expected = whole.server_state.public["items"]
    torch.testing.assert_close(cut.server_state.public["items"], expected)
    assert whole.ledger.bytes("up") == cut.ledger.bytes("up")


def test_evaluation_equals_the_metric_by_hand():
    data = few_users()
    module = run(*build(), data)
    assert module.finished
    mine, items = module.store.take(data.ids), module.server_state.best["items"]
    found = ranking_metrics(mine.best["vector"] @ items.T, data.test, 2, known_items(data))
    has_items = known_items(data).lengths > 0
    assert module.results["test/ndcg@2"] == pytest.approx(found.ndcg[has_items].nanmean().item())
    ids, values = module.journal.clients["test/recall@2"]
    assert torch.equal(ids, data.ids)
    torch.testing.assert_close(values[:5], found.recall[:5], equal_nan=True)
    assert values[5].isnan()  # nothing is known of number 9
    names = {
        f"{part}/{m}@{k}" for part in ("eval", "test") for m in ("recall", "ndcg") for k in LENGTHS
    }
    assert names <= {*module.journal.scalars}
    torch.testing.assert_close(
        scores_of_user(module, 7), (mine.best["vector"] @ items.T)[3:4], rtol=1e-5, atol=1e-6
    )


def test_fold_in_reads_validation_and_a_newcomer_finds_its_group():
    data, n_items = group_users()
    options = {"n_items": n_items, "lengths": (4,), "dim": 8, "lr": 0.02, "item_lr": 0.02}
    options |= {"rounds": 60, "patience": 60, "fold_in": 50, "lam": 1e-4, "mu": 1e-4}
    module = run(*build(**options, init_std=0.1), data)
    assert module.results["test/recall@4"] > 0.9  # by chance 4 of 32 items
    scores = scores_of_newcomer(module, torch.tensor([1, 5, 9, 13]))[0]
    assert set(scores.topk(10).indices.tolist()) == set(range(1, 40, 4))


def test_uploads_depend_on_what_they_declare_and_share_no_memory():
    data = few_users()
    for transport in TRANSPORTS[:2]:
        server, client = build(transport=transport)
        cohort = cohort_of(client, data)
        down = server._training(server.begin(KEY), cohort)
        mine, key = cohort.store.take(data.ids), CLIENTS.fold(data.ids)
        assert_non_interference(client, "update", down, mine, data, key)
        evaluated = server.table(server.begin(KEY).public)
        assert_non_interference(client, "evaluate", evaluated, mine, data, key)
        assert_no_shared_storage(client.update(down, mine, data, key)[0], mine)
    assert {field.name for field in declared(ItemGradients)} >= {"rows", "masked", "cipher"}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_travel(transport):
    needs(transport)
    data = few_users()
    server, client = build(transport=transport)
    cohort = cohort_of(client, data)
    state = server.begin(KEY)
    public = server.open(state.public, cohort)
    down = server._training(replace(state, public=public), cohort)
    header = Header("update", (0, 1))
    assert type(decode(encode(down, header), ItemTable)[0]) is ItemTable
    up = cohort.ask(UPDATE, down).up
    again = decode(encode(up, header), ItemGradients)[0]
    assert encode(again, header) == encode(up, header)


def test_server_of_ckks_holds_no_key_and_counts_bytes_and_seconds():
    pytest.importorskip("tenseal")
    import tenseal

    data = few_users()
    module = run(*build(transport="ckks"), data, 2)
    public = module.server_state.public
    context = tenseal.context_from(public["public_key"].numpy().tobytes())
    assert not context.has_secret_key()
    assert public["items"].numel() == 0
    secret = module.federation.client.keys._context.secret_key().data
    assert secret is not None
    assert module.journal.scalars["cost/encryption_seconds"] > 0
    rows = {
        (row["step"], row["field"]): row["bytes"]
        for row in module.ledger.rows()
        if row["direction"] == "up"
    }
    assert rows["update", "cipher"] > 2 * len(data.ids) * 100_000
    assert rows["make_keys", "wrapped"] > 0
    other = FedMFClient(replace(SETTINGS, transport="ckks"), N_ITEMS, LENGTHS, CommonSecret())
    with pytest.raises(UserError, match="do not have"):
        other.keys.unwrap(public["wrapped_key"])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_checkpoint_continues_in_a_new_process(transport):
    needs(transport)
    data = few_users()
    module = run(*build(transport=transport), data, 2)
    file = io.BytesIO()
    torch.save(module.to_plain(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = run(*build(transport=transport), data, 0)
    again.load_plain(saved)
    for _ in range(2):
        module.advance()
        again.advance()
    limit = 1e-6 if transport == "ckks" else 0.0
    vectors = [m.store.take(data.ids).params["vector"] for m in (module, again)]
    assert (vectors[0] - vectors[1]).abs().max() <= limit
    torch.testing.assert_close(
        scores_of_user(again, 7), scores_of_user(module, 7), rtol=1e-5, atol=1e-5
    )


def test_tenseal_missing_is_one_clear_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "tenseal", None)
    with pytest.raises(UserError, match=r"pip install 'coterie-core\[ckks\]'"):
        run(*build(transport="ckks"), few_users(), 1)


def test_divergence_is_said():
    with pytest.raises(UserError, match="has diverged in round"):
        run(
            *build(lr=50.0, item_lr=50.0, rounds=100, patience=100, dtype=torch.float32),
            few_users(),
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, r"'fedmf\.lr' must be above 0"),
        ({"lam": -1.0}, r"'fedmf\.lam' must be at least 0"),
        ({"masks": 3}, r"'fedmf\.masks' must be even"),
        ({"participation": 1.5}, r"'fedmf\.participation'"),
    ],
)
def test_settings_are_checked(options, message):
    with pytest.raises(UserError, match=message):
        FedMFSettings(**options)


def test_keys_are_declared():
    assert [field.name for field in declared(ClientKeys)] == ["public", "wrapped"]
