"""Text files as they are published: plain, gzip, or in an archive."""

import gzip
import zipfile
from pathlib import Path


def packed(path: Path, content: str) -> Path:
    """Write text in the form that the file's name says."""
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content.encode()))
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("inside.csv", content)
    else:
        path.write_text(content)
    return path
