"""The command line: what it prints, what it imports, how it ends."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from coterie.core.cli import doctor
from coterie.core.cli.command import seeds
from coterie.core.cli.main import COMMANDS, main
from coterie.core.errors import Interrupted, UserError
from coterie.core.registry.papers import Paper, find_paper, papers, variants
from coterie.core.run.runfolder import RunFolder, Summary

Capture = pytest.CaptureFixture[str]
Trained = list[Any]
_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HUGE_PAGES = _PAGES.read_text() if _PAGES.exists() else "[never]"
HEAVY = ("torch", "lightning", "pandas", "wandb", "numpy")


def fake(monkeypatch: pytest.MonkeyPatch, name: str, **functions: Callable[..., Any]) -> None:
    module = ModuleType(f"coterie.core.{name}")
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def trained(toy: Paper, monkeypatch: pytest.MonkeyPatch) -> Trained:
    """Settings of the runs that were asked for; a run's metric is its beta less a tenth a seed."""
    found: Trained = []

    def train(paper: Paper, settings: Any) -> None:
        found.append(settings)
        run = RunFolder.for_settings(paper, settings)
        metric = round(settings.algorithm.beta - 0.1 * settings.seed, 3)
        (run.path / "metrics.csv").write_text(
            f"round,eval/ndcg@20,cost/seconds\n1,,0.5\n2,{metric},{len(found)}\n"
        )
        run.write_summary(Summary(2, {"test/ndcg@20": 0.1}, {}, 1, 1, 1.0))

    fake(monkeypatch, "training.train", train=train)
    return found


def error(capsys: Capture, *argv: str) -> str:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("coterie: error: ")
    return err.removeprefix("coterie: error: ").rstrip("\n")


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["--version"],
        ["list"],
        ["train", "--help"],
        ["train", "toyrec", "--help"],
        ["train", "toyrec", "--print_config"],
        ["table", "--help"],
        ["recommend", "--help"],
    ],
)
def test_light_commands_import_nothing_heavy(toy_site: Path, argv: list[str]) -> None:
    done = status_and_heavy(toy_site, argv)
    assert done.stderr.strip().splitlines()[-1] == "0 []"
    assert done.stdout


def status_and_heavy(site: Path, argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command; the last line of its stderr is the status and what heavy was imported."""
    code = (
        "import sys\nfrom coterie.core.cli.main import main\n"
        f"try: status = main({argv})\nexcept SystemExit as end: status = end.code\n"
        f"heavy = [name for name in {HEAVY} if name in sys.modules]\n"
        "print(status, heavy, file=sys.stderr)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True
    )


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("usr=who,item=item", "'usr' is no role: did you mean 'user'?"),
        ("user=who,item=itm", "no column 'itm' for the item; did you mean 'item'?"),
    ],
)
def test_a_mistyped_column_is_told_before_torch_is_imported(
    toy_site: Path, tmp_path: Path, columns: str, message: str
) -> None:
    path = tmp_path / "my.csv"
    path.write_text("who,item,time\n1,2,3\n")
    done = status_and_heavy(
        toy_site, ["train", "toyrec", "--data", str(path), "--data.columns", columns]
    )
    *_, error, last = done.stderr.strip().splitlines()
    assert message in error
    assert last == "2 []"


@pytest.mark.skipif("[never]" in HUGE_PAGES, reason="this machine gives no huge pages")
def test_large_tensors_are_on_huge_pages() -> None:
    """What a user has set stays: torch reads the variable when it is imported."""
    name = "THP_MEM_ALLOC_ENABLE"
    without = {key: value for key, value in os.environ.items() if key != name}

    def said(code: str, **env: str) -> str:
        begin = "from coterie.core.cli.main import main\nmain(['--version'])\n"
        done = subprocess.run(
            [sys.executable, "-c", begin + code],
            capture_output=True,
            text=True,
            env=without | env,
            check=True,
        )
        return done.stdout.split()[-1]

    # "hg" is what the kernel was asked for; what it gives depends on the memory that is free.
    code = """
import torch
tensor, inside = torch.ones(1 << 24), False
for line in open("/proc/self/smaps"):
    name, *words = line.split()
    if not name.endswith(":"):
        low, high = (int(end, 16) for end in name.split("-"))
        inside = low <= tensor.data_ptr() < high
    elif inside and name == "VmFlags:":
        print("hg" in words)
"""
    assert said(code) == "True"
    assert said(code, **{name: "0"}) == "False"
    assert said(f"import os; print(os.environ['{name}'])", **{name: "0"}) == "0"


def test_list_is_quick(toy_site: Path) -> None:
    """By the CPU time of a process, beside what one takes that imports torch: machines differ."""

    def of_children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def seconds(code: str) -> float:
        began = of_children()
        subprocess.run([sys.executable, "-c", code], capture_output=True, env=env, check=True)
        return of_children() - began

    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(toy_site), *sys.path])}
    command = "from coterie.core.cli.main import main; main(['list'])"
    listed, nothing = (min(seconds(code) for _ in range(3)) for code in (command, ""))
    assert listed - nothing < (seconds("import torch") - nothing) / 3


def test_help_names_every_command(capsys: Capture) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown and text in shown for name, (text, _) in COMMANDS.items())
    assert main([]) == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: Capture) -> None:
    try:
        status = main([command, "--help"])
    except SystemExit as end:
        status = end.code  # type: ignore[assignment]
    assert status == 0
    assert f"usage: coterie {command}" in capsys.readouterr().out


def test_list_names_everything(toy: Paper, capsys: Capture) -> None:
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (known,) = (paper for paper in found["papers"] if paper["paper"] == "toyrec")
    assert known["methods"] == ["avg", "prox"]
    assert known["variants"] == ["ml-100k-mf", "mlp", "sample-mlp"]
    assert "ml-100k" in [entry["data set"] for entry in found["data"]]
    assert "smoke" in found["presets"]
    assert main(["list"]) == 0
    assert "toyrec" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("trian x", "command 'trian' is unknown: did you mean 'train'?"),
        ("train toyrek", "paper 'toyrek' is not installed: did you mean 'toyrec'?"),
        ("train tyo", "paper 'tyo' is not installed: did you mean 'toy'?"),
        ("train toy --rounds x", "--rounds: expected a whole number, not 'x'"),
        ("train toyrec --beta 1", "unknown setting '--beta': did you mean '--algorithm.beta'?"),
        ("table toyrec --table 2 --bta 1",
         "unknown setting '--bta': did you mean '--algorithm.beta'?"),
        ("table toyrec --table two",
         "argument --table: expected a whole number above 0, not 'two' "
         "(see coterie table PAPER --help)"),
        ("table toyrec --table 2 --seeds x",
         "argument --seeds: expected how many seeds, as 5, or the seeds, as '0 1 2', not 'x' "
         "(see coterie table PAPER --help)"),
        ("evaluate --rn x", "the following arguments are required: --run "
         "(see coterie evaluate --help)"),
        ("evaluate --run x --jsn", "unknown argument '--jsn': did you mean '--json'?"),
        ("evaluate --run x", "there is no run x: check the path"),
        ("recommend --run . --user 1",
         ". is not the folder of a run: it has no config.yaml"),
        ("privacy toyrec", "toyrec names no client class, so its protocol is not known"),
        ("data ml-100", "data set 'ml-100' is neither a known name nor a file: "
         "did you mean 'ml-100k'?"),
        ("data sample --data.min_interactions x",
         "--min_interactions: expected a whole number, or null, not 'x'"),
        ("sweep toyrec --file no.yaml", "there is no file no.yaml: check the path"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(toy: Paper, capsys: Capture, argv: str, message: str) -> None:
    assert error(capsys, *argv.split()) == message


def test_paper_must_be_named(toy: Paper, capsys: Capture) -> None:
    for argv in (["train"], ["train", "--seed", "1"]):
        assert error(capsys, *argv).startswith("say which paper: coterie train ")


def test_help_of_a_command(toy: Paper, capsys: Capture) -> None:
    shown = []
    for argv in (["help", "table"], ["table", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert ended.value.code == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != ""


def test_a_name_is_suggested_once_and_only_if_it_is_near(toy: Paper, capsys: Capture) -> None:
    names = error(capsys, "train", "TOYREC").partition("known: ")[2].split(", ")
    assert len(names) == len(set(names))
    assert {"toyrec", "toy", "page"} <= set(names)
    assert "did you mean" not in error(capsys, "privacy", "nope")


def test_list_fits_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    shown = set(" ".join(lines).replace(",", " ").split())
    for paper in papers().values():
        assert shown >= {paper.name, *paper.methods, *variants(paper)}  # no name is cut


def test_data_has_no_empty_column(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    assert main(["data"]) == 0
    assert "problem" not in capsys.readouterr().out


def test_a_paper_without_its_configuration_says_so(trained: Trained, capsys: Capture) -> None:
    words = "there is no configs/toyrec.yaml"
    assert main(["train", "toyrec"]) == 0
    assert words not in capsys.readouterr().out
    files("coterie.toy").joinpath("configs", "toyrec.yaml").unlink()  # type: ignore[attr-defined]
    assert main(["train", "toyrec"]) == 0
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    "broken",
    [
        lambda: torch.empty(1 << 50),
        lambda: torch.empty(1 << 61, 8),
        lambda: bytearray(1 << 60),
    ],
)
def test_what_cannot_be_allocated_is_one_line(
    toy: Paper, monkeypatch: pytest.MonkeyPatch, capsys: Capture, broken: Callable[[], Any]
) -> None:
    fake(monkeypatch, "training.train", train=lambda *_: broken())
    assert error(capsys, "train", "toyrec").startswith("this machine has too little memory")


def test_train_gets_paper_and_settings(trained: Trained, capsys: Capture) -> None:
    assert main(["train", "toy", "--data", "ml-100k", "--seed", "4"]) == 0
    (settings,) = trained
    assert (settings.data.name, settings.seed, settings.model.lr) == ("ml-100k", 4, 0.5)
    assert capsys.readouterr().out == (
        "Settings: configs/toyrec/ml-100k-mf.yaml (--variant none for the general ones)\n"
    )


def test_print_config_trains_nothing(trained: Trained, capsys: Capture) -> None:
    assert main(["train", "toyrec", "--print_config", "--rounds", "3"]) == 0
    assert "rounds: 3\n" in capsys.readouterr().out
    assert trained == []


def test_resume_takes_the_stored_settings(toy: Paper, trained: Trained) -> None:
    settings = ["--data", "ml-100k", "--model.lr", "0.7", "--run.name", "mine"]
    assert main(["train", "toyrec", *settings]) == 0
    again = ["--resume", "--run.name", "mine", "--rounds", "99"]
    assert main(["train", "toyrec", *again]) == 0
    first, second = trained
    assert (second.data.name, second.model.lr, second.rounds) == ("ml-100k", 0.7, 99)
    assert (first.rounds, first.run.resume, second.run.resume) == (10, False, True)
    assert [p.name for p in Path("runs/toyrec").iterdir()] == ["mine"]


def test_resume_elsewhere_and_without_a_name(toy: Paper, trained: Trained, capsys: Capture) -> None:
    assert main(["train", "toyrec", "--out", "else", "--algorithm.beta", "0.5"]) == 0
    (run,) = Path("else/toyrec").iterdir()
    (run / "summary.json").unlink()
    assert main(["train", "toyrec", "--out", "else", "--resume"]) == 0
    assert [s.algorithm.beta for s in trained] == [0.5, 0.5]
    message = error(capsys, "train", "toyrec", "--resume")
    assert message.startswith("no unfinished run runs/toyrec/sample-avg-mf-seed0 with these ")


def test_a_finished_run_without_a_name_goes_on_if_more_rounds_are_given(
    toy: Paper, trained: Trained, capsys: Capture
) -> None:
    started = ["train", "toyrec", "--rounds", "5", "--algorithm.beta", "0.5"]
    assert main(started) == 0
    # The default of ten rounds is not asked for.
    assert error(capsys, "train", "toyrec", "--resume").startswith("no unfinished run ")
    assert error(capsys, *started, "--resume").startswith("no unfinished run ")
    assert main(["train", "toyrec", "--rounds", "7", "--resume"]) == 0
    assert [(s.rounds, s.algorithm.beta) for s in trained] == [(5, 0.5), (7, 0.5)]
    assert len(list(Path("runs/toyrec").iterdir())) == 1


@pytest.mark.parametrize(
    ("stop", "advice"),
    [
        (KeyboardInterrupt(), " before anything was saved; to begin again, say: {}"),
        (Interrupted(saved=False), " before a round was saved; to begin again, say: {} --resume"),
        (Interrupted(saved=True), "; to go on, say: {} --resume"),
    ],
)
def test_interruption_says_how_to_go_on(
    toy: Paper,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    stop: KeyboardInterrupt,
    advice: str,
) -> None:
    def interrupt(*_: Any) -> None:
        raise stop

    fake(monkeypatch, "training.train", train=interrupt)
    assert main(["train", "toyrec", "--data", "my file.csv"]) == 130
    again = "coterie train toyrec --data 'my file.csv'"
    assert capsys.readouterr().err == f"coterie: interrupted{advice.format(again)}\n"


def test_bugs_keep_their_traceback(toy: Paper, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: Any) -> None:
        raise ZeroDivisionError

    fake(monkeypatch, "training.train", train=bug)
    with pytest.raises(ZeroDivisionError):
        main(["train", "toyrec"])


def test_error_of_many_lines_becomes_one(
    toy: Paper, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def fail(*_: Any) -> None:
        raise UserError("first\n  second")

    fake(monkeypatch, "training.train", train=fail)
    assert error(capsys, "train", "toyrec") == "first second"


def test_evaluate_and_recommend(
    toy: Paper, trained: Trained, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def recommend(
        run: Path, *, user: str | None, new_user: Path | None, top: int
    ) -> tuple[list[Any], list[str]]:
        rows = [{"rank": k + 1, "item": f"{run.name}-{user}-{new_user}"} for k in range(top)]
        return rows, []

    fake(monkeypatch, "run.serving", evaluate=lambda run: {"ndcg": 0.25}, recommend=recommend)
    main(["train", "toyrec", "--run.name", "mine"])
    capsys.readouterr()
    run = "runs/toyrec/mine"
    assert main(["evaluate", "--run", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ndcg": 0.25, "notes": []}
    assert main(["recommend", "--run", run, "--user", "42", "--top", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = [{"rank": 1, "item": "mine-42-None"}, {"rank": 2, "item": "mine-42-None"}]
    assert found == {"recommendations": rows, "notes": []}
    assert error(capsys, "recommend", "--run", run, "--new-user", "no.csv") == (
        "there is no file no.csv: check the path"
    )


def test_table_and_bench(toy: Paper, capsys: Capture) -> None:
    flags = ["--table", "2", "--data", "ml-1m", "--seeds", "0 7", "--json"]
    assert main(["table", "toyrec", *flags]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert found == {
        **{"method": "avg", "data": "ml-1m", "metric": "ndcg", "mean": 0.5},
        **{"sd": None, "seeds": 2, "paper": None},
    }
    assert "| avg | ml-1m |" in Path("runs/toyrec/tables/table2.md").read_text()
    assert main(["bench", "toyrec", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["ratio"] == 20.0
    assert main(["bench", "toyrec", "--out", "other"]) == 0
    assert "Written to other/toyrec/bench/bench.md" in capsys.readouterr().out


def test_sweep_goes_through_the_grid_and_on_where_it_was(trained: Trained, capsys: Capture) -> None:
    argv = ["sweep", "toyrec", "--seeds", "2", "--json"]
    assert main(argv) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(r["algorithm.beta"], r["seed"], r["eval/ndcg@20"]) for r in rows] == [
        *((0.1, 0, 0.1), (0.1, 1, 0.0), (0.2, 0, 0.2), (0.2, 1, 0.1)),
    ]
    assert {(s.rounds, s.model.name, s.model.lr) for s in trained} == {(3, "mlp", 0.25)}
    assert main(argv[:-1]) == 0
    assert len(trained) == 4  # nothing was trained again
    lines = Path("runs/toyrec/sweep/sweep.md").read_text().splitlines()
    cells = [line.strip("| ").split("|") for line in lines[4:]]
    found = [[float(cell) for cell in (row[0], *row[-3:])] for row in cells]
    expected = [[0.2, 0.15, 0.1 / 2**0.5, 2], [0.1, 0.05, 0.1 / 2**0.5, 2]]  # best first
    assert found == [pytest.approx(row, abs=1e-4) for row in expected]
    assert main([*argv, "--rounds", "5"]) == 0
    assert len(trained) == 8


def test_sweep_says_what_only_a_server_of_wandb_does(trained: Trained, capsys: Capture) -> None:
    grid = Path("s.yaml")
    text = "method: grid\nmetric: {name: eval/ndcg@20}\nparameters: {seed: {value: 3}}\n"
    for more, said in (("", False), ("early_terminate: {type: hyperband, min_iter: 3}\n", True)):
        grid.write_text(text + more)
        assert main(["sweep", "toyrec", "--file", "s.yaml"]) == 0
        assert ("'early_terminate' has no effect" in capsys.readouterr().out) == said


def test_sweep_names_the_mistake(toy: Paper, capsys: Capture) -> None:
    head = "method: grid\nmetric: {name: a}\n"
    for text, message in (
        ("method: gird", "s.yaml: method 'gird' is unknown: did you mean 'grid'?"),
        ("method: grid", "s.yaml: expected 'parameters', as 'seed: {values: [0, 1]}'"),
        (
            head + "parameters: {algorithm.bta: {value: 1}}",
            "unknown setting 'algorithm.bta' in s.yaml: did you mean 'algorithm.beta'?",
        ),
        (
            head + "parameters: {model.lr: {min: 0.1, max: 1.0}}",
            "a grid cannot go through the range of 'model.lr': give its values, or use method "
            "random",
        ),
        (
            head + "parameters: {model.lr: {min: 2, max: 1}}",
            "s.yaml: 'model.lr' needs values, or min and max as numbers, min below max",
        ),
        (
            head + "parameters: {model.lr: {distribution: unifrom, min: 1, max: 2}}",
            "s.yaml: distribution 'unifrom' of 'model.lr' is unknown: did you mean 'uniform'?",
        ),
    ):
        Path("s.yaml").write_text(text)
        assert error(capsys, "sweep", "toyrec", "--file", "s.yaml") == message


def test_privacy_without_a_paper_shows_all(capsys: Capture) -> None:
    assert main(["privacy", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["paper"] for row in rows} >= {"f3crec", "page", "pplr"}


def test_privacy_lists_the_uploads_of_a_real_paper(capsys: Capture) -> None:
    assert main(["privacy", "continual", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    up = {(row["step"], row["field"]) for row in rows if row["direction"] == "up"}
    assert ("update", "items") in up
    assert all(row["reveals"] != "-" for row in rows if row["direction"] == "up")


def test_privacy_says_which_steps_have_noise(capsys: Capture) -> None:
    assert main(["privacy", "f3crec", "--privacy.steps", "[update]", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {r["step"] for r in rows if r["noise"] == "covered"} == {"update"}
    assert error(capsys, "privacy", "f3crec", "--privacy.steps", "updat") == (
        "privacy.steps: no step is called 'updat': did you mean 'update'?"
    )
    assert main(["privacy", "f3crec"]) == 0
    assert "privacy.clip_by entry" in capsys.readouterr().out


def test_privacy_shows_the_uploads_of_a_method(capsys: Capture) -> None:
    assert main(["privacy", "mtal", "--method", "sums", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["step"] for row in rows if row["direction"] == "up"} == {"join", "measure", "sum"}
    assert error(capsys, "privacy", "mtal", "--method", "sms") == (
        "mtal has no method 'sms': did you mean 'sums'?"
    )
    assert "name it, as in coterie privacy mtal" in error(capsys, "privacy", "--method", "sums")


def test_a_paper_can_have_commands_of_its_own(toy: Paper, capsys: Capture) -> None:
    for words in (["llm"], ["pplr", "--help"]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"usage: coterie {words[0]} COMMAND")
        for command, text in find_paper("llm").commands.items():
            assert f"  {command} " in shown
            assert text in shown
    assert error(capsys, "llm", "cots") == "llm has no command 'cots': did you mean 'cost'?"
    assert error(capsys, "toyrec", "cost") == (
        "toyrec has no commands of its own: say coterie train toyrec"
    )
    assert error(capsys, "lm", "cost") == "command 'lm' is unknown: did you mean 'llm'?"


@pytest.mark.parametrize("command", find_paper("llm").commands)
def test_every_command_of_a_paper_explains_itself(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["llm", command, "--help"])
    assert ended.value.code == 0
    assert f"usage: coterie llm {command}" in capsys.readouterr().out


def test_data_shows_blocks(capsys: Capture) -> None:
    assert main(["data", "sample", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["block"] for row in rows] == [0, 1, 2, 3]
    assert rows[-1]["users"] >= rows[0]["users"] > 0


@pytest.mark.real_data
def test_data_equals_table_1_of_the_paper(data_root: Path, capsys: Capture) -> None:
    assert main(["data", "ml-100k", "--data_root", str(data_root), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["users"] for row in rows] == [587, 697, 827, 943]
    assert [row["items"] for row in rows] == [1136, 1146, 1148, 1152]


def test_doctor_finds_what_is_wrong(toy: Paper, capsys: Capture) -> None:
    Path("file").touch()
    assert main(["doctor", "--json", "--out", "file/runs"]) == 0
    rows = json.loads(capsys.readouterr().out)
    found = {row["check"]: row for row in rows}
    assert found["run folder"]["state"] == "look"
    assert found["run folder"]["found"] == "file/runs cannot be written: not a directory"
    assert "toyrec" in found["papers"]["found"]
    assert found["torch"]["state"] == "ok"
    assert not Path("runs").exists()


def test_determinism_compares_all_but_times(
    toy: Paper, trained: Trained, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert main(["doctor", "--determinism", "toyrec"]) == 0
    assert "gave the same" in capsys.readouterr().out
    assert [s.rounds for s in trained] == [2, 2]

    def drifting(paper: Paper, settings: Any) -> None:
        run = RunFolder.for_settings(paper, settings)
        (run.path / "metrics.csv").write_text(f"round,loss\n1,{settings.run.name}\n")
        run.write_summary(Summary(2, {}, {}, 1, 1, 1.0))

    fake(monkeypatch, "training.train", train=drifting)
    with pytest.raises(UserError) as caught:
        doctor.check(toy)
    assert str(caught.value) == (
        "two equal runs of toyrec differ in 'loss in row 1': first and second"
    )


def test_output_into_a_closed_pipe_is_no_error(toy_site: Path) -> None:
    code = "import sys; from coterie.core.cli.main import main; sys.exit(main(['list', '--json']))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(toy_site), *sys.path])}
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, env=env, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("text", ["x", "", "0", "1 x", "-1"])
def test_seeds_that_are_none(text: str) -> None:
    with pytest.raises(Exception, match="expected how many seeds"):
        seeds(text)
