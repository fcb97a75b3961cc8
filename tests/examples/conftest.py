"""One embedded cluster of each runtime for all tests of the examples that a process runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.container_image import USER_ID
from chaos.dockerd import Dockerd
from tests.examples.harness import Cluster, in_containers


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Up with the first test that asks for it, down with the process."""
    # Of its durations a machine that stands still for a while makes no lost node. None of these jobs moves:
    # launchers in reserve would import TensorFlow twice more for each.
    options = ("--profile", "default")
    with Cluster(tmp_path_factory.mktemp("examples") / "state", nodes=2, options=options, spares=0) as found:
        yield found


@pytest.fixture(scope="session")
def scratches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that containers may write to, too."""
    found = tmp_path_factory.mktemp("scratches")
    os.chown(found, USER_ID, USER_ID)
    return found


@pytest.fixture(scope="session")
def contained(
    tmp_path_factory: pytest.TempPathFactory, dockerd: Dockerd, scratches: Path
) -> Iterator[Cluster]:
    """The same with every task in a container."""
    with in_containers(tmp_path_factory.mktemp("contained") / "state", dockerd, scratches) as found:
        yield found
