"""The model card of an exported run, in the format of Hugging Face's hub. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from coterie.core.errors import UserError
from coterie.core.registry.data_sets import data_sets, hub_name, is_hub_name, stem
from coterie.core.registry.keys import KEYS, MetricKey
from coterie.core.registry.papers import Paper
from coterie.core.run.lasting import fixed
from coterie.core.run.runfolder import RunFolder
from coterie.core.settings.schema import values_of

NAME = "README.md"
_RIVAL = "test/popularity/"  # numbers of a rule that is measured beside the model
_TASKS = {True: "recommendation", False: "classification"}


@dataclass(frozen=True)
class Content:
    """What a card says of the files beside it.

    Attributes:
        library: that reads them, by the hub's name of it.
        tested: which round they are of.
        whose: client or user whose own they are too; "" where all is public.
        files: what each file holds, by its name.
        tables: heading -> name of a part -> what it is.
        absent: what is not given, a line each.
        loading: lines of Python.
        ranks: whether it recommends items.
    """

    library: str
    tested: str
    whose: str
    files: Mapping[str, str]
    tables: Mapping[str, Mapping[str, str]]
    absent: tuple[str, ...]
    loading: str
    ranks: bool


def card(paper: Paper, folder: RunFolder, content: Content) -> str:
    """Write the card of what was exported of a run.

    It names data, settings and numbers, and no place on this machine.
    """
    values = values_of(folder.settings)
    metrics = _tests(folder)
    head = yaml.safe_dump(
        _metadata(paper, folder, values, metrics, content), sort_keys=False, allow_unicode=True
    )
    return f"---\n{head}---\n\n" + "\n".join(_body(paper, folder, values, metrics, content))


def _tests(folder: RunFolder) -> dict[str, float]:
    """What a finished run measured on test data."""
    if not folder.finished:
        return {}
    found = folder.read_json("summary.json")["metrics"]
    return {n: v for n, v in found.items() if n.startswith("test/") and v is not None}


def _metadata(
    paper: Paper,
    folder: RunFolder,
    values: Mapping[str, Any],
    metrics: Mapping[str, float],
    content: Content,
) -> dict[str, Any]:
    name, data = folder.path.absolute().name, str(values.get("data.name"))
    found: dict[str, Any] = {
        "license": "unknown",
        "library_name": content.library,
        "tags": ["coterie", "federated-learning", _TASKS[content.ranks], paper.name],
    }
    if is_hub_name(data):
        found["datasets"] = [hub_name(data).repository]
    kinds = {
        key: _kind(key) for key in metrics if "round" not in key and not key.startswith(_RIVAL)
    }
    if kinds:
        found["metrics"] = sorted(set(kinds.values()))
        results = [
            {"type": kind, "name": key, "value": metrics[key]} for key, kind in kinds.items()
        ]
        task = {"type": _TASKS[content.ranks], "name": _TASKS[content.ranks].capitalize()}
        of = {"type": stem(data), "name": _named(data)}
        found["model-index"] = [
            {"name": name, "results": [{"task": task, "dataset": of, "metrics": results}]}
        ]
    return found


def _kind(key: str) -> str:
    """What is measured: ``test/block3/ndcg@20_unseen`` is ``ndcg``."""
    last = key.rpartition("/")[2]
    kinds = ("ndcg", "recall", "map", "rmse", "accuracy", "auc", "loss", "imbalance")
    return next((kind for kind in kinds if kind in last), last)


def _body(
    paper: Paper,
    folder: RunFolder,
    values: Mapping[str, Any],
    metrics: Mapping[str, float],
    content: Content,
) -> Iterator[str]:
    data = str(values.get("data.name"))
    yield f"# {folder.path.absolute().name}\n"
    yield (
        f"{_what(content)}, trained with coterie by the method of *{paper.title}* "
        f"({paper.reference}).\n"
    )
    yield "## What it was trained on, and how\n"
    yield f"- Data: {_named(data)}.{_terms(data)}"
    method = str(values.get("method"))
    of = "" if method == paper.name else f", among those of {paper.name}"
    yield f"- Method: {method}{of}. Seed: {values.get('seed')}."
    rounds = f", {folder.read_json('summary.json')['rounds']} run in all" if folder.finished else ""
    asked = f"{values.get('rounds')} asked for{rounds}"
    yield f"- Rounds: {asked}. This is the state of {content.tested}."
    if not folder.finished:
        yield "- The run had not come to its end, so nothing was tested."
    yield "- Settings that are not the defaults:\n"
    yield f"```yaml\n{yaml.safe_dump(_chosen(folder), sort_keys=False)}```\n"
    if metrics:
        yield "## Measured on test data\n"
        yield "| number | value | what it is |\n|---|---|---|"
        for key, value in metrics.items():
            yield f"| `{key}` | {value:.6g} | {_meaning(key, paper.keys)} |"
        yield ""
    yield "## What is in the files\n"
    yield "| file | |\n|---|---|"
    yield from (f"| `{name}` | {about} |" for name, about in content.files.items())
    for heading, rows in content.tables.items():
        yield f"\n| {heading} | |\n|---|---|"
        yield from (f"| `{name}` | {about} |" for name, about in rows.items())
    yield "\n## What is not in them\n"
    yield from (f"- {line}" for line in content.absent)
    yield "- Training data, uploads, and random states: nothing of them is written.\n"
    yield f"## How to load it\n\n```python\n{content.loading.strip()}\n```\n"
    yield from _limits(content)


def _what(content: Content) -> str:
    return f"What {content.whose} has learned" if content.whose else "A model"


def _limits(content: Content) -> Iterator[str]:
    yield "## Limits\n"
    yield "- The licence is for you to choose, within the terms of the data it was trained on."
    yield "- The numbers above are of one seed and one split of the data."
    if content.whose:
        yield f"- They are of the whole run, not of {content.whose} alone."
        yield (
            f"- This holds state of {content.whose}, which in a federation stays with it: it was "
            "exported because that was asked for. Do not publish it."
        )
    if content.ranks:
        yield "- It scores the items of items.csv alone; new items need training."
    yield (
        "- Parameters trained by a federation may tell of the data they were fitted to: without "
        "differential privacy there is no bound on it."
    )


def _named(data: str) -> str:
    """The name of a data set, or of a file without its place."""
    return data if data in data_sets() or is_hub_name(data) else Path(data).name


def _terms(data: str) -> str:
    known = data_sets().get(data)
    return f" Terms: {known.terms}" if known is not None else ""


def _chosen(folder: RunFolder) -> dict[str, Any]:
    """Settings that differ from the defaults, without places on this machine."""
    settings = folder.settings
    default = fixed(values_of(type(settings)()))
    found = fixed(values_of(settings))
    return {
        key: _placeless(value)
        for key, value in found.items()
        if value != default.get(key) and not isinstance(value, Mapping)
    }


def _placeless(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_placeless(one) for one in value]
    if isinstance(value, str) and ("/" in value or "\\" in value):
        path = Path(value).expanduser()
        return path.name if path.is_absolute() or path.exists() else value
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _meaning(key: str, known: tuple[MetricKey, ...]) -> str:
    if key.startswith(_RIVAL):
        return "to compare with: of popularity alone, not of this model"
    if key.startswith("test/average/"):
        return "mean over the blocks"
    return next((one.meaning for one in (*known, *KEYS) if fnmatch(key, one.name)), "")


def check_format(paper: Paper, wanted: str) -> None:
    """Refuse a format that nothing of a paper is written in.

    Raises:
        UserError: it is none; the others are named.
    """
    known = ("safetensors", "onnx", *paper.formats)
    if wanted not in known:
        raise UserError(f"{paper.name} is exported as {', '.join(known)}, not as '{wanted}'")
