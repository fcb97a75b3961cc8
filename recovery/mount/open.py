"""From a job's checkpoint URI to the backend of its mounts."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from pathlib import Path

from recovery.mount.backends.backend import Backend
from recovery.mount.backends.local import LocalBackend
from recovery.stores.open import Stores
from supervisor.adapters.files.hadoop import PROXY_USER_VARIABLE, USER_VARIABLE, HadoopSettings, read_conf
from supervisor.adapters.files.store_uri import Scheme, parse_record_uri
from supervisor.contract.errors import UserError


def open_backend(uri: str, stores: Stores) -> Backend:
    """The backend at `uri`, with the client that this process has for the cluster. Raises UserError."""
    place = stores.place(uri)
    if place.scheme is Scheme.FILE:
        return LocalBackend(Path(place.path))
    backend: Backend = importlib.import_module("recovery.mount.backends.hdfs").HdfsBackend(
        stores.client(place), place.path
    )
    return backend


def open_own_backend(uri: str, hadoop: HadoopSettings, call_ms: int, list_ms: int | None = None) -> Backend:
    """A backend with a client of its own, each call of which may take `call_ms`. Raises UserError.

    A user of HDFS that the URI names is the user of this process from now on: the library takes it from the
    environment.
    """
    place = parse_record_uri(uri)
    if place.scheme is Scheme.FILE:
        return LocalBackend(Path(place.path))
    authority = place.known_to(read_conf(hadoop.directory())).authority
    patience = importlib.import_module("recovery.stores.hdfs_files").Patience(call_ms=call_ms)
    if list_ms is not None:
        patience = replace(patience, list_ms=list_ms)
    if bool(place.user) != hadoop.proxy_users:
        raise UserError(f"{place} is to be reached as {place.user or 'nobody'}; see `hadoop.proxy_users`")
    if place.user:
        os.environ[PROXY_USER_VARIABLE] = os.environ[USER_VARIABLE] = place.user
    client = importlib.import_module("recovery.stores.hdfs_client").HdfsClient(authority, hadoop, patience)
    backend: Backend = importlib.import_module("recovery.mount.backends.hdfs").HdfsBackend(client, place.path)
    return backend
