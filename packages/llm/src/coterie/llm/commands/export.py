"""``coterie llm export``: save a client's adapter, or its whole model."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.core.cli.command import JSON_HELP, Arguments, aside, print_json, tell

ABOUT = (
    "Save a client's adapter of the best round as a folder of peft, with the frozen model that it "
    "is of in DIR/base if that has no published name; or with --merged its whole model as a folder "
    "of transformers. What was saved is read back and must give the same scores."
)
_CHECKED = 64  # examples on which what was saved is compared


def run(argv: Sequence[str]) -> None:
    """Run the command.

    Raises:
        UserError: there is no such run or client, there is nothing to export, or the folder is
            there already.
    """
    parser = Arguments("llm export", ABOUT)
    parser.add_argument("--run", type=Path, required=True, metavar="RUN", help="trained run")
    parser.add_argument("--client", type=int, required=True, help="whose adapter, from 0")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="a new folder")
    parser.add_argument("--merged", action="store_true", help="the whole model, adapter merged")
    parser.add_argument(
        "--state", type=Path, metavar="DIR", help="what `llm serve` has kept of a run split there"
    )
    parser.add_argument("--server", dest="state", type=Path, default=SUPPRESS, help=SUPPRESS)
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    given = parser.parse_args(list(argv))
    with aside(given.json):
        found = _export(given)
    if given.json:
        print_json(found)
        return
    what = "model" if given.merged else "adapter"
    exact = "bit for bit" if not found["difference"] else f"to {found['difference']:.1e}"
    tell(f"Saved the {what} of client {given.client}, round {found['round']}, in {found['folder']}")
    tell(f"Read back, it answers as before, {exact}.")
    if found["items"]:
        tell(f"Its items are scored by their embeddings in {found['items']}, frozen in stage 2.")


def _export(given: Any) -> dict[str, object]:
    # Torch only where it is needed: --help does not wait for it.
    from transformers.utils import logging

    from coterie.llm.export import EMBEDDINGS, export_adapter, export_merged
    from coterie.llm.trained_run import TrainedRun

    logging.disable_progress_bar()
    client, to, merged = given.client, given.to.expanduser(), given.merged
    trained = TrainedRun(given.run, given.state)
    trained.check_trained(client)
    backbone, examples = trained.backbone(client), trained.examples(client, _CHECKED)
    origin = {"run": given.run.resolve().name, "client": client, "round": trained.best_round}
    items, difference = trained.experiment.interactions, 0.0
    if merged:
        difference = export_merged(backbone, examples, items, origin, to)
    else:
        export_adapter(backbone, examples, items, origin, to)
    frozen = None if backbone.frozen_items is None else EMBEDDINGS
    what = {"merged": merged, "difference": difference, "items": frozen}
    return {**origin, "folder": str(to), **what}
