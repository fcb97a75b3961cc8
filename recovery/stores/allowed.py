"""Stores that a daemon may use, and as whom: jobs name any, and the daemon has rights of its own there.

An entry with `{owner}` is a place for each user: `file:///data/{owner}` is /data/alice for jobs of alice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from supervisor.adapters.files.store_uri import Scheme, StoreUri, is_hdfs_user, parse_uri
from supervisor.contract.access import Kind
from supervisor.contract.errors import UserError

OWNER = "{owner}"
"""A directory name in an entry that stands for the name of the job's user."""
EVERYWHERE = tuple(f"{scheme.value}:" for scheme in Scheme)


def entries_or_default(entries: Iterable[str]) -> tuple[str, ...]:
    """The entries of a configuration's `stores:`; without any, all stores, except that root may not use the
    whole disk.
    """
    return tuple(entries) or (EVERYWHERE if os.geteuid() != 0 else (f"{Scheme.HDFS.value}:",))


@dataclass(frozen=True, slots=True)
class AllowedStores:
    """The places that `entries` name, and everything below them.

    An entry is a URI as in a job file, or `file:` or `hdfs:` for all stores of that kind. Raises UserError
    for any other entry. `proxy_users`: those in HDFS are reached as the owners of jobs.
    """

    entries: tuple[str, ...] = EVERYWHERE
    proxy_users: bool = False

    def __post_init__(self) -> None:
        for each in self.entries:
            try:
                _ = each in EVERYWHERE or parse_uri(each)
            except UserError as error:
                raise UserError(f"`stores:` in the daemon's configuration: {error}") from error
            if OWNER in "".join(part for part in each.split("/") if part != OWNER):
                raise UserError(
                    f"`stores:` in the daemon's configuration: {each}: {OWNER} is the whole name of a "
                    f"directory; write it as in file:///data/{OWNER}"
                )

    @property
    def by_owner(self) -> bool:
        """Whether the allowed places depend on the job's owner."""
        return self.proxy_users or self._names_owners

    @property
    def _names_owners(self) -> bool:
        return any(OWNER in each for each in self.entries)

    def check(self, place: StoreUri, owner: str | None = None) -> None:
        """Raise UserError for a place that a job of `owner` may not use.

        `owner` is spelt as in the job's record.

        None: the owner was checked elsewhere, and the place of any user is allowed.
        """
        if any(_covers(each, place, owner) for each in self.entries):
            if owner is not None and place.user not in {"", self.hdfs_user(place, owner)}:
                raise UserError(
                    f"checkpoint.uri {place} is to be reached as {place.user}, but the job is {owner}'s"
                )
            return
        user = user_of(owner)
        entries = [each.replace(OWNER, user) if user else each for each in self.entries]
        why = f"; {owner or 'its owner'} is no user, and has no place of its own" * (
            self._names_owners and not user
        )
        raise UserError(
            f"checkpoint.uri {place} is in no store that this cluster's daemons may use for this job "
            f"({', '.join(entries)}{why}); use one of these, or add it to their `stores:`"
        ).about("checkpoint", "uri")

    def hdfs_user(self, place: StoreUri, owner: str) -> str:
        """The HDFS user for a place and a job of `owner`; empty: the daemon's own.

        Raises UserError for an owner who is no user of HDFS.
        """
        if not self.proxy_users or place.scheme is not Scheme.HDFS:
            return ""
        user = user_of(owner)
        if not is_hdfs_user(user):
            raise UserError(
                f"checkpoint.uri {place}: this cluster reaches HDFS as a job's owner (`hadoop.proxy_users`), "
                f"and {owner or 'nobody'} is no user there; submit it with a user's certificate whose name "
                "has letters, digits, `_`, `.` and `-` alone"
            ).about("checkpoint", "uri")
        return user

    def check_links(self, place: StoreUri) -> None:
        """Raise UserError unless a directory of this machine, links followed, is below one that an entry
        names. `file:` names none. Blocking.
        """
        parts, real = place.path.split("/"), f"{os.path.realpath(place.path)}/"
        for each in self.entries:
            if each not in EVERYWHERE and _covers(each, place, None):
                top = "/".join(parts[: len(parse_uri(each).path.split("/"))])
                if real.startswith(f"{os.path.realpath(top)}/"):
                    return
        raise UserError(
            f"{place} is {real.rstrip('/')} on this node, which is below no directory that `stores:` in the "
            "agent's file names; a container is shown no other"
        )

    def own_part(self, place: StoreUri, owner: str) -> str:
        """The part of an allowed place's path that is its user's own directory: /data/alice of /data/alice/a.

        Empty if all users may use the place.
        """
        covering = [each for each in self.entries if _covers(each, place, owner)]
        if not covering or not all(OWNER in each for each in covering):
            return ""
        depths = [parse_uri(each).path.split("/").index(OWNER) for each in covering]
        return "/".join(place.path.split("/")[: min(depths) + 1])


ANYWHERE = AllowedStores()


def user_of(owner: str | None) -> str:
    """The user's name in a job's owner; empty if the owner is not a user with a certificate."""
    kind, _, name = (owner or "").partition(":")
    return name if kind == Kind.USER.value else ""


def _covers(entry: str, place: StoreUri, owner: str | None) -> bool:
    if entry in EVERYWHERE:
        return entry == f"{place.scheme.value}:"
    allowed = parse_uri(entry)
    if (allowed.scheme, allowed.authority) != (place.scheme, place.authority):
        return False
    wanted, given = allowed.path.split("/"), place.path.split("/")
    return len(wanted) <= len(given) and all(map(partial(_is, owner), wanted, given))


def _is(owner: str | None, wanted: str, given: str) -> bool:
    """Whether a part of an entry's path covers a part of a place's."""
    if wanted != OWNER:
        return wanted == given
    return owner is None or (given != "" and given == user_of(owner))
