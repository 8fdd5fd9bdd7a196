"""What the tables compute from runs, on made-up runs with values worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from coterie.core.tables.means import mean_curve
from coterie.core.tables.paired import contrasts, rank
from coterie.core.tables.result import RunResult
from coterie.page import published
from coterie.page.tables.convergence import NEVER, final, reach, smoothed, stop, window
from coterie.page.tables.figures import NONE, claim_notes, correlation
from coterie.page.tables.layout import (
    comparison_notes,
    difference_note,
    percent,
    plain,
    verdict_notes,
)
from coterie.page.tables.main_table import certificate_notes, rest_notes
from coterie.page.tables.properties import VALUES, bias_notes, dial_notes, dial_panel

NAN = float("nan")


def run_of(local, server=None, steps=None, settled=False):
    """A run whose validation and test accuracies are equal."""
    server = local if server is None else server
    curves = {}
    for part in ("eval", "test"):
        curves[f"{part}/server_accuracy"] = list(server)
        curves[f"{part}/personal_accuracy"] = list(local)
    curves["eval/accuracy"] = [(a + b) / 2 for a, b in zip(local, server, strict=True)]
    curves["cost/local_steps"] = [10.0] * len(local) if steps is None else list(steps)
    return RunResult(
        curves=curves,
        found={"settled": settled},
        rounds=len(local),
        chosen_by="eval/accuracy",
    )


def ends(*pairs):
    """One run a seed, of one round, with the global and local accuracies given."""
    return [run_of([local], [server]) for server, local in pairs]


# A run


def test_the_best_round_is_chosen_by_validation_alone():
    curves = {
        "eval/accuracy": [0.2, NAN, 0.7, 0.7, 0.1],
        "test/server_accuracy": [0.9, NAN, 0.3, 0.5, 0.4],
        "cost/local_steps": [5.0, 6.0, NAN, 1.0, 2.0],
    }
    result = RunResult(curves=curves, rounds=5, chosen_by="eval/accuracy")
    assert result.measured == [1, 3, 4, 5]
    assert result.best_round == 3
    assert result.best("test/server_accuracy") == 0.3
    assert result.last("test/server_accuracy") == 0.4
    assert replace(result, lower_is_better=True).best_round == 5
    assert math.isnan(result.best("test/personal_accuracy"))
    assert result.cumulative("cost/local_steps") == [5, 11, 11, 12, 14]
    assert result.total("cost/local_steps") == 14
    assert math.isnan(result.total("cost/up_bytes"))


def test_a_result_is_read_as_it_was_written(tmp_path):
    result = RunResult(
        clients={"test/personal_accuracy": [1.0, NAN]},
        curves={"eval/accuracy": [0.1, NAN]},
        found={"settled": True, "certificate": {"a": None}},
        rounds=2,
        chosen_by="eval/accuracy",
    )
    result.write(tmp_path / "r.json")
    found = RunResult.read(tmp_path / "r.json")
    assert found.curves["eval/accuracy"] == pytest.approx([0.1, NAN], nan_ok=True)
    assert found.clients["test/personal_accuracy"] == pytest.approx([1.0, NAN], nan_ok=True)
    assert found.found == {"settled": True, "certificate": {"a": None}}
    assert (found.rounds, found.chosen_by) == (2, "eval/accuracy")


# Table 2


def test_smoothed_values_are_trailing_means_of_the_rounds_that_were_measured():
    result = run_of([0.1, NAN, 0.3, 0.5, NAN, 0.4])
    assert smoothed(result, "eval/personal_accuracy", 2) == (
        [3, 4, 6],
        pytest.approx([0.2, 0.4, 0.45]),
    )
    assert final(result, "eval/personal_accuracy", 2) == pytest.approx(0.45)
    assert smoothed(result, "eval/personal_accuracy", 5) == ([], [])
    assert math.isnan(final(result, "eval/personal_accuracy", 5))


@pytest.mark.parametrize(("n", "width"), [(1, 1), (9, 1), (20, 2), (99, 9), (1000, 10)])
def test_the_window_is_a_tenth_and_at_most_ten(n, width):
    assert window(run_of([0.5] * n)) == width


def test_the_target_is_reached_in_the_first_round_at_or_above_it():
    result = run_of([0.2, 0.4, 0.9, 0.5, 0.6], steps=[100, 50, 25, 10, 5])
    metric = "eval/personal_accuracy"
    assert reach(result, metric, 0.4, 1) == reach(result, metric, 0.3, 1)
    found = reach(result, metric, 0.4, 1)
    assert (found.round, found.steps) == (2, 150)
    # Means of two: .3, .65, .7, .55; a single peak of .9 is not enough.
    found = reach(result, metric, 0.7, 2)
    assert (found.round, found.steps) == (4, 185)
    assert reach(result, metric, 0.8, 2) == NEVER
    assert reach(result, metric, NAN, 2) == NEVER


def test_a_method_reaches_its_own_end():
    values = np.random.default_rng(0).normal(size=200).cumsum()
    result = run_of(values.tolist())
    found = reach(result, "eval/server_accuracy", final(result, "eval/server_accuracy", 10), 10)
    means = np.convolve(values, np.ones(10) / 10, mode="valid")
    assert found.round == 10 + np.argmax(means >= means[-1] - 1e-12)


def test_increasing_stops_where_the_highest_is_nearly_met():
    local, server = [0.1, 0.5, 0.8, 0.8005, 0.7], [0.1, 0.2, 0.3, 0.4, 0.5]
    result = run_of(local, server)
    assert stop(result, "ditto", 1) == 3  # personalised: the local models
    assert stop(result, "fedavg", 1) == 5  # the global one
    # The mean is .1, .35, .55, .60025, .6.
    assert stop(result, "page", 1) == 4
    assert stop(run_of(local, server, settled=True), "page", 1) == 5
    assert math.isnan(stop(run_of([NAN, NAN]), "fedavg", 1))


# Comparisons


def test_page_is_ranked_and_tested_against_every_method():
    results = {
        "fedavg": ends((0.80, 0.90), (0.82, 0.91), (0.81, 0.92)),
        "ditto": ends((0.70, 0.95), (0.71, 0.96), (0.72, 0.98)),
        "page": ends((0.81, 0.94), (0.83, 0.95), (0.83, 0.95)),
    }
    notes = verdict_notes(results)
    assert notes[0] == "PAGE IS best or second best in both columns by the means."
    assert notes[1].startswith("global: PAGE is best of 3, 82.33 %.")
    assert notes[2].startswith("local: PAGE is second of 3, 94.67 %; the best is Ditto, 96.33 %.")
    written = comparison_notes(results)
    p = stats.ttest_rel([0.81, 0.83, 0.83], [0.80, 0.82, 0.81]).pvalue
    values = {
        name: [r.best("test/server_accuracy") for r in part] for name, part in results.items()
    }
    found = contrasts(values, "page")
    assert found["fedavg"].found.p == pytest.approx(p)
    smaller = found["ditto"].found.p
    assert smaller < p
    assert found["ditto"].p == pytest.approx(2 * smaller)  # Holm: the smaller of two counts twice
    assert found["fedavg"].p == pytest.approx(max(p, 2 * smaller))
    assert found["ditto"].verdict == "better"
    assert "FedAvg +1.33" in written[0]
    assert "Ditto -1.67" in written[1]


def test_third_is_not_best_or_second_best_and_significant_losses_are_named():
    far = {
        "fedavg": ends((0.9, 0.5), (0.91, 0.51), (0.93, 0.5)),
        "fedprox": ends((0.8, 0.4), (0.81, 0.41), (0.83, 0.4)),
        "page": ends((0.1, 0.6), (0.11, 0.61), (0.12, 0.6)),
    }
    notes = verdict_notes(far)
    assert notes[0] == "PAGE is NOT best or second best in both columns by the means."
    assert "third of 3" in notes[1]
    assert notes[1].endswith("significantly below FedAvg, FedProx.")


def test_methods_without_a_global_model_are_in_one_column_only():
    results = {"local": [run_of([0.5], [NAN])], "page": [run_of([0.6], [0.7])]}
    results["local"][0].curves["eval/accuracy"] = [0.5]
    assert verdict_notes(results)[1].startswith("global: PAGE is best of 1")
    assert len(comparison_notes(results)) == 1
    assert rank({"a": [NAN]}, "a") is None


def test_one_seed_proves_nothing():
    found = contrasts({"page": [0.9], "fedavg": [0.1]}, "page")
    assert found["fedavg"].verdict == "not tested"
    note = difference_note("x", "page", found)
    assert note == "x, page minus, in points: fedavg +80.00, not tested. One seed cannot be tested."


# Table 4 and Figure 3


def test_biased_players_must_move_the_means_beyond_the_spread():
    ratios = {
        "10:1": ends((0.90, 0.70), (0.92, 0.74)),
        "1:1": ends((0.80, 0.72), (0.81, 0.73)),
        "1:10": ends((0.85, 0.60), (0.86, 0.61)),
    }
    notes = bias_notes(ratios)
    assert sum("should move" in note for note in notes) == 4
    up = next(n for n in notes if n.startswith("10:1 should move global accuracy up"))
    assert "+10.50 points, as promised, beyond the seeds' spread (1.41)" in up
    same = next(n for n in notes if n.startswith("10:1 should move local accuracy down"))
    assert "-0.50 points, NOT beyond the seeds' spread (2.83)" in same
    wrong = next(n for n in notes if n.startswith("1:10 should move global accuracy down"))
    assert "+5.00 points, against the promise, beyond" in wrong
    alone = bias_notes({name: part[:1] for name, part in ratios.items()})
    assert sum("one seed has no spread" in note for note in alone) == 4


def test_claims_on_single_factors_are_checked():
    results = {
        NONE: ends((0.5, 0.5), (0.51, 0.52), (0.52, 0.51)),
        "p": ends((0.6, 0.5), (0.62, 0.5), (0.61, 0.5)),
        "η": ends((0.5, 0.4), (0.5, 0.42), (0.5, 0.41)),
        "α": ends((0.5, 0.5), (0.5, 0.52), (0.5, 0.51)),
        "η, α": ends((0.5, 0.9), (0.5, 0.91), (0.5, 0.93)),
    }
    first, *others = claim_notes(results)
    assert "only p changes global accuracy by +10.00 points" in first
    assert first.endswith("as the paper says.")
    assert others[0].endswith("the paper says the opposite.")
    assert others[1].endswith("which is within noise.")
    assert "only η, α changes local accuracy by +40.33" in others[2]
    assert others[2].endswith("as the paper says.")


# Curves and words


def test_a_run_that_has_stopped_stays_where_it_was():
    short, long = run_of([0.2, 0.4], steps=[1, 1]), run_of([0.4, NAN, 0.8], steps=[1, 2, 3])
    found = mean_curve(
        [short, long],
        lambda run: run.curve("test/personal_accuracy"),
        lambda run: run.cumulative("cost/local_steps"),
    )
    assert [s.mean for s in found.y] == pytest.approx([0.3, 0.4, 0.6])
    assert list(found.x) == pytest.approx([1.0, 2.5, 4.0])
    alone = mean_curve([long], lambda run: run.curve("test/personal_accuracy"))
    assert list(alone.x) == [1, 3]
    many = mean_curve([run_of([0.5] * 1000)], lambda run: run.curve("eval/accuracy"))
    assert len(many.x) <= 251
    assert (many.x[0], many.x[-1]) == (1, 1000)


def test_numbers_are_written_for_people():
    assert percent([0.5, NAN], 0.25) == "50.00 (25.00)"
    assert percent([NAN]) == "-"
    assert plain([1.0, 3.0, NAN], digits=1) == "2.0 ± 1.4"


def test_correlation_is_of_ranks_where_both_are_known():
    a, b = [1.0, 2.0, NAN, 3.0, 9.0], [2.0, 1.0, 5.0, 3.0, 7.0]
    assert correlation(a, b) == pytest.approx(stats.spearmanr([1, 2, 3, 9], [2, 1, 3, 7])[0])
    assert math.isnan(correlation([1, 1, 1], [1, 2, 3]))
    assert math.isnan(correlation([1, 2], [1, 2]))


def test_notes_on_rest_and_certificate():
    runs = [run_of([0.1, 0.2], settled=True), run_of([0.1, 0.2, 0.3])]
    assert rest_notes(runs) == [
        "PAGE's game came to rest, seed by seed: round 2, not after 3 rounds."
    ]
    assert certificate_notes(runs) == []
    found = {
        "holds": False,
        "epsilon": 0.125,
        "relative_epsilon": 0.25,
        "share_significant": None,
    }
    runs[0].found["certificate"] = found
    (note,) = certificate_notes(runs)
    assert "ε 0.125 (25.00% of the payoff), refused, unknown of the leaders" in note
    runs[0].found["certificate_before"] = found | {"epsilon": None, "relative_epsilon": 0.5}
    (note,) = certificate_notes(runs)
    assert "ε unknown (50.00% of the payoff) before learning, 0.125 (25.00%" in note


# Published numbers


def test_the_papers_tables_tell_of_the_same_runs():
    for task, halves in published.TABLES["table4"].items():
        one = published.TABLES["table1"][task]["page"]
        rounds = published.printed("table2", task, "page")
        assert halves["clients"]["100"] == halves["ratio"]["1:1"] == [one[0], one[2], rounds]
    for columns in published.TABLES["table3"].values():
        assert list(columns) == ["σ=0.1", "σ=0.3", "σ=0.5", "δ=0.1", "δ=0.5", "δ=1"]
        for methods in columns.values():
            assert list(methods) == ["page", "fedrecon", "pfedme", "ditto", "fedala", "fed-rod"]
            # As the paper says: PAGE's global accuracy is higher than all others'.
            assert all(methods["page"][0] > methods[m][0] for m in methods if m != "page")


def test_the_improvements_follow_from_table_1():
    # The printed row "Improvement": PAGE against the worst of each column, relative.
    printed = {
        "synthetic": (8.37, 6.66),
        "cifar-100": (34.85, 30.09),
        "tiny-imagenet-200": (35.20, 39.91),
        "shakespeare": (34.25, 38.36),
    }
    for task, improvements in printed.items():
        rows = published.TABLES["table1"][task]
        for column, improvement in zip((0, 2), improvements, strict=True):
            worst = min(row[column] for row in rows.values())
            assert 100 * (rows["page"][column] / worst - 1) == pytest.approx(improvement, abs=0.01)


def test_the_dial_is_drawn_and_told_as_both_columns_over_lambda():
    """The server gains with λ, a client's own model loses; two seeds, .2 apart."""
    turned = [(x / 10 + shift, 0.7 - x / 10 + shift) for x in VALUES for shift in (0, 0.2)]
    found = {f"λ = {x:g}": ends(*turned[2 * i : 2 * i + 2]) for i, x in enumerate(VALUES)}
    panel = dial_panel("own model as sent", found)
    assert panel.x == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert [s.mean for s in panel.lines["global"]] == pytest.approx([0.1 + x / 10 for x in panel.x])
    assert [s.mean for s in panel.lines["local"]] == pytest.approx([0.8 - x / 10 for x in panel.x])
    assert panel.lines["local"][0].sd == pytest.approx(np.std([0.7, 0.9], ddof=1))
    notes = dial_notes(found, promised=True)
    assert "global accuracy rises with λ by the means." in notes
    assert "local accuracy falls with λ by the means." in notes
