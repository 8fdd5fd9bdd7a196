"""Folders that ``save_to_disk`` of Hugging Face's ``datasets`` made, read without that package.

A `Dataset` is Arrow streams, whose order ``state.json`` has, and ``dataset_info.json``, which
has the columns. A ``DatasetDict`` is a folder of those and ``dataset_dict.json``. What the
package leaves beside them (``cache-*.arrow``) is no part of the data.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from coterie.core.data.sources.text_files import NoRows
from coterie.core.errors import UserError

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_AGAIN = "save it again by save_to_disk"
_BATCH = 1 << 16  # rows that are written at once


def is_saved_set(folder: Path) -> bool:
    """Whether a folder was made by ``save_to_disk``, be it whole or not."""
    if any((folder / name).is_file() for name in (INFO, SPLITS)):
        return True
    return (folder / STATE).is_file() and any(folder.glob("*.arrow"))


def saved_parts(folder: Path) -> list[Path]:
    """List the files of a `Dataset` in the order of its rows.

    Raises:
        UserError: it is a ``DatasetDict``, whose splits are never joined; or something is
            missing, damaged, or has other columns than the folder says.
    """
    if (folder / SPLITS).is_file():
        raise UserError(_choice(folder))
    state, info = _json(folder / STATE), _json(folder / INFO)
    if any(state.get(key) for key in ("_indices_files", "_indices_data_files")):
        raise UserError(
            f"{folder} has rows chosen by indices, as old versions of datasets saved them: load "
            "it, call flatten_indices(), and save it again"
        )
    parts = [_part(folder, entry) for entry in _listed(folder, state)]
    if not parts:
        raise NoRows(f"{folder} has no rows: check the data set that was saved")
    columns = info.get("features")
    for part in parts:
        _check_columns(folder, part, set(columns) if isinstance(columns, dict) else None)
    return parts


def _choice(folder: Path) -> str:
    """Say which splits there are to choose from."""
    found = _json(folder / SPLITS).get("splits")
    names = [str(name) for name in found] if isinstance(found, list) else []
    if not names:
        return f"{folder / SPLITS} names no splits: {_AGAIN}"
    return (
        f"{folder} is a DatasetDict with the splits {', '.join(names)}: name the folder of one, "
        f"such as {folder / names[0]}"
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"{path.parent} has no {path.name}, so it is no whole folder of a Dataset: {_AGAIN}, "
            "or name one of its files"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check the path") from None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged or cut off: {_AGAIN}")
    return found


def _listed(folder: Path, state: dict[str, Any]) -> list[str]:
    found = state.get("_data_files")
    entries = found if isinstance(found, list) else [None]
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
    # A name alone: what lies elsewhere is not the folder's own.
    if any(not isinstance(name, str) or Path(name).name != name for name in names):
        raise UserError(f"{folder / STATE} does not list the files of the data: {_AGAIN}")
    if len(set(names)) < len(names):
        raise UserError(f"{folder / STATE} lists a file twice: {_AGAIN}")
    return [str(name) for name in names]


def _part(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise UserError(f"{folder} lacks {name}, which its {STATE} lists: {_AGAIN}")
    return path


def _check_columns(folder: Path, part: Path, columns: set[str] | None) -> None:
    """Refuse a part that is no Arrow stream, be it empty, or has not the columns that it should."""
    try:
        with pa.OSFile(str(part), "rb") as source:
            has = set(pa.ipc.open_stream(source).schema.names)
    except (OSError, EOFError, pa.ArrowException):
        raise UserError(f"{part} is no whole Arrow stream: {_AGAIN}") from None
    if odd := sorted(has ^ (has if columns is None else columns)):
        what = "has" if odd[0] in has else "lacks"
        raise UserError(
            f"{folder} is a folder of which {part.name} {what} the column '{odd[0][:40]}', unlike "
            f"its {INFO}: {_AGAIN}"
        )


def write_saved(table: pa.Table, folder: Path, fingerprint: str) -> None:
    """Write a table into a folder as ``Dataset.save_to_disk`` does.

    Args:
        table: of any columns.
        folder: is there, and empty.
        fingerprint: by which ``datasets`` knows the rows; its first 16 letters are written.
    """
    name = "data-00000-of-00001.arrow"
    with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as file:
        file.write_table(table, max_chunksize=_BATCH)
    state: dict[str, object] = {
        "_data_files": [{"filename": name}],
        "_fingerprint": fingerprint[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    info = {"citation": "", "description": "", "homepage": "", "license": ""}
    for file_name, content in ((STATE, state), (INFO, info)):
        (folder / file_name).write_text(json.dumps(content, indent=2) + "\n")
