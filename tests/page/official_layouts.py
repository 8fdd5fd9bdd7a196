"""Tiny data sets in the layouts that their owners publish, as folders or archives."""

import gzip
import io
import json
import pickle
import shutil
import tarfile
import zipfile

import numpy as np
import torch
from PIL import Image

from coterie.page.data.shakespeare import SYMBOLS

WNIDS = ("n02", "n01", "n03")


def pack(folder, archive):
    """Pack a folder with its own name on top; the kind of archive follows from the ending."""
    members = sorted(path for path in folder.rglob("*") if path.is_file())
    archive.parent.mkdir(parents=True, exist_ok=True)
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
            for path in members:
                target.write(path, path.relative_to(folder.parent).as_posix())
        return
    with tarfile.open(archive, "w:gz") as target:
        for path in members:
            target.add(path, path.relative_to(folder.parent).as_posix())


def placed(folder, root, form):
    """Put a folder's content under ``root``: as it is, in a folder of its name, or packed."""
    if form == "flat":
        shutil.copytree(folder, root)
    elif form == "nested":
        shutil.copytree(folder, root / folder.name)
    else:
        pack(folder, root / f"anything.{form}")
    return root


def cifar_fields(n, seed, keys=bytes):
    rng = np.random.default_rng(seed)
    fields = {
        "data": rng.integers(0, 256, (n, 3072), dtype=np.uint8),
        "fine_labels": rng.integers(0, 100, n).tolist(),
        "coarse_labels": rng.integers(0, 20, n).tolist(),
        "filenames": [f"picture_{k}.png".encode() for k in range(n)],
        "batch_label": b"batch 1 of 1",
    }
    return {name.encode() if keys is bytes else name: value for name, value in fields.items()}


def write_cifar(folder, keys=bytes, **parts):
    """Write pickles of the parts (default: 7 training and 4 test samples), and return them."""
    parts = parts or {"train": cifar_fields(7, 0, keys), "test": cifar_fields(4, 1, keys)}
    folder.mkdir(parents=True)
    for name, fields in parts.items():
        (folder / name).write_bytes(pickle.dumps(fields, protocol=2))
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"apple"]}, protocol=2))
    return parts


def jpeg(shade, size=(64, 64), mode="RGB"):
    content = io.BytesIO()
    Image.new(mode, size, shade).save(content, "JPEG", quality=95)
    return content.getvalue()


def write_tiny(folder, per_class=2, n_val=4):
    """Each training picture has a shade of its own; the first of all is grey."""
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (folder / "words.txt").write_text("n01\tdog\n")
    for k, wnid in enumerate(WNIDS):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
        for number in range(per_class):
            grey = k == number == 0
            shade = 10 if grey else (60 * k, 100 * number, 200)
            content = jpeg(shade, mode="L" if grey else "RGB")
            (images / f"{wnid}_{number}.JPEG").write_bytes(content)
    lines = []
    for number in range(n_val):
        name, wnid = f"val_{number}.JPEG", WNIDS[number % len(WNIDS)]
        (folder / "val" / "images" / name).write_bytes(jpeg((250, 0, 0)))
        lines.append(f"{name}\t{wnid}\t0\t0\t63\t63\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "test" / "images").mkdir(parents=True)
    (folder / "test" / "images" / "test_0.JPEG").write_bytes(jpeg((1, 1, 1)))


def leaf_user(text, n):
    return {"x": [text[k : k + 80] for k in range(n)], "y": [text[k + 80] for k in range(n)]}


def write_leaf(path, users):
    """Write users, ``name -> {"x": …, "y": …}``, as LEAF does."""
    content = {
        "users": list(users),
        "num_samples": [len(data["y"]) for data in users.values()],
        "user_data": users,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def decode(codes):
    return "".join(SYMBOLS[code] for code in codes.tolist())


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garble(path):
    """Break what is inside a sound gzip file."""
    path.write_bytes(gzip.compress(b"no tar at all" * 100))


def channel_means(x):
    """Mean of each channel of pictures of bytes ``(n, C, h, w)``, of values in [0, 1]."""
    sums = [part.float().mean((2, 3)).sum(0) for part in x.split(100)]  # no large copy
    return torch.stack(sums).sum(0) / (255 * len(x))
