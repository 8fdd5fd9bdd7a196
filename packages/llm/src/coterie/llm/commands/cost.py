"""``coterie llm cost``: what FedAvg and PPLR cost a client, over k (PPLR, Table 2, Figure 3b)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.core.cli.command import (
    JSON_HELP,
    Arguments,
    aside,
    positive,
    print_json,
    print_rows,
    tell,
)
from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper, load
from coterie.core.settings.configuration import configure
from coterie.llm.cost.formulas import Cost, costs, spread_of_splits, verdict

_Shown = tuple[str, list[dict[str, Any]], list[dict[str, Any]], list[str]]
"""Title, rows for people, rows for programs, notes."""

_FIRST = ("storage MB", "round MB", "x FedAvg", "cheaper for", "client ms", "memory MB")
ABOUT = (
    "Compare what FedAvg and PPLR cost a client over k, the layers below the server's: storage, "
    "layers run, bytes sent. Every setting of `coterie train pplr` may be given too."
)


def run(argv: Sequence[str]) -> None:
    """Run the command.

    Raises:
        UserError: an argument or a setting is bad, or the model cannot be had or split.
    """
    given, flags = _parser().parse_known_args(list(argv))
    if given.measure and given.hf:
        raise UserError("--measure runs the model of the settings: leave --hf out")
    paper = find_paper("llm")
    settings = configure(paper, flags).settings
    # Torch only where it is needed: --help does not wait for it.
    import torch

    torch.set_num_threads(settings.engine.threads)
    with aside(given.json):
        experiment = load(paper.experiment)(settings)
        title, rows, plain, notes = (_measured if given.measure else _derived)(experiment, given)
    if given.json:
        print_json(plain)
        return
    print_rows(rows, title, first=_FIRST)
    for line in notes:
        tell(line)


def _parser() -> Arguments:
    parser = Arguments("llm cost", ABOUT)
    parser.add_argument("--k", type=positive, nargs="+", help="values of k (default: all, or 12)")
    parser.add_argument(
        "--hf",
        metavar="NAME",
        help="a Hugging Face model instead of the settings': a name on the hub, a config.json or "
        "its folder, or a kind such as llama (LLaMA-7B); nothing of it is loaded",
    )
    parser.add_argument(
        "--tokens", type=positive, help="with --hf: tokens of an example (default: of its prompt)"
    )
    parser.add_argument(
        "--bytes", type=int, choices=(1, 2, 4), default=2, help="with --hf: a number (default: 2)"
    )
    parser.add_argument("--full", action="store_true", help="with --hf: train all, not LoRA")
    parser.add_argument(
        "--measure", action="store_true", help="measure a client's step: time and memory, and draw"
    )
    parser.add_argument(
        "--repeats", type=positive, default=5, help="timed steps for each k (default: 5)"
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    return parser


def _derived(experiment: Any, given: Any) -> _Shown:
    """Table 2, derived from sizes."""
    from coterie.llm.cost.inputs import of_config, of_experiment

    if given.hf:
        how = {"full": given.full, "bytes": given.bytes, "tokens": given.tokens}
        inputs = of_config(experiment, given.hf, **how)
    else:
        inputs = of_experiment(experiment)
    tokens, notes = inputs.round_tokens, inputs.notes
    table = costs(inputs.size, inputs.usage, given.k or spread_of_splits(inputs.size))
    rows = [{**cost.shown(table[0]), "cheaper for": _cheaper(cost, tokens)} for cost in table]
    more = {"tokens": tokens, "notes": notes}
    plain = [{**cost.plain(), "round": cost.round, **more} for cost in table]
    return inputs.title, rows, plain, [*notes, verdict(table)]


def _measured(experiment: Any, given: Any) -> _Shown:
    """Figure 3b, measured."""
    from coterie.core.tables.pictures import plot_panels
    from coterie.llm.cost.inputs import measured
    from coterie.llm.cost.measuring import step_panels

    found = measured(experiment, given.k, given.repeats)
    settings = experiment.settings
    folder = settings.run.folder / "pplr" / "cost"
    path = folder / f"{Path(settings.data.name).stem}-{settings.model.name}.png"
    what = "What a client's training step costs (its own part)"
    plot_panels(step_panels(found, "FedAvg (whole model)"), what, path)
    title = f"A training step of a client, {settings.train.batch_size} examples"
    rows, plain = [step.shown() for step in found], [step.plain() for step in found]
    return title, rows, plain, [f"Drawn in {path}"]


def _cheaper(cost: Cost, tokens: Sequence[float]) -> str | None:
    """For how many of the clients less is sent than in FedAvg."""
    if cost.k is None:
        return None
    return f"{sum(count < cost.break_even for count in tokens)} of {len(tokens)}"
