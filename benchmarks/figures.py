"""Draw the pictures of the documentation again from the numbers beside them.

``python -m benchmarks.figures`` draws all of ``docs/figures``, and takes seconds for each; after it
the paths of some: ``python -m benchmarks.figures docs/figures/page-table6-synthetic.panels.json``.
A table or figure of a paper writes such a file beside its picture (`coterie table`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from coterie.core.errors import UserError
from coterie.core.tables.pictures import NUMBERS, redraw

FIGURES = Path(__file__).resolve().parents[1] / "docs" / "figures"


def main(given: Sequence[str]) -> int:
    """Draw the pictures of these numbers, or all of the documentation.

    Returns:
        2 for a file that has no numbers of a picture, 1 if one cannot be drawn, else 0.
    """
    status = 0
    for numbers in map(Path, given or sorted(map(str, FIGURES.glob(f"*{NUMBERS}")))):
        try:
            picture = redraw(numbers)
        except UserError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        status |= picture is None
        sys.stdout.write(f"{picture or f'{numbers}: not drawn'}\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
