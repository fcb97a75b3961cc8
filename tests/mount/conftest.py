"""A site on the local disk, and one on the real HDFS that all tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chaos.hdfs import HdfsCluster
from tests.mount.world import Site, hdfs_site, local_site


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Site]:
    site = local_site(tmp_path)
    yield site
    site.assert_clean()


@pytest.fixture
async def on_hdfs(hdfs: HdfsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    # Mount processes are told by the environment, as the agent's are.
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf_dir))
    site = hdfs_site(hdfs.fresh_uri("mount"), hdfs.conf_dir, tmp_path)
    yield site
    await site.stores.close()
    site.assert_clean()


@pytest.fixture(params=["local", "hdfs"])
def site(request: pytest.FixtureRequest) -> Site:
    found: Site = request.getfixturevalue("local" if request.param == "local" else "on_hdfs")
    return found
