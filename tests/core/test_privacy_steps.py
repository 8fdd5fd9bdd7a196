"""Noise on some steps, entries clipped one by one, and what epsilon is then for."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy import stats
from tests.core.liars import Liars, Model
from tests.core.liars import Own as Data
from tests.core.relays import (
    FIT,
    RESIDUAL,
    ROWS,
    UPDATE,
    Begin,
    Helped,
    Organisation,
    Others,
    federation,
)
from tests.hosted import Hosts, bits, each_alone, make_folders
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.federation.cohort import ExchangeCohort
from coterie.core.federation.in_process import InProcess
from coterie.core.federation.ledger import Ledger
from coterie.core.privacy import noise as draws
from coterie.core.privacy.accountant import epsilon
from coterie.core.privacy.build import middleware, remarks
from coterie.core.privacy.noise import EntryClip
from coterie.core.privacy.releases import protocol_table, release_count, releasing
from coterie.core.protocol.card import Card
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.messages import ListStep, Reveals, Step, Up, leaves
from coterie.core.protocol.uploads import Sum
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tensors.keys import Key
from coterie.core.tensors.rows import DenseRows, FactoredRows, Rows, TouchedRows
from coterie.core.tensors.stacked import Ragged
from coterie.core.training.callbacks.notes import PrivacyBudget
from coterie.core.training.trainer import fit

IDS = torch.tensor([2, 5, 9])
STEPS = Organisation.steps()
ENTRY = PrivacySettings(clip=2.0, noise="laplace", scale=0.5, clip_by="entry")
RESIDUALS = replace(ENTRY, steps=("residual",))
SECRET = Key.from_seed(4)
DOWN = Begin(torch.zeros(ROWS))
OTHERS = Others({str(c): torch.arange(float(ROWS)) for c in IDS.tolist()}, torch.tensor(8.0))


@dataclass(frozen=True)
class Mixed(Up):
    """All forms of what is released, and a number that is not."""

    rows: Rows = leaves("rows", reveals=Reveals.ITEMS_TOUCHED)
    residual: dict[str, Tensor] = leaves("residual", reveals=Reveals.RESIDUALS)
    loss: Tensor = leaves("loss", reveals=Reveals.MEASUREMENT)


@dataclass(frozen=True)
class Vector(Up):
    """One residual."""

    residual: Tensor = leaves("residual", reveals=Reveals.RESIDUALS)


def layers(settings, steps=STEPS):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return middleware(settings, steps)


def cohort(settings, exchange=None, number=1):
    exchange = exchange or InProcess(
        Organisation(), federation().blocks, SECRET.fold, middleware=layers(settings)
    )
    found = ExchangeCohort(exchange, exchange.present(0), (0, number), Ledger(), Journal())
    found.enrol()
    return found


def plain():
    return cohort(PrivacySettings())


def test_entries_are_clamped_one_by_one_in_every_form_of_a_change():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(4, 5, 3)) * 3
    values[:, 1] = 0
    dense = torch.as_tensor(values)
    index = Ragged.from_lists([[0, 2, 3, 4]] * 4)
    touched = TouchedRows(index, dense[:, [0, 2, 3, 4]].reshape(-1, 3), 5)
    owner = torch.arange(4)
    left, right = torch.as_tensor(rng.normal(size=(4, 5))), torch.as_tensor(rng.normal(size=(4, 3)))
    factored = FactoredRows(owner, left, right, 4)

    for rows in (DenseRows(dense), touched, factored):
        got = EntryClip(1.25)(Mixed(rows, {"a": dense, "b": dense[:, 0]}, dense * 9), SECRET)
        expected = rows.dense().numpy().copy()
        for place in np.ndindex(expected.shape):  # one entry after the other
            expected[place] = min(max(expected[place], -1.25), 1.25)
        np.testing.assert_array_equal(got.rows.dense().numpy(), expected)
        np.testing.assert_array_equal(got.residual["a"].numpy(), np.clip(values, -1.25, 1.25))
        assert got.residual["b"].abs().max() == 1.25
        assert torch.equal(got.loss, dense * 9)
    with pytest.raises(UserError, match=r"privacy\.clip"):
        EntryClip(math.inf)


def test_residuals_and_fits_get_noise_from_each_clients_own_key():
    settings = replace(ENTRY, clip=100.0)
    plain_, noisy = plain(), cohort(settings)
    before, after = plain_.ask(RESIDUAL, DOWN).ups, noisy.ask(RESIDUAL, DOWN).ups
    for client in IDS.tolist():
        own = SECRET.fold(torch.tensor([client])).fold("residual", 0, 1, 0)
        noise = 0.5 * draws.laplace(own.fold("noise", "residual"), ROWS)[0]
        assert torch.equal(after[client].residual, before[client].residual + noise)
        assert torch.equal(after[client].rows, before[client].rows)
    alone = cohort(settings).part(torch.tensor([1])).ask(RESIDUAL, DOWN).ups
    assert torch.equal(alone[5].residual, after[5].residual)  # whoever else is asked
    fits, exact = noisy.ask(FIT, OTHERS).ups, plain_.ask(FIT, OTHERS).ups
    drawn = [fits[c].fits[k] - exact[c].fits[k] for c in IDS.tolist() for k in OTHERS.residuals]
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


@pytest.mark.parametrize(("noise", "law"), [("laplace", stats.laplace), ("gaussian", stats.norm)])
def test_the_noise_of_a_list_client_has_its_law(noise, law):
    settings = replace(ENTRY, noise=noise, scale=0.7)
    (clip, add) = layers(settings)

    up = Vector(torch.full((1, 20_000), 5.0, dtype=torch.float64))
    noise_ = add(clip(up, SECRET), SECRET.fold(torch.tensor([3]))).residual - 2.0
    assert stats.kstest(noise_.numpy().ravel() / 0.7, law.cdf).pvalue > 1e-3


def test_only_the_steps_that_are_named_are_clipped_and_noised():
    with pytest.warns(UserWarning, match=r"cover the uploads of residual only.*: fit \(fits\)"):
        middleware(RESIDUALS, STEPS)
    some, exact = cohort(RESIDUALS), plain()
    noised, left = some.ask(RESIDUAL, DOWN).ups, exact.ask(RESIDUAL, DOWN).ups
    assert all(not torch.equal(noised[c].residual, left[c].residual) for c in IDS.tolist())
    fits, same = some.ask(FIT, OTHERS).ups, exact.ask(FIT, OTHERS).ups
    for client in IDS.tolist():
        assert float(fits[client].fits["2"][0]) == 8 * 2.5  # beyond the clip, as it was
        assert all(torch.equal(fits[client].fits[k], same[client].fits[k]) for k in ("2", "5"))
    everything = cohort(ENTRY).ask(FIT, OTHERS).ups
    assert not torch.equal(everything[2].fits["2"], fits[2].fits["2"])


def test_whole_uploads_of_a_step_are_clipped_together():
    settings = PrivacySettings(clip=1.0, steps=("fit",))
    fits = cohort(settings).ask(FIT, OTHERS).ups[2].fits
    assert float(torch.cat(list(fits.values())).norm()) == pytest.approx(1.0)
    assert torch.equal(
        cohort(settings).ask(RESIDUAL, DOWN).ups[2].residual,
        plain().ask(RESIDUAL, DOWN).ups[2].residual,
    )


def test_worker_processes_noise_the_same_steps_with_the_same_bits(tmp_path):
    card = Card("toy", {f"privacy.{k}": v for k, v in vars(RESIDUALS).items()})
    card = Card.from_json(card.to_json())
    data = dict(enumerate(federation().blocks))
    folders = make_folders(tmp_path, data, SECRET, each_alone(IDS), card, form="list")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Hosts(folders, Organisation()) as hosts:
            outside, inside = cohort(RESIDUALS, hosts), cohort(RESIDUALS)
            for step, down in ((RESIDUAL, DOWN), (FIT, OTHERS)):
                ups = [
                    {str(c): up for c, up in one.ask(step, down).ups.items()}
                    for one in (outside, inside)
                ]
                assert bits(ups[0]) == bits(ups[1])
    for journal in (outside.journal, inside.journal):
        assert [(one.step, one.tensors) for one in journal.releases] == [
            ("residual", 1),
            ("fit", 3),
        ]


def spent(settings, **options):
    """What the budget notes in each round of a run."""
    run = FederatedRun(federation(middleware=layers(settings), blocks=1, **options))
    found = []

    class Noting(PrivacyBudget):
        def note(self, run):
            super().note(run)
            found.append(run.journal.scalars.get("privacy/epsilon"))

    fit(run, [Noting(settings)])
    return found


def test_the_budget_counts_every_noised_release():
    """A round asks for residuals, then for fits; there is one ask more at each end of the block."""
    one = 2 * 2.0 / 0.5
    tensors = 1 + 2  # a residual, and a fit for each of two others
    expected = [(1 + tensors) * one, (1 + 2 * tensors) * one, (1 + 3 * tensors + 1) * one]
    assert spent(ENTRY) == pytest.approx(expected)
    assert spent(RESIDUALS) == pytest.approx([2 * one, 3 * one, 5 * one])
    whole = replace(ENTRY, clip_by="upload")
    assert spent(whole) == pytest.approx([3 * one, 5 * one, 8 * one])
    assert spent(replace(whole, steps=("fit",))) == pytest.approx([one, 2 * one, 3 * one])
    assert spent(replace(ENTRY, clip=None, clip_by="upload")) == [None] * 3


def test_what_is_folded_before_it_comes_counts_the_same(tmp_path):
    data, counts = Data(IDS), []
    folders = make_folders(tmp_path, {0: data}, SECRET, [IDS[:1], IDS[1:]])
    with Hosts(folders, Liars(0, None)) as hosts:
        for exchange in (hosts, InProcess(Liars(0, None), {0: data}, SECRET.fold, 2)):
            asked = ExchangeCohort(exchange, exchange.present(0), (0, 1), Ledger(), Journal())
            asked.enrol()
            down = Model({"w": torch.zeros(20, 8)})
            asked.ask(Liars.steps()["update"], down, reduce=Sum())
            counts.append([(one.step, one.tensors) for one in asked.journal.releases])
    assert counts[0] == counts[1] == [("update", 1)]


def test_a_report_releases_nothing():
    asked = cohort(ENTRY)
    asked.ask(UPDATE, Helped({"5": torch.ones(ROWS)}))
    assert asked.journal.releases == []
    assert releasing(STEPS) == {"residual": ["residual"], "fit": ["fits"]}


def test_integers_are_refused_and_text_is_not_a_release():
    up = Vector(torch.ones(1, 3, dtype=torch.int64))
    assert release_count(up) == 1
    for layer in layers(ENTRY):
        with pytest.raises(UserError, match=r"'residual' holds no real numbers"):
            layer(up, SECRET.fold(IDS[:1]))


def test_epsilon_of_an_entry_against_the_ratio_of_densities():
    """The largest ratio of the density of all releases, over replacements of k of 5 entries."""
    b, scale, releases = 1.5, 2.0, 3
    settings = PrivacySettings(clip=b, noise="laplace", scale=scale, clip_by="entry")
    for cells in (1, 2, 5):
        one = np.full((releases, 5), -b)
        other = one.copy()
        other[:, :cells] = b
        seen = one - 1.0  # where the ratio is largest: beyond both
        ratio = stats.laplace.logpdf(seen, one, scale) - stats.laplace.logpdf(seen, other, scale)
        assert epsilon(settings, releases, cells) == pytest.approx(float(ratio.sum()))


def test_gaussian_entries_are_a_mechanism_of_that_sensitivity():
    """k entries of T releases are 2 b sqrt(k T) apart: one release with so much less noise."""
    settings = PrivacySettings(clip=0.5, noise="gaussian", scale=12.0, clip_by="entry")
    for cells, releases in ((1, 9), (4, 1), (4, 9)):
        ratio = math.sqrt(cells * releases) / 12.0

        def excess(e, ratio=ratio):  # Balle & Wang, 2018, theorem 5
            upper = stats.norm.cdf(ratio / 2 - e / ratio)
            return upper - math.exp(e) * stats.norm.cdf(-ratio / 2 - e / ratio)

        got = epsilon(settings, releases, cells)
        assert excess(got) <= settings.delta  # it holds
        assert excess(got / 1.3) > settings.delta  # and is not much too large
    with pytest.raises(UserError, match=r"privacy\.clip_by to entry"):
        epsilon(replace(settings, clip_by="upload"), 1, 4)


def test_what_is_said_beside_epsilon():
    assert remarks(PrivacySettings(), STEPS) == []
    assert remarks(replace(ENTRY, clip_by="upload"), STEPS) == []
    (unit,) = remarks(ENTRY, STEPS)
    assert "one entry" in unit
    assert remarks(RESIDUALS, STEPS)[1].endswith("of other steps leave as they are: fit (fits)")
    assert len(remarks(replace(ENTRY, steps=("fit", "residual")), STEPS)) == 1


def test_the_table_says_which_steps_have_noise():
    def cells(*noised):
        rows = protocol_table(Organisation, noised)
        return {(r["step"], r["field"]): r["noise"] for r in rows if r["direction"] == "up"}

    both = {("residual", "residual"): "covered", ("fit", "fits"): "covered"}
    neither = {("residual", "rows"): "not covered", ("update", "loss"): "not covered"}
    assert cells() == both | neither
    assert cells("residual") == both | neither | {("fit", "fits"): "not covered"}
    content = {r["field"]: r["content"] for r in protocol_table(Organisation)}
    assert content["residual"] == "residual, passed on to other clients"
    assert content["residuals"] == "residuals of others, passed on from other clients"


def test_reveals_say_which_fields_are_releases():
    assert [one.name for one in Reveals if one.is_release] == [
        "PARAMETERS",
        "ITEMS_TOUCHED",
        "RESIDUALS",
        "FITS",
    ]
    assert "positive from a negative" in Reveals.RESIDUALS.value
    assert Reveals("parameters fitted to the client's data") is Reveals.PARAMETERS
    assert isinstance(RESIDUAL, ListStep)
    assert not isinstance(RESIDUAL, Step)
