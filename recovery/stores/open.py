"""From a job's checkpoint URI to its store."""

from __future__ import annotations

import importlib
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING

from recovery.io.daemon_threads import DaemonThreads
from recovery.stores.allowed import ANYWHERE, AllowedStores
from recovery.stores.code_directory import CodeDirectory
from recovery.stores.local import LocalStore
from recovery.stores.measured import MeasuredStore
from recovery.stores.user_stores import UserStores
from supervisor.adapters.files.hadoop import HadoopSettings, read_conf
from supervisor.adapters.files.store_uri import Scheme, StoreUri, parse_record_uri, parse_uri
from supervisor.adapters.metrics.daemon import Measured
from supervisor.contract.boundaries import CheckpointStore, Logger
from supervisor.contract.errors import UserError

if TYPE_CHECKING:
    from recovery.stores.hdfs_client import HdfsClient

_DEFAULTS = HadoopSettings()
CODE_THREADS = 4
"""Threads for each store of code that is a directory."""
LOG_NICE = 15
NOT_MOUNTED = (
    "a cluster that reaches HDFS as a job's owner (`hadoop.proxy_users`) takes no job with mounted "
    "checkpoints; write `mode: staged` (docs/hdfs.md)"
)


class Stores:
    """Opens the stores of one process. All stores in one HDFS cluster share one client.

    The modules for HDFS are imported when the first `hdfs://` URI is opened, if `preload` has not done so.
    `sink` gets warnings about stores that work with a restriction. Only places that are `allowed` are opened.

    Attributes:
        measured: where requests to jobs' stores are timed and counted; None: nowhere.
    """

    def __init__(
        self,
        hadoop: HadoopSettings = _DEFAULTS,
        executor: Executor | None = None,
        sink: Logger | None = None,
        allowed: AllowedStores = ANYWHERE,
    ) -> None:
        self._hadoop = hadoop
        self._executor = executor
        self._sink = sink
        self._allowed = allowed
        self._clients: dict[str, HdfsClient] = {}
        self._users = UserStores(hadoop)
        self._code_threads: dict[Path, Executor] = {}
        self.measured: Measured | None = None
        self._log_threads: dict[str, Executor] = {}

    def preload(self) -> None:
        """Import the modules for HDFS, if there is a configuration of Hadoop. Blocking."""
        if self._hadoop.directory() is not None and not self._hadoop.proxy_users:
            importlib.import_module("recovery.stores.hdfs")

    def open(self, uri: str) -> CheckpointStore:
        """The store at a URI of a job's record; connects to nothing.

        Raises UserError when it is none, or not allowed, or to be reached as somebody else than this daemon's
        configuration has it.
        """
        store = self._open(uri)
        return store if self.measured is None else MeasuredStore(store, self.measured)

    def _open(self, uri: str) -> CheckpointStore:
        place = self.place(uri)
        if place.scheme is Scheme.FILE:
            return LocalStore(Path(place.path), self._executor)
        if self._hadoop.proxy_users and not place.user:
            raise UserError(
                f"{place} is reached as the job's owner (`hadoop.proxy_users`), and the job's record names "
                "no user of HDFS; set that in all supervisors' files, then submit the job again with --resume"
            )
        if place.user and not self._hadoop.proxy_users:
            raise UserError(
                f"{place} is to be reached as {place.user}; set `hadoop.proxy_users: true` in this daemon's "
                "file, too"
            )
        if place.user:
            return self._users.open(self._known(place))
        store: CheckpointStore = importlib.import_module("recovery.stores.hdfs").HdfsStore(
            self.client(place), place.path, self._executor
        )
        return store

    def open_code(self, uri: str) -> CheckpointStore:
        """As `open`, for a store of shipped code.

        Each directory has threads of its own: one that hangs keeps them, and holds up no other store.
        """
        place = self.place(uri)
        if place.scheme is not Scheme.FILE:
            return self._open(uri)
        root = Path(place.path)
        if root not in self._code_threads:
            self._code_threads[root] = DaemonThreads(CODE_THREADS, "code")
        return CodeDirectory(root, self._code_threads[root])

    def open_logs(self, uri: str) -> tuple[CheckpointStore, Executor]:
        """As `open`, for the logs of a job; and the thread of low priority that works for them.

        Each store has a thread of its own: one that hangs keeps it, and holds up no checkpoint and no other
        job.
        """
        place = self.place(uri)
        threads = self._log_threads.setdefault(str(place), DaemonThreads(1, "logs", LOG_NICE))
        if place.scheme is Scheme.FILE:
            return LocalStore(Path(place.path), threads), threads
        return self.open(uri), threads

    def place(self, uri: str, owner: str | None = None) -> StoreUri:
        """The place of a URI, if this daemon may use it for a job of `owner`. Raises UserError.

        None: the place of any user is allowed.
        """
        place = parse_record_uri(uri)
        self._allowed.check(self._known(place), owner)
        return place

    def own_part(self, place: StoreUri, owner: str) -> str:
        """As `AllowedStores.own_part`."""
        return self._allowed.own_part(place, owner)

    def check_links(self, place: StoreUri) -> None:
        """As `AllowedStores.check_links`."""
        self._allowed.check_links(place)

    @property
    def by_owner(self) -> bool:
        """Whether the allowed places depend on the job's owner."""
        return self._allowed.by_owner

    @property
    def proxies(self) -> bool:
        """Whether HDFS is reached as the owners of jobs alone."""
        return self._hadoop.proxy_users

    def client(self, place: StoreUri) -> HdfsClient:
        """The client of the cluster in which `place` is, as this daemon. Raises UserError."""
        if place.user or self._hadoop.proxy_users:
            raise UserError(NOT_MOUNTED)
        authority = self._known(place).authority
        if authority not in self._clients:
            module = importlib.import_module("recovery.stores.hdfs_client")
            self._clients[authority] = module.HdfsClient(authority, self._hadoop, sink=self._sink)
        return self._clients[authority]

    def _known(self, place: StoreUri) -> StoreUri:
        return place if place.scheme is Scheme.FILE else place.known_to(read_conf(self._hadoop.directory()))

    async def close(self) -> None:
        """End the clients' work in the background and their connections, and the processes for users."""
        await self._users.close()
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()


def open_store(
    uri: str, executor: Executor | None = None, hadoop: HadoopSettings = _DEFAULTS
) -> CheckpointStore:
    """A store with a client of its own, for programs that end soon. Daemons share clients by `Stores`."""
    return Stores(hadoop, executor).open(uri)


def normal_uri(uri: str, hadoop: HadoopSettings = _DEFAULTS) -> str:
    """The normal form of a URI: equal places give equal texts. Raises UserError.

    A NameNode of a nameservice that Hadoop's configuration knows is written as that nameservice.
    """
    place = parse_uri(uri)
    if place.scheme is Scheme.HDFS:
        place = place.known_to(read_conf(hadoop.directory()))
    return str(place)
