"""States that grow, on the disk: each entry once, every bit checked, killed at any moment."""

import multiprocessing
import os
import random
import shutil
import signal
import time
from dataclasses import dataclass

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tests.core.growing import Model, run_of, train, train_and_die, train_in_child
from tests.core.saving_trainer import SavingTrainer

from coterie.core.errors import UserError
from coterie.core.run.checkpoint import BEST, LAST, read_checkpoint
from coterie.core.tensors import tree
from coterie.core.tensors.appended import Appended
from coterie.core.tensors.saved import refer, save
from coterie.core.training.callbacks.checkpoints import Checkpoints
from coterie.core.training.module import FederatedModule
from coterie.core.wire.annotations import restore

ROUNDS = 8


def bits(run):
    """Everything a run holds, down to the bytes of each tensor."""
    state = {"server": run.server_state, "parties": run.store.to_plain()}
    return [
        (path, leaf.numpy().tobytes() if isinstance(leaf, torch.Tensor) else leaf)
        for path, leaf in tree.leaves(tree.map_values(_parts, state))
    ]


def _parts(leaf):
    return leaf if isinstance(leaf, torch.Tensor) else {"v": leaf.values, "o": leaf.offsets}


def loaded(folder, name=LAST, rounds=ROUNDS):
    run = run_of(rounds)
    run.load_plain(read_checkpoint(folder / name)["federation"])
    return run


def files(folder):
    return sorted((folder / "entries").iterdir())


@pytest.fixture
def trained(tmp_path):
    return train(tmp_path / "run", ROUNDS), tmp_path / "run"


def test_a_run_that_grew_is_read_back_to_the_bit(trained):
    run, folder = trained
    back = loaded(folder)
    assert bits(back) == bits(run)
    mine = back.store.take(torch.tensor([5]))
    assert isinstance(mine.models, Appended)
    assert isinstance(mine.models[3], Model)
    # Party 5 was refused in the third round: its entry is nowhere, later ones are.
    assert [len(back.store.take(torch.tensor([one])).models) for one in (2, 5, 9)] == [8, 7, 8]


def test_last_and_best_share_the_files_and_both_can_be_loaded(trained):
    run, folder = trained
    last, best = loaded(folder), loaded(folder, BEST)
    assert last.round == ROUNDS
    assert 0 < best.round < ROUNDS
    ours, theirs = (one.store.take(torch.tensor([2])).models for one in (best, last))
    assert len(ours) == best.round
    for early, late in zip(ours, theirs, strict=False):
        assert torch.equal(early.weights["w"], late.weights["w"])
    entries = sum(len(run.store.take(torch.tensor([one])).models) for one in (2, 5, 9))
    assert len(files(folder)) == entries + ROUNDS + 1  # and the server's: one a round, one first


def test_every_entry_is_written_once(tmp_path, monkeypatch):
    written = []
    replace = os.replace

    def noted(old, new):
        written.append(os.fspath(new))
        replace(old, new)

    monkeypatch.setattr(os, "replace", noted)
    train(tmp_path, 3)
    run = train(tmp_path, ROUNDS)  # resumed, with what was read from the files
    assert run.round == ROUNDS
    entries = [name for name in written if "/entries/" in name]
    assert len(entries) == len(set(entries)) == len(files(tmp_path))


def test_a_view_is_kept_without_what_it_is_a_view_of(trained):
    _, folder = trained
    sizes = [file.stat().st_size for file in files(folder)]
    assert max(sizes) < 4096  # the server's is a row of 5,000


def test_a_folder_that_was_moved_or_copied_goes_on(tmp_path):
    whole = train(tmp_path / "whole", ROUNDS)
    train(tmp_path / "first", 4)
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    (tmp_path / "first").rename(tmp_path / "moved")
    for name in ("copy", "moved"):
        assert bits(train(tmp_path / name, ROUNDS)) == bits(whole)


# Damage


def test_a_flipped_bit_in_any_entry_is_refused(trained):
    _, folder = trained
    assert len(files(folder)) > 20
    for number, file in enumerate(files(folder)):
        whole = file.read_bytes()
        for place in (number * 41 % len(whole), len(whole) - 1 - number):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << number % 8
            file.write_bytes(damaged)
            with pytest.raises(UserError, match=rf"{file.name} is damaged \(it.*put back a copy"):
                loaded(folder)
        file.write_bytes(whole)
    assert loaded(folder).round == ROUNDS


def test_entries_that_changed_places_are_refused(trained):
    """Each is whole and vouches for itself, but not for being the one that is meant."""
    _, folder = trained
    one, other, *_ = files(folder)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    with pytest.raises(UserError, match="its digest is another"):
        loaded(folder)


def test_a_missing_entry_is_named_in_one_line(trained):
    _, folder = trained
    for file in files(folder):
        content = file.read_bytes()
        file.unlink()
        with pytest.raises(UserError, match=r"entry [0-7] of a checkpoint is missing") as caught:
            train(folder, ROUNDS + 1)
        assert file.name in str(caught.value)
        assert "\n" not in str(caught.value)
        file.write_bytes(content)


def test_an_entry_that_was_written_into_is_not_saved(tmp_path):
    run = run_of(ROUNDS)
    trainer = SavingTrainer(run, [Checkpoints(tmp_path)])
    for _ in range(2):
        run.advance()
        trainer.end_round()
    models = run.store.take(torch.tensor([2])).models
    models[0].weights["w"].add_(1.0)
    with pytest.raises(TypeError, match="entry 0 of an append-only part was written into"):
        trainer.end_round()


# What nobody refers to


def test_what_a_kill_left_is_cleared_away_and_nothing_else(tmp_path):
    train(tmp_path, 3)
    wanted = files(tmp_path)
    (tmp_path / "entries" / f"{'0' * 64}.pt").write_bytes(b"never referred to")
    (tmp_path / "entries" / "new.pt.partial").write_bytes(b"half")
    SavingTrainer(run_of(ROUNDS), [Checkpoints(tmp_path)]).call("on_train_start")
    assert files(tmp_path) == wanted


def test_what_only_the_best_round_refers_to_stays(tmp_path):
    one, other = ({"federation": Appended([torch.full((2,), value)])} for value in (1.0, 2.0))
    for name, content in ((BEST, one), (LAST, other)):
        save(refer(content, tmp_path), tmp_path / name)
    SavingTrainer(run_of(ROUNDS), [Checkpoints(tmp_path)]).call("on_train_end")
    assert len(files(tmp_path)) == 2
    assert read_checkpoint(tmp_path / BEST)["federation"][0].tolist() == [1.0, 1.0]
    shutil.copyfile(tmp_path / LAST, tmp_path / BEST)
    SavingTrainer(run_of(ROUNDS), [Checkpoints(tmp_path)]).call("on_train_end")
    assert len(files(tmp_path)) == 1
    assert read_checkpoint(tmp_path / LAST)["federation"][0].tolist() == [2.0, 2.0]


def test_entries_stay_while_a_checkpoint_cannot_be_read(tmp_path):
    train(tmp_path, 3)
    save(refer({"federation": Appended([torch.ones(2)])}, tmp_path), tmp_path / BEST)
    wanted, best = files(tmp_path), (tmp_path / BEST).read_bytes()
    (tmp_path / BEST).write_bytes(b"damaged")
    SavingTrainer(run_of(ROUNDS), [Checkpoints(tmp_path)]).call("on_train_start")
    assert files(tmp_path) == wanted
    (tmp_path / BEST).write_bytes(best)  # a copy was put back
    assert len(read_checkpoint(tmp_path / BEST)["federation"]) == 1


def test_a_run_without_append_only_parts_has_no_such_folder(tmp_path):
    class Plain:
        journal, round, block, block_open = type("J", (), {"scalars": {}}), 1, 0, True

        def to_plain(self):
            return {"server": {"w": torch.ones(2)}, "store": {"rows": [None]}}

    trainer = SavingTrainer(Plain(), [Checkpoints(tmp_path)])
    for hook in ("on_train_start", "on_train_epoch_end", "on_train_end"):
        trainer.call(hook)
    assert [path.name for path in tmp_path.iterdir()] == [LAST]


# Killed


def processes():
    """Where they are forked from: one process that has done nothing but import."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.core.growing"])
    return context


def test_killed_at_random_moments_and_resumed_to_the_same_bits(tmp_path):
    """Ten processes, ended by SIGKILL anywhere; then one that ends by itself."""
    rounds = 40
    start = time.perf_counter()
    whole = train(tmp_path / "whole", rounds)
    span = time.perf_counter() - start
    dice, folder, reached = random.Random(8), tmp_path / "run", []
    for _ in range(10):
        before = _inode(folder / LAST)
        child = processes().Process(target=train_in_child, args=(str(folder), rounds))
        child.start()
        while _inode(folder / LAST) == before and child.is_alive():
            time.sleep(0.001)
        time.sleep(dice.uniform(0, span / 10))
        child.kill()  # unless it has ended by itself
        child.join()
        reached.append(read_checkpoint(folder / LAST)["federation"]["round"])
    assert reached == sorted(reached)
    assert len(set(reached)) > 3, reached  # it was killed in the middle of its work
    run = train(folder, rounds)
    assert bits(run) == bits(whole) == bits(loaded(folder, LAST, rounds))
    assert [file.name for file in files(folder)] == [
        file.name for file in files(tmp_path / "whole")
    ]


def _inode(path):
    return path.stat().st_ino if path.is_file() else None


@pytest.mark.parametrize("call", range(1, 12))
def test_killed_at_every_write_of_a_round(tmp_path, call):
    """Whichever file was being written, renamed or cleared away."""
    whole = train(tmp_path / "whole", 3)
    arguments = str(tmp_path / "run"), 3, call, "fsync" if call % 2 else "replace"
    child = processes().Process(target=train_and_die, args=arguments)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert bits(train(tmp_path / "run", 3)) == bits(whole)
    assert len(files(tmp_path / "run")) == len(files(tmp_path / "whole"))


# Elsewhere


def test_lightnings_own_checkpoint_holds_all_in_one_file(tmp_path):
    run = run_of(4)
    saving = ModelCheckpoint(dirpath=tmp_path, filename="one")
    lightning.Trainer(
        max_epochs=-1,
        logger=False,
        callbacks=[saving],
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(FederatedModule(run))
    saved = torch.load(tmp_path / "one.ckpt", weights_only=True)["federation"]
    back = run_of(4)
    back.load_plain(saved)
    assert bits(back) == bits(run)
    assert isinstance(back.store.take(torch.tensor([2])).models[0], Model)


@dataclass(frozen=True)
class Late:
    """A field that was None at first."""

    models: Appended[Model] | None = None
    by_name: dict[str, Appended[Model]] | None = None


def test_a_part_that_came_later_is_built_from_its_annotation():
    model = Model({"w": torch.ones(2)}, run_of(1).federation.blocks[0].ids, 0.5)
    models = Appended([model, model])
    back = restore(Late(), tree.to_plain(Late(models, {"a": models})))
    assert isinstance(back.models[1], Model)
    assert isinstance(back.by_name["a"][0], Model)
