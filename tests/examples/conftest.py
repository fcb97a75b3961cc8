"""One embedded cluster for all tests of the examples that a process runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.examples.harness import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Up with the first test that asks for it, down with the process."""
    with Cluster(tmp_path_factory.mktemp("examples") / "state") as found:
        yield found
