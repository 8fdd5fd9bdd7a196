"""Conversions that are killed, interrupted, run twice at once, or meet a full disk."""

import errno
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.core.data.packed_text import packed

from coterie.core.data.samples.arrow_rows import ArrowRows
from coterie.core.data.sources import arrow_samples, csv_blocks, sample_forms, unfinished
from coterie.core.data.sources.arrow_samples import Converted, SampleWriter, convert, described
from coterie.core.data.sources.csv_blocks import Block, Place
from coterie.core.data.sources.reading_progress import Progress
from coterie.core.data.sources.sample_forms import Field, Form
from coterie.core.data.sources.unfinished import alone
from coterie.core.errors import UserError

FORM = Form(
    (
        Field("ids", ("a", "b"), "ids", "uint16", shift=1),
        Field("numbers", ("x",), "numbers", "float32"),
        Field("search", ("s",), "numbers", "int64", flat=True),
    )
)
Names = set[str]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, record batches and distances of marks so small that every file has many."""
    monkeypatch.setattr(csv_blocks, "_BLOCK", 170)
    monkeypatch.setattr(arrow_samples, "ROWS", 7)
    monkeypatch.setattr(arrow_samples, "MARKED", 2)


def text(count: int, first: int = 0, wide_from: int = 10**9) -> str:
    rows = (
        f"{n % 11 + (70_000 if n >= wide_from else 0)},{n * n % 13},{n / 4},{n // 3}\n"
        for n in range(first, first + count)
    )
    return "a,b,x,s\n" + "".join(rows)


def names(folder: Path) -> Names:
    return {each.name for each in folder.iterdir()}


def contents(converted: Converted) -> dict[str, Any]:
    batches = [converted.rows.views(n) for n in range(len(converted.rows.starts) - 1)]
    rows = {name: np.concatenate([each[name] for each in batches]) for name in batches[0]}
    return {
        "rows": {name: (str(values.dtype), values.tolist()) for name, values in rows.items()},
        "batches": converted.rows.starts.tolist(),
        "count": converted.count,
        "digest": converted.rows.digest(),
        "vocabulary": converted.vocabulary.to_plain(),
        "unknown": converted.unknown,
        "left out": converted.left_out,
    }


def interrupted(monkeypatch: pytest.MonkeyPatch, after: int, run: Callable[[], Any]) -> None:
    """Run something that is interrupted at its ``after``-th block."""
    real, calls = SampleWriter.add, [0]

    def add(self: SampleWriter, *given: Any) -> int:
        calls[0] += 1
        if calls[0] > after:
            raise KeyboardInterrupt
        return real(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(SampleWriter, "add", add)
        with pytest.raises(KeyboardInterrupt):
            run()


def starts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Record from which rows on which files are read."""
    real, found = sample_forms.csv_blocks, []

    def noted(path: Path, form: Any, start: Place | None) -> Iterator[Block]:
        found.append((path.name, start.row if start else 0))
        return real(path, form, start)

    monkeypatch.setattr(sample_forms, "csv_blocks", noted)
    return found


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "gzip": {"ending": ".csv.gz"},
    "zip": {"ending": ".zip"},
    "two files": {"files": 2},
    "rows left out": {"form": replace(FORM, keep=lambda block: block.numbers("a") != 3)},
    "a given vocabulary": {"given": True},
    "ids that outgrow 16 bits early": {"wide_from": 20},
    "ids that outgrow 16 bits late": {"wide_from": 300},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("after", [0, 1, 5, 9, 16])
def test_what_is_gone_on_with_is_what_is_made_in_one_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, after: int
) -> None:
    options = {"ending": ".csv", "files": 1, "form": FORM, "wide_from": 10**9} | CASES[case]
    size = 360 // options["files"]
    sources = [
        packed(tmp_path / f"{n}{options['ending']}", text(size, n * size, options["wide_from"]))
        for n in range(options["files"])
    ]
    words = None
    if options.get("given"):
        some = packed(tmp_path / "some.csv", text(5))
        words = convert([some], tmp_path / "some.arrow", FORM).vocabulary
    form, target = options["form"], tmp_path / "out" / "t.arrow"
    whole = convert(sources, tmp_path / "whole.arrow", form, vocabulary=words)
    run = lambda: convert(sources, target, form, vocabulary=words)  # noqa: E731
    for times in (after, 3):  # and interrupted once more
        interrupted(monkeypatch, times, run)
        assert names(target.parent) == {".t.arrow.part"}
        assert described(target) is None
    found = starts(monkeypatch)
    assert contents(run()) == contents(whole)
    assert names(target.parent) == {"t.arrow"}
    if after >= 5 and "outgrow" not in case:
        assert found[0] > (sources[0].name, 0), "it began anew"


def test_a_file_cut_off_anywhere_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = packed(tmp_path / "t.csv", text(100)), tmp_path / "out" / "t.arrow"
    whole = contents(convert([source], tmp_path / "whole.arrow", FORM))
    interrupted(monkeypatch, 5, lambda: convert([source], target, FORM))
    partial = target.with_name(".t.arrow.part")
    content = partial.read_bytes()
    found = starts(monkeypatch)
    for end in (0, 5, 8, 100, *range(500, len(content), 180)):
        partial.write_bytes(content[:end] + bytes(300))  # as after the machine lost its power
        assert contents(convert([source], target, FORM)) == whole, end
        target.unlink()
    assert len({row for _, row in found}) > 3


def test_what_was_made_of_something_else_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = packed(tmp_path / "t.csv", text(100)), tmp_path / "t.arrow"
    interrupted(monkeypatch, 5, lambda: convert([source], target, FORM))
    source.write_text(text(100, 50))
    found = starts(monkeypatch)
    again = contents(convert([source], target, FORM))
    assert found == [("t.csv", 0)]
    assert again == contents(convert([source], tmp_path / "other.arrow", FORM))


def _convert_slowly(source: Path, target: Path) -> None:
    real = SampleWriter.add

    def slow(self: SampleWriter, *given: Any) -> int:
        time.sleep(0.05)
        return real(self, *given)

    SampleWriter.add = slow  # type: ignore[method-assign]
    convert([source], target, FORM)


def test_killed_in_the_middle_nothing_counts_as_converted_and_the_next_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = packed(tmp_path / "t.csv", text(2000)), tmp_path / "out" / "t.arrow"
    process = multiprocessing.get_context("fork").Process(
        target=_convert_slowly, args=(source, target)
    )
    process.start()
    partial, deadline = target.with_name(".t.arrow.part"), time.monotonic() + 30
    while time.monotonic() < deadline and not (partial.exists() and partial.stat().st_size > 4000):
        time.sleep(0.02)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    assert names(target.parent) == {".t.arrow.part", ".t.arrow.lock"}
    assert described(partial) is None
    with pytest.raises(UserError, match="no whole Arrow file"):
        ArrowRows(partial).views(0)
    found = starts(monkeypatch)
    converted = convert([source], target, FORM)
    assert found[0][1] > 0
    assert contents(converted) == contents(convert([source], tmp_path / "whole.arrow", FORM))
    assert names(target.parent) == {"t.arrow"}


def _convert(source: Path, target: Path, queue: Any) -> None:
    queue.put("started")
    queue.put(contents(convert([source], target, FORM)))


def test_a_second_process_waits_and_finds_what_the_first_made(
    tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    source, target = packed(tmp_path / "t.csv", text(100)), tmp_path / "t.arrow"
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with alone(target):
        process = context.Process(target=_convert, args=(source, target, queue))
        process.start()
        assert queue.get(timeout=30) == "started"
        deadline = time.monotonic() + 30
        said = ""
        while "waiting" not in said and time.monotonic() < deadline:
            said += capfd.readouterr().err
            time.sleep(0.02)
        assert f"another process converts into {tmp_path}" in " ".join(said.split())
        assert names(tmp_path) == {"t.csv", ".t.arrow.lock"}
        convert([source], tmp_path / "made.arrow", FORM)
        os.replace(tmp_path / "made.arrow", target)
        made = target.stat().st_ino
    assert queue.get(timeout=30)["count"] == 100
    process.join()
    assert target.stat().st_ino == made, "it was converted twice"
    assert names(tmp_path) == {"t.csv", "t.arrow"}


def test_two_at_once_make_one_file(tmp_path: Path) -> None:
    source, target = packed(tmp_path / "t.csv", text(300)), tmp_path / "t.arrow"
    whole = contents(convert([source], tmp_path / "whole.arrow", FORM))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=_convert, args=(source, target, queue)) for _ in range(3)]
    for worker in workers:
        worker.start()
    got = [queue.get(timeout=60) for _ in range(2 * len(workers))]
    for worker in workers:
        worker.join()
    assert [each for each in got if each != "started"] == [whole] * len(workers)


def test_a_file_is_known_by_its_samples_without_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [packed(tmp_path / "a.csv", text(90)), packed(tmp_path / "b.csv", text(90, 1))]
    targets = [tmp_path / f"{n}.arrow" for n in range(3)]
    given = [sources[0], sources[0], sources[1]]
    monkeypatch.setattr("coterie.core.data.samples.arrow_rows.sha256", None)
    one, same, other = (
        convert([source], target, FORM).rows.digest()
        for source, target in zip(given, targets, strict=True)
    )
    assert one == same != other


def test_a_system_that_writes_some_bytes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = packed(tmp_path / "t.csv", text(200))
    whole = contents(convert([source], tmp_path / "whole.arrow", FORM))
    real = os.pwrite
    monkeypatch.setattr(unfinished.os, "pwrite", lambda f, data, at: real(f, data[:50], at))
    assert contents(convert([source], tmp_path / "t.arrow", FORM)) == whole


def test_a_disk_that_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = packed(tmp_path / "t.csv", text(200)), tmp_path / "out" / "t.arrow"
    real = os.pwrite

    def pwrite(file: int, data: Any, at: int) -> int:
        if at > 2000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data, at)

    with monkeypatch.context() as patched:
        patched.setattr(unfinished.os, "pwrite", pwrite)
        with pytest.raises(UserError) as caught:
            convert([source], target, FORM)
    needed = 200 * (2 * 2 + 4 + 8)
    assert str(caught.value).startswith(f"{target} needs about {needed / 1e9:.2f} GB, and the disk")
    assert "free some, or link the text files" in str(caught.value)
    assert names(target.parent) == set()


def test_too_little_room_is_said_before_much_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = packed(tmp_path / "t.csv", text(2000)), tmp_path / "out" / "t.arrow"
    needed = 2000 * (2 * 2 + 4 + 8)
    for free, room in ((needed * 0.7, False), (needed * 1.4, True)):
        usage = lambda path, free=free: type("Usage", (), {"free": free})  # noqa: E731
        monkeypatch.setattr("coterie.core.data.sources.disk_room.shutil.disk_usage", usage)
        if room:
            assert convert([source], target, FORM).count == 2000
            continue
        read = starts(monkeypatch)
        with pytest.raises(UserError, match=r"t\.arrow needs about 0\.00 GB, and there are 0\.00"):
            convert([source], target, FORM)
        assert len(read) == 1
        assert names(target.parent) == set()


def test_progress_says_rows_share_and_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    clock = [100.0]
    monkeypatch.setattr(
        "coterie.core.data.sources.reading_progress.time.monotonic", lambda: clock[0]
    )
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for file, size in zip(files, (3_000_000, 1_000_000), strict=True):
        file.touch()
        os.truncate(file, size)
    progress = Progress("converting", files)
    for seconds, source, read in ((0, 0, 1 / 3), (5, 0, 0.5), (10, 0, 2 / 3), (30, 1, 0.6)):
        clock[0] = 100.0 + seconds
        progress.tell(source, read, 1000 * seconds)
    said = " ".join(capsys.readouterr().err.split())
    assert "10,000 rows, 50% of 0.0 GB, 20 s left" in said  # a quarter in ten seconds
    assert "30,000 rows, 90% of 0.0 GB, 5 s left" in said
    assert said.count(" left") == 2
