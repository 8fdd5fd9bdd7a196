"""Settings from files and flags: which source wins, and what each mistake says."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.parsing import parse

from coterie.core.errors import UserError
from coterie.core.registry.papers import Paper, load, presets, variant_file, variants
from coterie.core.settings.configuration import configure, print_help, to_yaml
from coterie.core.settings.parser import leaves
from coterie.core.settings.schema import build, values_of
from coterie.core.settings.sections import (
    DataSettings,
    EngineSettings,
    LoggerSettings,
    PrivacySettings,
    RunSettings,
)


def refusal(toy: Paper, *argv: str) -> str:
    with pytest.raises(UserError) as caught:
        configure(toy, argv)
    text = str(caught.value)
    assert "\n" not in text
    return text


def written(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def test_sources_win_in_order(toy: Paper) -> None:
    first = written("first.yaml", "rounds: 7\nmodel: {lr: 0.3}\nseed: 1\n")
    second = written("second.yaml", "model:\n  lr: 0.4\n")
    found = configure(toy, ["--seed", "5", "--config", first, f"--config={second}"])
    assert found.settings.algorithm.beta == 0.8  # the paper's own file
    assert found.settings.rounds == 7  # the first file
    assert found.settings.model.lr == 0.4  # the second file wins over the first
    assert found.settings.seed == 5  # flags win although they stand before the files
    assert found.sources == ("configs/toyrec.yaml", "first.yaml", "second.yaml")


def test_preset_lies_over_the_variant_and_below_the_files(toy: Paper) -> None:
    assert "smoke" in presets()
    smoke = configure(toy, ["--preset", "smoke", "--data", "ml-100k"])
    assert smoke.settings.rounds == 2
    assert smoke.settings.model.lr == 0.5
    file = written("more.yaml", "rounds: 4\n")
    assert configure(toy, ["--config", file, "--preset", "smoke"]).settings.rounds == 4


def test_variant_fits_data_and_backbone(toy: Paper) -> None:
    assert variants(toy) == ["ml-100k-mf", "mlp", "sample-mlp"]
    tuned = configure(toy, ["--data", "ml-100k"])
    assert (tuned.variants, tuned.settings.model.lr) == (("ml-100k-mf",), 0.5)
    assert tuned.settings.algorithm.beta == 0.7
    assert configure(toy, []).variants == ()
    by_file = written("backbone.yaml", "model: {name: mlp}\n")
    both = configure(toy, ["--config", by_file])
    assert both.variants == ("mlp", "sample-mlp")  # the more special one wins
    assert (both.settings.algorithm.beta, both.settings.model.lr) == (0.6, 0.25)
    alone = configure(toy, ["--model.name", "mlp", "--variant", "mlp"])
    assert (alone.variants, alone.settings.model.lr) == (("mlp",), 0.2)
    assert configure(toy, ["--data", "ml-100k", "--model.lr", "2"]).settings.model.lr == 2.0
    untuned = configure(toy, ["--data", "ml-100k", "--variant", "none"])
    assert (untuned.variants, untuned.settings.model.lr) == ((), 0.1)
    assert configure(toy, ["--variant", "ml-100k-mf"]).settings.model.lr == 0.5


@pytest.mark.parametrize("layer", ["best", "tuned"])
def test_a_layer_lies_over_the_variants_that_fit(toy: Paper, layer: str) -> None:
    """Its own files too, the special ones last; it may choose the backbone that they fit."""
    assert refusal(toy, "--variant", layer).startswith(f"variant '{layer}' of toyrec is unknown")
    folder = variant_file(toy, "mlp").parent
    (folder / f"{layer}.yaml").write_text("rounds: 77\nmodel: {name: mlp, widths: [3]}\n")
    (folder / f"{layer}-sample.yaml").write_text("model: {widths: [5]}\nseed: 4\n")
    (folder / f"{layer}-ml-100k-mlp.yaml").write_text("seed: 6\n")
    found = configure(toy, ["--variant", layer])
    assert found.variants == ("mlp", "sample-mlp", layer, f"{layer}-sample")
    settings = found.settings
    assert (settings.rounds, settings.model.lr, settings.model.widths) == (77, 0.25, (5,))
    assert configure(toy, ["--variant", layer, "--seed", "1"]).settings.seed == 1
    other = configure(toy, ["--variant", layer, "--data", "ml-100k", "--model.name", "mf"])
    assert other.variants == ("ml-100k-mf", layer)
    assert configure(toy, []).variants == ()


def test_a_layer_without_a_file_that_fits_is_refused(toy: Paper) -> None:
    """What was tuned for other data would be passed off as what was asked for."""
    folder = variant_file(toy, "mlp").parent
    (folder / "tuned-ml-100k-mf.yaml").write_text("seed: 6\n")
    said = "variant 'tuned' of toyrec has nothing for sample, only tuned-ml-100k-mf: leave out"
    assert refusal(toy, "--variant", "tuned").startswith(said)
    fits = configure(toy, ["--variant", "tuned", "--data", "ml-100k", "--model.name", "mf"])
    assert fits.variants == ("ml-100k-mf", "tuned-ml-100k-mf")
    assert fits.settings.seed == 6


def test_flags_of_every_type(toy: Paper) -> None:
    given = configure(
        toy,
        [
            *("--data", "my.csv", "--data.columns", "user=u,item=i,time=t", "--resume"),
            *("--run.progress", "false", "--model.widths", "[16, 4]", "--run.name", "2024-01-01"),
            *("--privacy.delta=1e-7", "--engine.chunk=null", "--data_root", "x", "--seed", "-3"),
        ],
    ).settings
    assert given.data.name == "my.csv"
    assert given.data.columns == {"user": "u", "item": "i", "time": "t"}
    assert given.data.root == "x"
    assert given.run.resume is True
    assert given.run.progress is False
    assert given.run.name == "2024-01-01"
    assert given.model.widths == (16, 4)
    assert given.privacy.delta == 1e-7
    assert given.engine.chunk is None
    assert given.seed == -3


def test_defaults_are_those_of_the_class(toy: Paper) -> None:
    settings = load(toy.settings)
    assert parse(settings, []) == settings()


def test_yaml_comes_back_equal(toy: Paper) -> None:
    given = configure(toy, ["--data.columns", "user=ü,item=i", "--model.widths", "[3]"]).settings
    file = written("resolved.yaml", to_yaml(given, "toyrec"))
    assert configure(toy, ["--config", file]).settings == given
    settings = load(toy.settings)
    assert build(settings, {**values_of(given), "model.widths": (3,)}) == given
    tree = dataclasses.asdict(given)
    tree["model"]["widths"], tree["privacy"]["steps"] = [3], []  # YAML has lists only
    assert yaml.safe_load(to_yaml(given, "toyrec")) == {"paper": "toyrec", **tree}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--algorithm.bta", "1"],
            "unknown setting '--algorithm.bta': did you mean '--algorithm.beta'?",
        ),
        (["--beta=1"], "unknown setting '--beta': did you mean '--algorithm.beta'?"),
        (
            ["--algoritm.beta", "1"],
            "unknown setting '--algoritm.beta': did you mean '--algorithm.beta'?",
        ),
        (["--dta", "x"], "unknown setting '--dta': did you mean '--data'?"),
        (
            ["--model.zzz", "1"],
            "unknown setting '--model.zzz': known: model.lr, model.name, model.widths",
        ),
        (["ml-100k"], "unexpected 'ml-100k': settings are given as --key value"),
        (["--rounds", "five"], "--rounds: expected a whole number, not 'five'"),
        (["--rounds", "2.5"], "--rounds: expected a whole number, not '2.5'"),
        (["--rounds"], "--rounds: expected a whole number after it"),
        (["--config"], "--config: expected a value after it"),
        (["--model.lr", "nan"], "--model.lr: expected a number, not 'nan'"),
        (["--model.lr", ".inf"], "--model.lr: expected a number, not 'inf'"),
        (["--run.progress", "maybe"], "--run.progress: expected true or false, not 'maybe'"),
        (
            ["--method", "pro"],
            "--method: expected one of avg, prox, not 'pro'; did you mean 'prox'?",
        ),
        (["--method", "null"], "--method: expected one of avg, prox, not 'null'"),
        (["--model.widths", "[1, x]"], "--model.widths: expected a list, as [1, 2], not '[1, x]'"),
        (
            ["--data.columns", "user"],
            "--data.columns: expected pairs, as user=u,item=i, or null, not 'user'",
        ),
        (["--engine.chunk", "0"], "'engine.chunk' must be at least 1, not 0"),
        (["--preset", "smke"], "preset 'smke' is unknown: did you mean 'smoke'?"),
        (["--preset", ""], "preset '' is unknown: known: smoke"),
        (["--variant", ""], "variant '' of toyrec is unknown: known: ml-100k-mf, mlp, sample-mlp"),
        (
            ["--model.widths", "[" * 9000],
            "--model.widths: expected a list, as [1, 2], not a text of 9000 characters",
        ),
        (["--seed", "9" * 5000], "--seed: expected a whole number, not a text of 5000 characters"),
        (["--engine.threads", "1000000"], "'engine.threads' must be at most 1024, not 1000000"),
        (
            ["--engine.chunk", str(10**18)],
            "'engine.chunk' must be at most 2147483647, not 1000000000000000000",
        ),
        (["--run.name", " "], "'run.name' must be the name of a folder, not blank"),
        (["--run.name", "a\nb"], r"'run.name' must be printable text in UTF-8, not 'a\nb'"),
        (["--run.name", "a\0b"], r"'run.name' must be printable text in UTF-8, not 'a\x00b'"),
        (["--run.name", "a\udcffb"], r"'run.name' must be printable text in UTF-8, not 'a\udcffb'"),
        (
            ["--run.name", "ä" * 128],
            "'run.name' has a name of 256 bytes, and a folder may have 255: shorten it",
        ),
        (
            ["--out", "x/" + "o" * 300],
            "'run.out' has a name of 300 bytes, and a folder may have 255: shorten it",
        ),
        (
            ["--privacy.uploads", "padded"],
            "'privacy.uploads' has no effect without noise: leave it "
            "out, or set privacy.noise to laplace or gaussian",
        ),
        (
            ["--privacy.padded_rows", "5"],
            "'privacy.padded_rows' has no effect without noise: leave "
            "it out, or set privacy.noise to laplace or gaussian",
        ),
        (["--privacy.padded_rows", "0"], "'privacy.padded_rows' must be at least 1, not 0"),
        (
            ["--variant", "ml-100-mf"],
            "variant 'ml-100-mf' of toyrec is unknown: did you mean 'ml-100k-mf'?",
        ),
    ],
)
def test_wrong_flags(toy: Paper, flags: list[str], message: str) -> None:
    assert refusal(toy, *flags) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "algorithm: {bta: 1}",
            "unknown setting 'algorithm.bta' in bad.yaml, line 1: did you mean 'algorithm.beta'?",
        ),
        (
            "algoritm: {beta: 1}",
            "unknown setting 'algoritm' in bad.yaml, line 1: did you mean 'algorithm'?",
        ),
        (
            "# mine\nmodel:\n  name: mf\n  lrr: 2\n",
            "unknown setting 'model.lrr' in bad.yaml, line 4: did you mean 'model.lr'?",
        ),
        (
            "model.name: mf\nmodel.lr: x\n",
            "'model.lr' in bad.yaml, line 2: expected a number, not 'x'",
        ),
        ("round: 1", "unknown setting 'round' in bad.yaml, line 1: did you mean 'rounds'?"),
        ("rounds: five", "'rounds' in bad.yaml, line 1: expected a whole number, not 'five'"),
        ("rounds: true", "'rounds' in bad.yaml, line 1: expected a whole number, not 'true'"),
        ("rounds:", "'rounds' in bad.yaml, line 1: expected a whole number, not null"),
        ("rounds: {a: 1}", "'rounds' in bad.yaml, line 1: expected a whole number, not '{'a': 1}'"),
        ("model: {lr: .nan}", "'model.lr' in bad.yaml, line 1: expected a number, not 'nan'"),
        (
            "algorithm: 3",
            "'algorithm' in bad.yaml, line 1, is a section, not one value: it has algorithm.beta",
        ),
        (
            "method: avgg",
            "'method' in bad.yaml, line 1: expected one of avg, prox, not 'avgg'; did you mean "
            "'avg'?",
        ),
        (
            "seed: 1\nrounds: [1\nmodel: 2\n",
            "bad.yaml, line 3: not valid YAML, expected ',' or ']', but got ':'",
        ),
        (
            "model:",
            "'model' in bad.yaml, line 1, is a section, not one value: it has model.name, "
            "model.lr, model.widths",
        ),
        ("a: " + "[" * 3000, "bad.yaml: nested too deeply, settings have two levels"),
        ('run: {name: "a\\0b"}', r"'run.name' must be printable text in UTF-8, not 'a\x00b'"),
        (
            "seed: 2024-13-45",
            "'seed' in bad.yaml, line 1: expected a whole number, not '2024-13-45'",
        ),
        ("seed: 1\nseed: 2\n", "bad.yaml, line 2: not valid YAML, 'seed' is there twice"),
        ("- 1\n- 2\n", "bad.yaml: expected settings, as 'rounds: 10', not a list"),
        ("words", "bad.yaml: expected settings, as 'rounds: 10', not 'words'"),
        ("paper: f3crec", "bad.yaml is a configuration of f3crec, not of toyrec"),
    ],
)
def test_wrong_files(toy: Paper, text: str, message: str) -> None:
    assert refusal(toy, "--config", written("bad.yaml", text)) == message


def test_a_checkout_needs_no_link_to_its_configs(
    toy: Paper, toy_site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = toy_site.parent
    (toy_site / "coterie" / "toy" / "configs").rename(root / "configs")
    assert configure(toy, []).sources == ()  # no workspace: it has no presets
    (root / "configs" / "presets").mkdir()
    found = configure(toy, ["--data", "ml-100k"])
    assert found.sources == ("configs/toyrec.yaml", "configs/toyrec/ml-100k-mf.yaml")
    (root / "configs" / "toyrec.yaml").write_text("algorithm: {bta: 1}")
    assert refusal(toy) == (
        "unknown setting 'algorithm.bta' in configs/toyrec.yaml, line 1: did you mean "
        "'algorithm.beta'?"
    )


def test_the_file_at_fault_is_named_among_several(toy: Paper) -> None:
    good, bad = written("good.yaml", "rounds: 3\n"), written("bad.yaml", "seed: x\n")
    expected = "'seed' in bad.yaml, line 1: expected a whole number, not 'x'"
    assert refusal(toy, "--config", good, "--config", bad) == expected
    assert refusal(toy, "--config", bad, "--config", good) == expected


def test_missing_and_unreadable_files(toy: Paper) -> None:
    written("mine.yaml", "")
    assert refusal(toy, "--config", "min.yaml") == (
        "there is no file min.yaml: did you mean 'mine.yaml'?"
    )
    Path("binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert refusal(toy, "--config", "binary.yaml") == "binary.yaml is not a text file in UTF-8"
    Path("folder.yaml").mkdir()
    assert refusal(toy, "--config", "folder.yaml") == "cannot read folder.yaml: is a directory"


def test_empty_file_and_dotted_keys(toy: Paper) -> None:
    empty = written("empty.yaml", "# nothing\n")
    assert configure(toy, ["--config", empty]).settings == configure(toy, []).settings
    dotted = written("dotted.yaml", "algorithm.beta: 0.3\nmodel: {}\n")
    assert configure(toy, ["--config", dotted]).settings.algorithm.beta == 0.3


def test_help_holds_every_docstring(toy: Paper, capsys: pytest.CaptureFixture[str]) -> None:
    print_help(toy, "train")
    shown = " ".join(capsys.readouterr().out.split())
    for key, leaf in leaves(load(toy.settings)).items():
        assert f"--{key}" in shown
        assert leaf.help.removesuffix(".") in shown
        assert leaf.help
    assert "Short form: --data." in shown


def test_shared_settings_are_documented_and_frozen() -> None:
    for settings in (DataSettings, EngineSettings, PrivacySettings, LoggerSettings, RunSettings):
        assert [leaf.key for leaf in leaves(settings).values() if not leaf.help] == []
        with pytest.raises(dataclasses.FrozenInstanceError):
            settings().name = "x"  # type: ignore[misc,union-attr]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EngineSettings(threads=0), "'engine.threads' must be at least 1, not 0"),
        (lambda: PrivacySettings(clip=0.0), "'privacy.clip' must be above 0, not 0"),
        (
            lambda: PrivacySettings(delta=1.5),
            "'privacy.delta' must be above 0 and at most 1, not 1.5",
        ),
        (
            lambda: RunSettings(name="../x"),
            "'run.name' must be the name of a folder, not '../x'",
        ),
    ],
)
def test_ranges_of_shared_settings(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert str(caught.value) == message
