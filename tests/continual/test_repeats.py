"""Where people want the same things again a run that leaves these out says so."""

from pathlib import Path

import pytest

from coterie.continual.experiment import Experiment
from coterie.core.registry.papers import find_paper
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure


def interactions(folder: Path, again: bool) -> Path:
    """Thirty users with twenty of forty items each; if wanted the last five are the first five."""
    lines = ["u,i,t"]
    for at in range(20):
        which = at - 15 if again and at >= 15 else at
        lines += [f"{user},{(user + which) % 40},{at}" for user in range(30)]
    path = folder / "own.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("use", ["distil", "leave-out", "both"])
@pytest.mark.parametrize("again", [False, True])
def test_a_run_says_what_leaving_out_cannot_find(again: bool, use: str, tmp_path: Path) -> None:
    """Of the last eight items of each user five are repeats."""
    flags = ["--data", str(interactions(tmp_path, again)), "--data.min_interactions", "1"]
    flags += ["--data.columns", "user=u,item=i,time=t", "--run.out", str(tmp_path)]
    flags += ["--data.fractions", "[0.6, 0.1]"]
    small = ["--replay.use", use, "--replay.top_n", "5", "--replay.leave_out_n", "5"]
    experiment = Experiment(configure(find_paper("f3crec"), [*flags, *small]).settings)
    told = experiment.notes(FederatedRun(experiment.federation()))
    assert len(told) == (again and use != "distil")
    for note in told:
        assert note.startswith("62% of what users had in later blocks they had before;")
        assert f"'replay.use' {use} " in note


@pytest.mark.real_data
@pytest.mark.parametrize("backbone", ["fedmf", "fedncf", "pfedrec"])
@pytest.mark.parametrize("name", ["ml-100k", "ml-latest-small", "lastfm-2k"])
def test_the_best_variant_leaves_out_only_where_nothing_is_wanted_again(
    name: str, backbone: str, data_root: Path
) -> None:
    if not (data_root / name).is_dir():
        pytest.skip(f"needs {name} in the folder of the public data sets")
    flags = ["--variant", "best", "--data", name, "--model.name", backbone]
    flags += ["--data.root", str(data_root)]
    experiment = Experiment(configure(find_paper("f3crec"), flags).settings)
    repeated = max(experiment.stream.repeats())
    assert experiment.settings.leaves_out == (repeated == 0)
    assert (repeated > 0.2) == (name == "lastfm-2k")
