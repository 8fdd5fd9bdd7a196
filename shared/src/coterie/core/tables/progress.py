"""A bar on stderr for work that is counted; nothing where stderr is no terminal."""

from __future__ import annotations

from tqdm import tqdm


class Counting(tqdm):
    """Show how much of some work, of ``total`` parts, is done.

    Example:
        >>> with Counting("Runs", 2, shown=False) as bar:
        ...     bar.done("first")
        ...     bar.up_to(2)
    """

    def __init__(self, title: str, total: int, shown: bool = True) -> None:
        super().__init__(desc=title, total=total, leave=False, disable=None if shown else True)

    def done(self, label: str) -> None:
        """Note that one more part is done; ``label`` says which."""
        self.set_postfix_str(label)
        self.update()

    def up_to(self, parts: int) -> None:
        """Note that so many parts are done."""
        self.update(parts - self.n)
