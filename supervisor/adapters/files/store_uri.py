"""Checkpoint URIs: their syntax, and the normal form of each place."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from urllib.parse import unquote, urlsplit

from supervisor.adapters.files.hadoop import HadoopConf
from supervisor.contract.errors import UserError

_AUTHORITY = re.compile(
    r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d+))?"
)
_HDFS_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
_MAX_PORT = 65_535
_RESERVED = frozenset({".snapshot", ".reserved"})


class Scheme(Enum):
    """The kinds of stores."""

    FILE = "file"
    HDFS = "hdfs"


@dataclass(frozen=True, slots=True)
class StoreUri:
    """A parsed checkpoint URI.

    Attributes:
        scheme: the kind of the store.
        authority: nameservice, or HOST:PORT of a NameNode; empty for local directories.
        path: absolute, without empty parts, `.` and `..`, and not the root.
        user: as whom a daemon reaches it in HDFS (`hadoop.proxy_users`); empty: as itself.
    """

    scheme: Scheme
    authority: str
    path: str
    user: str = ""

    def __str__(self) -> str:
        return f"{self.scheme.value}://{self.authority}{self.path}"

    def overlaps(self, other: StoreUri) -> bool:
        """Whether one of the two places is the other, or within it."""
        same = (self.scheme, self.authority) == (other.scheme, other.authority)
        mine, others = f"{self.path}/", f"{other.path}/"
        return same and (mine.startswith(others) or others.startswith(mine))

    def known_to(self, conf: HadoopConf) -> StoreUri:
        """The same place, under its nameservice if the NameNode belongs to one in `conf`."""
        nameservice = conf.nameservice_of(self.authority)
        return self if nameservice is None else replace(self, authority=nameservice)


def is_hdfs_user(name: str) -> bool:
    """Whether HDFS can have a user of this name."""
    return _HDFS_USER.fullmatch(name) is not None


def parse_record_uri(uri: str) -> StoreUri:
    """Read the URI of a job's record or assignment: one of HDFS may name a user, `hdfs://USER@...`.

    Raises UserError, as `parse_uri`.
    """
    rest = uri.removeprefix(f"{Scheme.HDFS.value}://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    if rest == uri or not at:
        return parse_uri(uri)
    if not is_hdfs_user(user):
        raise UserError(f"checkpoint.uri {uri!r}: {user!r} is no user of HDFS")
    return replace(parse_uri(uri.replace(f"{user}@", "", 1)), user=user)


def parse_uri(uri: str) -> StoreUri:
    """Read `file:///DIR`, an absolute path, `hdfs://NAMESERVICE/DIR` or `hdfs://HOST:PORT/DIR`.

    Raises UserError with the error and the right form.
    """
    if any(not letter.isprintable() for letter in uri):
        raise UserError(f"checkpoint.uri {uri!r} has a control character")
    if uri.startswith("/"):
        return StoreUri(Scheme.FILE, "", _directory(uri, uri))
    try:
        split = urlsplit(uri)
    except ValueError as error:
        raise UserError(f"checkpoint.uri {uri!r} is not understood: {error}") from error
    if split.scheme not in {scheme.value for scheme in Scheme}:
        raise UserError(
            f"checkpoint.uri {uri!r}: its scheme is not understood; "
            "use hdfs://NAMESERVICE/DIR, hdfs://HOST:PORT/DIR, file:///DIR or an absolute path"
        )
    if split.query or split.fragment or uri.endswith(("?", "#")):
        raise UserError(
            f"checkpoint.uri {uri!r} has a query or a fragment ('?', '#'); write a directory alone"
        )
    if split.scheme == Scheme.FILE.value:
        if split.netloc not in {"", "localhost"}:
            raise UserError(f"checkpoint.uri {uri!r} names a host; write file:///DIR, with three slashes")
        return StoreUri(Scheme.FILE, "", _directory(uri, unquote(split.path)))
    if "%" in uri:
        raise UserError(
            f"checkpoint.uri {uri!r} has a '%' escape; write the directory as it is called in HDFS"
        )
    path = _directory(uri, split.path)
    if _RESERVED.intersection(path.split("/")):
        raise UserError(f"checkpoint.uri {uri!r} uses a name that HDFS keeps for itself")
    return StoreUri(Scheme.HDFS, _authority(uri, split.netloc), path)


def _authority(uri: str, netloc: str) -> str:
    if not netloc:
        raise UserError(
            f"checkpoint.uri {uri!r} names no cluster; write hdfs://NAMESERVICE/DIR or hdfs://HOST:PORT/DIR"
        )
    if "@" in netloc:
        raise UserError(
            f"checkpoint.uri {uri!r} names a user; `hadoop` in the daemons' configuration says who it is"
        )
    match = _AUTHORITY.fullmatch(netloc)
    if match is None:
        raise UserError(f"checkpoint.uri {uri!r}: {netloc!r} is neither a nameservice nor HOST:PORT")
    if match["port"] is None:
        return netloc
    if not 0 < int(match["port"]) <= _MAX_PORT:
        raise UserError(f"checkpoint.uri {uri!r}: {match['port']} is no port; a port is 1 to {_MAX_PORT}")
    return f"{match['host'].lower()}:{int(match['port'])}"


def _directory(uri: str, path: str) -> str:
    parts = path.split("/")
    if not path.startswith("/") or ".." in parts or any(not letter.isprintable() for letter in path):
        raise UserError(f"checkpoint.uri {uri!r} must name an absolute directory, without '..'")
    kept = [part for part in parts if part not in {"", "."}]
    if not kept:
        raise UserError(f"checkpoint.uri {uri!r} names the root; use a directory of its own")
    return "/" + "/".join(kept)
