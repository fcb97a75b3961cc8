"""The store of a job, opened by a command on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.errors import StoreUnreachable


@asynccontextmanager
async def open_store(uri: str) -> AsyncIterator[CheckpointStore]:
    """Open a store that the leader can read and this machine perhaps cannot.

    StoreUnreachable within is raised with what this machine needs.
    """
    from recovery.stores.open import Stores

    stores = Stores()
    try:
        yield stores.open(uri)
    except StoreUnreachable as error:
        where = "HADOOP_CONF_DIR and HADOOP_USER_NAME" if uri.startswith("hdfs:") else "the directory mounted"
        raise StoreUnreachable(
            f"{error}; the store is read from this machine, which needs {where}: {uri}"
        ) from error
    finally:
        await stores.close()
