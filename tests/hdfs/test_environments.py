"""Archives and wheels of environments in HDFS, where users have put them: in no store of ours."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from agent.environments.files import PIECE_BYTES, PlainFiles
from chaos.hdfs import HdfsCluster
from recovery.stores.hdfs_client import HdfsClient
from recovery.stores.open import Stores
from supervisor.adapters.files.hadoop import HadoopSettings
from supervisor.contract.errors import BadArchive, NotFound, UserError

DATA = os.urandom(PIECE_BYTES + 12_345)


async def test_files_are_listed_and_copied_as_they_are(hdfs: HdfsCluster, tmp_path: Path) -> None:
    hadoop = HadoopSettings(conf_dir=str(hdfs.conf_dir))
    uri = hdfs.fresh_uri("wheels")
    client = HdfsClient(hdfs.uri.removeprefix("hdfs://"), hadoop)
    writer = await client.create(f"{uri.removeprefix(hdfs.uri)}/a.whl", overwrite=False, parents=True)
    await writer.write(DATA)
    await writer.close()
    await client.close()
    stores = Stores(hadoop)
    files = PlainFiles(stores)
    assert await files.names(uri) == {"a.whl": len(DATA)}
    sha256 = await files.fetch(f"{uri}/a.whl", tmp_path / "a", len(DATA))
    assert sha256 == hashlib.sha256(DATA).hexdigest()
    assert (tmp_path / "a").read_bytes() == DATA
    with pytest.raises(BadArchive, match="has more than"):
        await files.fetch(f"{uri}/a.whl", tmp_path / "b", len(DATA) - 1)
    with pytest.raises(NotFound):
        await files.fetch(f"{uri}/none.whl", tmp_path / "c", 1)
    with pytest.raises(NotFound):
        await files.names(f"{uri}/none")
    await stores.close()
    as_owners = PlainFiles(Stores(HadoopSettings(conf_dir=str(hdfs.conf_dir), proxy_users=True)))
    with pytest.raises(UserError, match="as a job's owner"):
        await as_owners.names(uri)
