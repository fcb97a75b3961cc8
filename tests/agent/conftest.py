"""An etcd for each module of real agents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.etcd_server import EtcdServer


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server
