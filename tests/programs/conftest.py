"""One embedded cluster for the programs that a process runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.examples.harness import Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Down again with the module: its nodes are not idle beside the tests that follow."""
    options = ("--profile", "default")
    with Cluster(tmp_path_factory.mktemp("programs") / "state", nodes=2, options=options, spares=0) as found:
        yield found
