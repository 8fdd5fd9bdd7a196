"""What is read off sums of samples: one sample exactly, more of them less and less."""

import json

import pytest
import torch
from tests.assisted.small_organisations import make_organisations
from tests.assisted.test_sums import KEY, cells_of, settings

from coterie.assisted.commands.attack import run as attack
from coterie.assisted.experiment import Experiment
from coterie.assisted.learner import Learner
from coterie.assisted.samples.matrix import Samples
from coterie.assisted.samples.model import models_of
from coterie.assisted.samples.moving import movers
from coterie.assisted.settings import DomainSettings, ModelSettings, TrainSettings
from coterie.assisted.sums_attack import exposures, read_autorec, read_gaussian, report
from coterie.core.cli.main import main
from coterie.core.settings.base import EngineSettings
from coterie.core.settings.sections import PrivacySettings

SIZE = 15


def sample():
    """Residuals of one sample, NaN where there is none."""
    values = KEY.fold("one").normal(SIZE, dtype=torch.float64)
    values[KEY.fold("rated").uniform(SIZE) < 0.4] = float("nan")
    return values


def sums_of(name, values, **model):
    how = settings(
        name,
        model=ModelSettings(name, hidden=6, code=4, members=2, rank=3, **model),
        train=TrainSettings(hide=0.5),
    )
    (mover,) = movers(how, SIZE).values()
    params, _ = mover.begin(KEY, torch.float64)
    one = Samples(cells_of(values[None].numpy()).transposed(), 0, 1, are_columns=True)
    unit = torch.tensor(1.0, dtype=torch.float64)
    (part,) = models_of(Learner(how, make_organisations().each[0]), {"": one}, unit).values()
    return params, part.sums(params, KEY).values, how


def test_gradients_of_one_sample_are_read_exactly():
    """Whatever is hidden from the input, and dropped of the code."""
    values = sample()
    params, sums, _ = sums_of("autorec", values, dropout=0.5)
    torch.testing.assert_close(read_autorec(params, sums), values, equal_nan=True)


def test_a_gaussian_of_one_sample_is_read_but_for_its_sign():
    values = sample()
    params, sums, how = sums_of("gaussian", values)
    found = read_gaussian(params, sums, how.model.noise)
    at = int(found.isfinite().nonzero()[0])
    sign = torch.sign(found[at] * values[at])
    torch.testing.assert_close(sign * found, values, equal_nan=True)
    nothing = {name: torch.zeros_like(value) for name, value in sums.items()}
    assert bool(read_gaussian(params, nothing, how.model.noise).isnan().all())


@pytest.mark.parametrize("feedback", ["explicit", "implicit"])
def test_fewer_ratings_are_read_of_more_samples(feedback):
    how = settings(
        "blend",
        data=DomainSettings(domains="uniform", count=3, feedback=feedback),
        engine=EngineSettings(dtype="float64"),
    )
    rows = exposures(Experiment(how), sizes=(1, 4))
    for name in ("autorec", "gaussian"):
        one, four, whole, every = (row for row in rows if row["model"] == name)
        assert one["right"] > 0.99
        assert one["samples"] == 1
        assert one["empty"] == 1
        assert one["right"] > four["right"] > whole["right"]
        assert four["empty"] > whole["empty"] >= every["empty"]
        assert every["samples"] == pytest.approx(3 * whole["samples"])


@pytest.mark.parametrize(
    ("privacy", "told"), [(PrivacySettings(), False), (PrivacySettings(clip=1.0), True)]
)
def test_a_report_says_that_sums_are_read_without_the_noise_of_the_run(privacy, told):
    notes = report([], settings("gaussian", privacy=privacy)).notes
    assert any("clip and noise are left out" in note for note in notes) == told


@pytest.mark.long
def test_the_command_reads_sums(tmp_path, capsys):
    words = ["train", "mtal", "--method", "sums", "--model.name", "gaussian", "--rounds", "1"]
    quiet = ["--logger.wandb", "off", "--run.progress", "false", "--run.out", str(tmp_path)]
    assert main([*words, *quiet]) == 0
    (folder,) = tmp_path.glob("*/*")
    attack(["--run", str(folder)])
    assert "sum over samples" in capsys.readouterr().out
    rows = json.loads((folder / "attack.json").read_text())["rows"]
    assert rows[0]["sum"] == "1 of an organisation"
    assert main(["assisted", "attack", "--run", str(folder), "--reader", "0"]) == 2
    assert "leave --reader and --draws out" in capsys.readouterr().err
