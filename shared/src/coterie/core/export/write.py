"""Write a trained run as a folder for other programs: checked, whole or not at all."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors.numpy
import safetensors.torch
import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError
from coterie.core.export.card import NAME as CARD
from coterie.core.export.card import Content, card, check_format
from coterie.core.export.onnx_file import NAME as GRAPH
from coterie.core.export.onnx_file import ROUNDING, described, difference, write_onnx
from coterie.core.files import new_folder, write_json, write_text
from coterie.core.registry.papers import load
from coterie.core.run.exported import Asked, Exported
from coterie.core.run.runfolder import RunFolder, paper_of

MODEL, OWN, ITEMS, ORIGIN = "model.safetensors", "own.safetensors", "items.csv", "coterie.json"
_GRAPH_LOADING = """\
import onnxruntime

session = onnxruntime.InferenceSession("{file}")
({output},) = session.run(None, {{{inputs}}})
"""


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        folder: where.
        tested: which round it is of.
        whose: client or user whose own state is in it too; "" where all is public.
        difference: of the largest score read back, as a share of the largest; 0 = bit for bit.
        files: names, the card among them.
    """

    folder: str
    tested: str
    whose: str
    difference: float
    files: tuple[str, ...]


def export(
    run: Path, to: Path, form: str, asked: Asked | None = None, kept: Path | None = None
) -> Written:
    """Write the model of a run's tested round into a new folder, with a card.

    Nothing private leaves unless it is asked for. What was written is read back and compared before
    the folder gets its name.

    Args:
        run: folder of the run.
        to: the new folder.
        form: safetensors, onnx, or one of the paper's own formats.
        asked: whose own state is to be written too; None = nobody's.
        kept: what another process kept of the run.

    Raises:
        UserError: there is no such run, client, user or format, nothing can be given, what was read
            back differs, or the folder is there already or cannot be written.
    """
    paper, asked = paper_of(run), asked or Asked()
    check_format(paper, form)
    with new_folder(to) as folder:
        found: Exported = load(paper.export)(run, asked, kept)
        known = RunFolder.open(run)
        if form in found.writers:
            apart = found.writers[form](folder)
        elif form == "safetensors":
            _check_scores(found)
            apart = _write_tensors(found, folder)
        elif form == "onnx":
            apart, found = _write_graph(found, folder)
        else:
            raise UserError(f"{run} holds nothing that is written as {form}: leave --format out")
        if found.items is not None and not (folder / ITEMS).exists():
            _write_items(found.items, folder)
        origin = {"run": known.path.absolute().name, "paper": paper.name, "of": found.tested}
        write_json(folder / ORIGIN, {**origin, "format": form, "whose": asked.name or None})
        content = _content(found, form, asked, folder)
        write_text(folder / CARD, card(paper, known, content))
        files = tuple(sorted(path.name for path in folder.iterdir()))
    return Written(str(to), found.tested, asked.name, apart, files)


def _write_tensors(found: Exported, folder: Path) -> float:
    """Write tensors by name, and read them back bit for bit."""
    for file, tensors in ((MODEL, found.tensors), (OWN, found.own)):
        if not tensors:
            continue
        _check_finite(tensors)
        held = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        safetensors.torch.save_file(held, folder / file, metadata={"format": "pt"})
        read = safetensors.numpy.load_file(folder / file)
        same = read.keys() == held.keys() and all(
            torch.equal(torch.from_numpy(read[name]), value) for name, value in held.items()
        )
        if not same:
            raise UserError(f"{file} read back does not hold the same numbers: not exported")
    return 0.0


@torch.no_grad()
def _check_scores(found: Exported) -> None:
    """Refuse tensors whose network does not give the scores that the run gives."""
    if (graph := found.graph) is None:
        return
    scores = graph.network.eval()(*graph.inputs.values())
    apart = difference(scores.numpy(), graph.expected.numpy())
    if not apart <= ROUNDING:
        raise UserError(f"the tensors give scores that differ by {apart:.1e}: not exported")


def _write_graph(found: Exported, folder: Path) -> tuple[float, Exported]:
    """Write the graph; give what was exported with the inputs that it reads."""
    if found.graph is None:
        raise UserError(f"what scores cannot be written as a graph: {found.no_graph}")
    _check_finite(found.graph.network.state_dict())
    written = write_onnx(found.graph, folder)
    if found.own:
        _write_tensors(replace(found, tensors={}), folder)
    read = {name: found.graph.inputs[name] for name in written.inputs}
    return written.difference, replace(found, graph=replace(found.graph, inputs=read))


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    for name, value in tensors.items():
        if not bool(value.isfinite().all()):
            raise UserError(
                f"the model has numbers in '{name}' that are not finite: train it again, with a "
                "smaller learning rate"
            )


def _write_items(items: Interactions, folder: Path) -> None:
    """Write which number is which item."""
    titles = items.titles
    with (folder / ITEMS).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["number", "item", *(["title"] if titles is not None else [])])
        for number, name in enumerate(items.item_names):
            writer.writerow([number, name, *([titles[number]] if titles is not None else [])])


def _content(found: Exported, form: str, asked: Asked, folder: Path) -> Content:
    own = {
        MODEL: "the model; its tensors are below" if found.tensors else "the whole network",
        GRAPH: "the network that scores, checked against the run's own scores",
        OWN: f"what is {asked.name}'s own",
        ITEMS: "which number is which item, with its title where it is known",
        ORIGIN: "the run it is of",
        **found.files,
    }
    there = {path.name for path in folder.iterdir()}
    shown = {name: about for name, about in own.items() if name in there}
    graph = found.graph if form == "onnx" else None
    if graph is not None:
        what = described({**graph.inputs, graph.output: graph.expected}, graph.free)
        about = {graph.output: "what it gives", **graph.about}
        parts = {name: f"{what[name]}; {about[name]}" for name in what}
        tables = {"input, output": parts}
        given = ", ".join(f'"{name}": {name}' for name in graph.inputs)
        loading = _GRAPH_LOADING.format(file=GRAPH, output=graph.output, inputs=given)
    else:
        tensors = {} if form in found.writers else {**found.tensors, **found.own}
        parts = {n: f"{_shape(t)} {found.about.get(n, '')}".strip() for n, t in tensors.items()}
        tables = {"tensor": parts} if parts else {}
        loading = found.loadings.get(form, found.loading)
    library = found.libraries.get(form, "onnx" if graph is not None else "coterie")
    return Content(
        library=library,
        tested=found.tested,
        whose=asked.name,
        files={CARD: "this card", **shown},
        tables=tables,
        absent=(*found.absent, *found.lacking.get(form, ())),
        loading=loading,
        ranks=found.items is not None,
    )


def _shape(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
