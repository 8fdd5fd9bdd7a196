"""The slides' numbers against their table, and which runs they stand beside."""

from dataclasses import replace

import pytest

from coterie.assisted import published
from coterie.assisted.experiment import Experiment
from coterie.assisted.paper import PAPER
from coterie.assisted.readings import baseline
from coterie.assisted.settings import DomainSettings, Settings
from coterie.core.settings.configuration import configure

# Columns of the slides' table as they stand there.
PRINTED = {
    ("ml-100k", "explicit", "user"): "1.020 .939 .937 .937 .927 1.011 1.184 .970 .974 1.353 .945",
    ("ml-100k", "implicit", "item"): ".623 .681 .694 .693 .702 .624 .651 .669 .670 .667 .706",
    ("ml-1m", "explicit", "item"): "1.033 .914 .908 .909 .873 1.033 .935 .918 .921 .893 .834",
    ("ml-10m", "implicit", "user"): ".771 .793 .806 .806 .814 .770 .774 .786 .787 .797 .816",
    ("amazon-domains", "explicit", "user"): "1.388 1.322 1.309 1.318 2.663 1.386 1.410 1.391 1.379 "
    "2.571 1.309",
}
MODELS = ("base", "mf", "mlp", "ncf", "aae")
ROWS = [(method, model) for method in ("joint", "alone") for model in MODELS] + [("mtal", "aae")]


@pytest.mark.parametrize("column", PRINTED)
def test_columns_are_the_slides(column):
    numbers = [published.printed(*column, *row) for row in ROWS]
    assert numbers == [float(number) for number in PRINTED[column].split()]


def test_every_cell_has_all_rows():
    cells = [
        (data, feedback, align)
        for data in ("ml-100k", "ml-1m", "ml-10m")
        for feedback in ("explicit", "implicit")
        for align in ("user", "item")
    ]
    assert None not in {published.printed(*cell, *row) for cell in cells for row in ROWS}
    assert published.printed("sample", "explicit", "user", "mtal", "aae") is None
    assert published.printed("ml-100k", "explicit", "user", "alone", "bias") is None


def test_the_tables_best_is_a_curves_best():
    found = published.curve("ml-100k", "explicit", "item", "eta 0.3")
    assert found["best"] == published.printed("ml-100k", "explicit", "item", "mtal", "aae") == 0.883
    assert published.curve("ml-100k", "implicit", "user", "eta optimised")["best"] == 0.802
    assert published.curve("ml-100k", "explicit", "user", "half in common") == {"start": 1.012}
    assert published.curve("sample", "explicit", "user", "eta 0.3") == {}


def ml_100k(reading="released", **data):
    return Settings(reading=reading, data=DomainSettings(name="ml-100k", **data))


def reference(settings):
    return Experiment(settings).reference()  # the data are not read


def test_a_run_like_theirs_stands_beside_their_number():
    assert reference(ml_100k()) == {"test/rmse": 0.945}
    assert reference(ml_100k(align="item", domains="uniform")) == {"test/rmse": 0.883}
    assert reference(ml_100k(feedback="implicit")) == {"test/map@10": 0.802}
    alone = baseline(ml_100k(), "alone", "mlp")
    assert reference(alone) == {"test/rmse": 0.97}
    assert reference(baseline(ml_100k(), "joint", "base")) == {"test/rmse": 1.02}
    # The partition of a joint model does not matter.
    joint = baseline(ml_100k(domains="uniform", count=3), "joint", "ncf")
    assert reference(joint) == {"test/rmse": 0.937}


def test_rankings_by_organisation_are_no_numbers_of_theirs():
    local = ml_100k("recommended", feedback="implicit")
    assert reference(local) == {}
    assert reference(replace(local, evaluation="pooled")) == {"test/map@10": 0.802}
    # F⁰ of the reading recommended is not their base model.
    base = replace(baseline(local, "alone", "base"), evaluation="pooled")
    assert reference(base) == {}
    assert reference(replace(base, start="mean")) == {"test/map@10": 0.748}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--rounds=5", "5 rounds of 20 epochs (10 of 20)"),
        ("--data.domains=uniform --data.count=4", "data.count 4 (8)"),
        ("--data.common=0.5", "data.common 0.5 (1.0)"),
        ("--data.min_interactions=10", "data.min_interactions 10 (0)"),
        ("--data.side=true", "data.side True (False)"),
        ("--model.code=64", "model.code 64 (128)"),
        ("--train.hide=0.5", "train.hide 0.5 (0.0)"),
        ("--train.batch_rows=500", "train.batch_rows 500 (100)"),
        ("--assist.own=leave-out", "assist.own leave-out (use)"),
        ("--protect.residuals=dp", "protect.residuals dp (none)"),
    ],
)
def test_departures_are_named_and_leave_no_number(flags, said):
    settings = configure(PAPER, ["--data=ml-100k", *flags.split()]).settings
    assert published.departures(settings) == [said]
    assert reference(settings) == {}


def test_partitions_that_the_slides_do_not_have_have_no_number():
    assert reference(ml_100k(domains="uniform")) == {}


@pytest.mark.parametrize(("data", "rows"), [("ml-1m", 500), ("ml-10m", 5000)])
def test_configurations_have_the_papers_batches(data, rows):
    for feedback in ("explicit", "implicit"):
        words = [f"--data={data}", f"--data.feedback={feedback}"]
        user = configure(PAPER, words).settings
        item = configure(PAPER, [*words, "--data.align=item", "--data.domains=uniform"]).settings
        assert user.train.batch_rows == rows == published.batch_rows(user)
        assert item.train.batch_rows == min(rows, 1000) == published.batch_rows(item)
        assert published.departures(user) == published.departures(item) == []
