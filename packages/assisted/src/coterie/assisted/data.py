"""What organisations hold: rated cells of their part of a matrix, cut from a data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.assisted.settings import DomainSettings
from coterie.core.data.interactions.cells import Cells, Domain, cut
from coterie.core.data.interactions.column_partitions import (
    Partitioning,
    common_rows,
    partition_columns,
    rows_of,
    split_cells,
)
from coterie.core.data.interactions.interactions import Interactions
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class OwnDomain:
    """Data of one organisation; see `Organisations`.

    Attributes:
        id: number of the client.
        rows: ``(m,)`` int64 keyed hashes of its users (or items), by which organisations find the
            ones that they have in common.
        domain: its cells; the values are what its objective reads.
        secret: ``()`` int64 number that all organisations share and the server does not know, for
            masks; None where none are made.
    """

    id: int
    rows: Tensor
    domain: Domain
    secret: Tensor | None = None

    @property
    def train(self) -> Cells:
        """Cells to learn from."""
        return self.domain.train

    @property
    def valid(self) -> Cells:
        """Cells that choices are made by."""
        return self.domain.valid

    @property
    def test(self) -> Cells:
        """Cells that are looked at once, at the end."""
        return self.domain.test


@dataclass(frozen=True)
class Organisations:
    """Data of K organisations, each of which is a client; in list form.

    Attributes:
        ids: ``(K,)`` int64, ascending client numbers.
        each: their data.
    """

    ids: Tensor
    each: list[OwnDomain]

    @staticmethod
    def of(each: list[OwnDomain]) -> Organisations:
        """Number them as they come."""
        return Organisations(torch.tensor([one.id for one in each]), each)

    def __len__(self) -> int:
        return len(self.each)

    def __getitem__(self, place: int) -> OwnDomain:
        """Data of the client at a position."""
        return self.each[place]

    def take(self, index: Tensor) -> Organisations:
        """Data of the clients at the positions ``index``, ``(m,)`` int64."""
        return Organisations(self.ids[index], [self.each[place] for place in index.tolist()])


def share_out(
    ratings: Interactions,
    settings: DomainSettings,
    seed: int,
    how: Partitioning,
    *,
    is_binary: Callable[[str], bool],
    released: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Organisations:
    """Split ratings into what is trained on and what is held out, and say who holds them.

    Args:
        ratings: no two of one user for one item.
        settings: who holds what.
        seed: of partition and, unless settings give another one, split.
        how: the partition.
        is_binary: whether the organisation of a name wants to know what is above the threshold,
            rather than ratings.
        released: whether a rating that equals the threshold is positive, and validation cells are
            those of the test, as in the public code.
        dtype: of ratings and features.

    Raises:
        UserError: the data do not suit the settings.
    """
    secret = Key.from_seed(seed)
    split = secret if settings.split is None else Key.from_seed(settings.split)
    valid = 0.0 if released else settings.valid
    part = split_cells(len(ratings), split.fold("split"), settings.test, valid)
    key = secret.fold("domains")
    partition = partition_columns(ratings, settings.align, how, part, key, settings.n_domains)
    domains = cut(ratings, settings.align, partition, part)
    if settings.domains == "source":
        domains = [_known_rows(domain) for domain in domains]
    domains = [
        _binary(domain, settings.threshold, released) if is_binary(domain.name) else domain
        for domain in domains
    ]
    if released:
        domains = [replace(domain, valid=domain.test) for domain in domains]
    domains = [
        tree.map_tensors(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, one)
        for one in domains
    ]
    n_rows = rows_of(ratings, settings.align)[1]
    common = common_rows(n_rows, settings.common, secret.fold("common"))
    hashed = [names(common, number, secret) for number in range(len(domains))]
    each = zip(domains, hashed, strict=True)
    return Organisations.of(
        [
            OwnDomain(k, mine[domain.rows], domain, secret.fold("masks").state)
            for k, (domain, mine) in enumerate(each)
        ]
    )


def names(common: Tensor, number: int, secret: Key) -> Tensor:
    """Keyed hashes of rows, ``(m,)`` int64: the same at all organisations for common rows only.

    Organisations share the secret, and the server does not know it. A deployment makes them of
    customer numbers with a key of its own (HMAC).

    Args:
        common: ``(m,)`` bool, which rows are known to all.
        number: of the organisation.
        secret: that organisations share.
    """
    rows = torch.arange(len(common))
    own = torch.where(common, rows, rows + (number + 1) * len(common))
    return secret.fold("names").bits(own)


def _known_rows(domain: Domain) -> Domain:
    """Leave out rows in which the organisation has nothing: it does not know these users."""
    cells = domain.train.columns.lengths + domain.valid.columns.lengths
    rows = (cells + domain.test.columns.lengths > 0).nonzero().flatten()
    features = None if domain.row_features is None else domain.row_features[rows]
    parts = (part.take(rows) for part in (domain.train, domain.valid, domain.test))
    train, valid, test = parts
    return replace(
        domain, rows=domain.rows[rows], train=train, valid=valid, test=test, row_features=features
    )


def _binary(domain: Domain, threshold: float, equal_counts: bool) -> Domain:
    def liked(cells: Cells) -> Cells:
        above = cells.values >= threshold if equal_counts else cells.values > threshold
        return replace(cells, values=above.to(cells.values))

    train, valid, test = liked(domain.train), liked(domain.valid), liked(domain.test)
    return replace(domain, train=train, valid=valid, test=test)
