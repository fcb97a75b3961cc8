"""Which stores a daemon may use: jobs name any, and the daemon would write there with its own rights."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from recovery.stores.uri import Scheme, StoreUri, parse_uri
from supervisor.contract.errors import UserError

EVERYWHERE = tuple(f"{scheme.value}:" for scheme in Scheme)


def entries_or_default(entries: Iterable[str]) -> tuple[str, ...]:
    """A configuration's `stores:`; where it is empty, all but root's whole disk."""
    return tuple(entries) or (EVERYWHERE if os.geteuid() != 0 else (f"{Scheme.HDFS.value}:",))


@dataclass(frozen=True, slots=True)
class AllowedStores:
    """The places that `entries` name, with all below them.

    An entry is a URI as jobs have it; or `file:`, or `hdfs:`, for all of that kind. Raises UserError for one
    that is neither.
    """

    entries: tuple[str, ...] = EVERYWHERE

    def __post_init__(self) -> None:
        for each in self.entries:
            try:
                _ = each in EVERYWHERE or parse_uri(each)
            except UserError as error:
                raise UserError(f"`stores:` in the daemon's configuration: {error}") from error

    def check(self, place: StoreUri) -> None:
        """Raise UserError for a place that is not allowed."""
        if not any(_covers(each, place) for each in self.entries):
            raise UserError(
                f"checkpoint.uri {place} is in no store that this cluster's daemons may use "
                f"({', '.join(self.entries)}); use one of these, or add it to their `stores:`"
            ).about("checkpoint", "uri")


ANYWHERE = AllowedStores()


def _covers(entry: str, place: StoreUri) -> bool:
    if entry in EVERYWHERE:
        return entry == f"{place.scheme.value}:"
    allowed = parse_uri(entry)
    same = (allowed.scheme, allowed.authority) == (place.scheme, place.authority)
    return same and f"{place.path}/".startswith(f"{allowed.path}/")
