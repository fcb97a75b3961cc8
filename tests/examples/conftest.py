"""One embedded cluster of each runtime for all tests of the examples that a process runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.container_image import IMAGE, USER_ID, site_packages
from chaos.dockerd import Dockerd
from tests.examples.harness import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Up with the first test that asks for it, down with the process."""
    with Cluster(tmp_path_factory.mktemp("examples") / "state") as found:
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
    directory = tmp_path_factory.mktemp("contained")
    (directory / "jobs").mkdir()
    mounts = (str(site_packages()), str(directory / "jobs"), f"{scratches}:rw")
    options = (
        # On a machine of two cores its containers outweigh the daemons.
        *("--profile", "default"),
        *("--runtime", "docker", "--socket", str(dockerd.socket), "--image", IMAGE),
        *(word for mount in mounts for word in ("--mount", mount)),
    )
    env = {"PYTHONPATH": str(site_packages())}
    with Cluster(directory / "state", options=options, env=env) as found:
        yield found
