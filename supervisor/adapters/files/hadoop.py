"""Hadoop's client configuration: the clusters, our user there, and their addresses.

The files are those that every Hadoop tool reads: `core-site.xml` and `hdfs-site.xml` in one directory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from xml.parsers import expat

from supervisor.contract.errors import UserError

CONF_DIR_VARIABLE = "HADOOP_CONF_DIR"
HOME_VARIABLE = "HADOOP_HOME"
USER_VARIABLE = "HADOOP_USER_NAME"
PROXY_USER_VARIABLE = "HADOOP_PROXY_USER"
TICKET_CACHE_VARIABLE = "KRB5CCNAME"
CONF_FILES = ("core-site.xml", "hdfs-site.xml")
MAX_CONF_BYTES = 4 * 1024 * 1024
_NAMENODES = "dfs.ha.namenodes"
_RPC_ADDRESS = "dfs.namenode.rpc-address"
_WEB_ADDRESS = "dfs.namenode.http-address"
_WEB_PORT = "9870"
_ANY_HOST = {"", "0.0.0.0", "::", "[::]"}


@dataclass(frozen=True, slots=True)
class Kerberos:
    """Our identity in a secure cluster. With neither file the ticket of the environment is used.

    Attributes:
        principal: `name/host@REALM`.
        keytab: file with its keys; tickets are then fetched as needed.
        cache: ticket cache that another program keeps fresh (kinit, k5start).
    """

    principal: str
    keytab: str | None = None
    cache: str | None = None


@dataclass(frozen=True, slots=True)
class HadoopSettings:
    """The settings for Hadoop in a daemon's configuration; omitted values come from the environment.

    Attributes:
        conf_dir: directory of `core-site.xml` and `hdfs-site.xml`; None for $HADOOP_CONF_DIR, then
            $HADOOP_HOME/etc/hadoop.
        user: our user in a cluster without Kerberos; None for $HADOOP_USER_NAME, then the user of the
            process.
        kerberos: for a cluster with Kerberos.
        proxy_users: a job's store is reached as the job's owner, by Hadoop's proxy users.
    """

    conf_dir: str | None = None
    user: str | None = None
    kerberos: Kerberos | None = None
    proxy_users: bool = False

    def directory(self) -> Path | None:
        """The directory of the configuration; None if none is set."""
        if self.conf_dir:
            return Path(self.conf_dir)
        if named := os.environ.get(CONF_DIR_VARIABLE):
            return Path(named)
        if home := os.environ.get(HOME_VARIABLE):
            return Path(home) / "etc" / "hadoop"
        return None

    def put_into_environment(self) -> None:
        """Put the user and the directory into this process's environment, where the client library reads its
        user.

        So one process has one user in all clusters without Kerberos.
        """
        if self.user:
            os.environ[USER_VARIABLE] = self.user
        if self.conf_dir:
            os.environ[CONF_DIR_VARIABLE] = self.conf_dir


def inherited_environment() -> dict[str, str]:
    """This process's environment, for one that starts in another directory: Hadoop's paths are absolute."""
    env = dict(os.environ)
    for name in (CONF_DIR_VARIABLE, HOME_VARIABLE):
        if env.get(name):
            env[name] = str(Path(env[name]).absolute())
    return env


@dataclass(frozen=True, slots=True)
class NameNode:
    """One NameNode of a nameservice: its id in the configuration, and `HOST:PORT`."""

    id: str
    address: str


@dataclass(frozen=True, slots=True)
class HadoopConf:
    """The properties of the files; those of the later file win."""

    properties: dict[str, str]

    @property
    def secure(self) -> bool:
        """Whether its clusters have Kerberos."""
        return self.properties.get("hadoop.security.authentication", "simple").lower() == "kerberos"

    @property
    def nameservices(self) -> tuple[str, ...]:
        """Names of the clusters with several NameNodes, sorted."""
        prefix = f"{_NAMENODES}."
        return tuple(sorted(name.removeprefix(prefix) for name in self.properties if name.startswith(prefix)))

    def namenodes(self, nameservice: str) -> tuple[NameNode, ...]:
        """The NameNodes of a nameservice, in the order of the configuration; empty for an unknown one."""
        ids = self.properties.get(f"{_NAMENODES}.{nameservice}", "")
        found = []
        for name in (part.strip() for part in ids.split(",")):
            address = self.properties.get(f"{_RPC_ADDRESS}.{nameservice}.{name}")
            if name and address:
                found.append(NameNode(name, address))
        return tuple(found)

    def nameservice_of(self, address: str) -> str | None:
        """The nameservice that has this `HOST:PORT` among its NameNodes."""
        for nameservice in self.nameservices:
            if any(node.address.lower() == address.lower() for node in self.namenodes(nameservice)):
                return nameservice
        return None

    def web_addresses(self, authority: str) -> tuple[str, ...]:
        """The HTTP addresses of the NameNodes of a nameservice, or of the one at `HOST:PORT`, as `HOST:PORT`
        each.

        Empty for a cluster with HTTPS alone or with Kerberos, which this client does not support over HTTP.
        """
        policy = self.properties.get("dfs.http.policy", "HTTP_ONLY").upper()
        if policy == "HTTPS_ONLY" or self.secure:
            return ()
        known = self.namenodes(authority)
        rpc = {f"{_WEB_ADDRESS}.{authority}.{node.id}": node.address for node in known}
        return tuple(self._web_address(name, at) for name, at in (rpc or {_WEB_ADDRESS: authority}).items())

    def _web_address(self, name: str, rpc_address: str) -> str:
        """The HTTP address of a NameNode, with Hadoop's own defaults for omitted parts."""
        host, _, port = self.properties.get(name, "").rpartition(":")
        if host in _ANY_HOST:
            host = rpc_address.rpartition(":")[0]
        return f"{host}:{port or _WEB_PORT}"

    @staticmethod
    def reordered(nameservice: str, nodes: tuple[NameNode, ...], first: int) -> dict[str, str]:
        """The property that makes a client try the NameNode at index `first` before the others."""
        turned = (*nodes[first:], *nodes[:first])
        return {f"{_NAMENODES}.{nameservice}": ",".join(node.id for node in turned)}


def read_conf(directory: Path | None) -> HadoopConf:
    """Read the files of a configuration directory; absent files are ignored.

    Raises UserError when the directory is absent, or a file cannot be read or is no Hadoop configuration.
    """
    properties: dict[str, str] = {}
    if directory is None:
        return HadoopConf(properties)
    if not directory.is_dir():
        raise UserError(
            f"the Hadoop configuration directory {directory} does not exist; set {CONF_DIR_VARIABLE}"
        )
    for name in CONF_FILES:
        path = directory / name
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_CONF_BYTES + 1)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
        if len(raw) > MAX_CONF_BYTES:
            raise UserError(f"{path} is larger than {MAX_CONF_BYTES} bytes; is it a Hadoop configuration?")
        properties.update(_parse(raw, path))
    return HadoopConf(properties)


def _parse(raw: bytes, path: Path) -> dict[str, str]:
    reader = _Properties(path)
    try:
        reader.parser.Parse(raw, True)
    except expat.ExpatError as error:
        raise UserError(f"{path}:{error.lineno}: is no XML: {expat.ErrorString(error.code)}") from error
    return reader.found


class _Properties:
    """Collects `<property><name>..</name><value>..</value></property>`; entities are refused."""

    def __init__(self, path: Path) -> None:
        self.found: dict[str, str] = {}
        self._path = path
        self._fields: dict[str, str] = {}
        self._text: list[str] = []
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text.append
        self.parser.EntityDeclHandler = self._entity

    def _start(self, tag: str, _attributes: dict[str, str]) -> None:
        self._text.clear()
        if tag == "property":
            self._fields.clear()

    def _end(self, tag: str) -> None:
        if tag in {"name", "value"}:
            self._fields[tag] = "".join(self._text).strip()
        elif tag == "property" and self._fields.get("name"):
            self.found[self._fields["name"]] = self._fields.get("value", "")

    def _entity(self, *_declaration: object) -> None:
        raise UserError(f"{self._path}: declares XML entities, which Hadoop does not need; remove them")
