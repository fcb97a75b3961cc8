"""NameNodes that refuse the connection: an error of ours, never a panic of the library. No HDFS is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.stores.hdfs_client import HdfsClient
from recovery.stores.hdfs_files import Patience
from supervisor.adapters.files.hadoop import HadoopSettings
from supervisor.contract.errors import StoreUnreachable
from tests.support.ports import free_port

# The last try is cut short by `call_ms`, and that must not hide why those before it failed.
HASTY = Patience(answer_ms=5_000, call_ms=1_500, pause_ms=50)


async def test_one_that_refuses() -> None:
    port = free_port()
    client = HdfsClient(f"127.0.0.1:{port}", HadoopSettings(), HASTY)
    with pytest.raises(StoreUnreachable, match=rf"127\.0\.0\.1:{port}.*Connection refused"):
        await client.info("/")
    await client.close()


@pytest.mark.parametrize("count", [2, 3])
async def test_all_of_a_nameservice_refuse(tmp_path: Path, count: int) -> None:
    names = [f"nn{index}" for index in range(count)]
    properties = {"dfs.nameservices": "ns1", "dfs.ha.namenodes.ns1": ",".join(names)}
    for name in names:
        properties[f"dfs.namenode.rpc-address.ns1.{name}"] = f"127.0.0.1:{free_port()}"
    lines = "".join(
        f"<property><name>{key}</name><value>{value}</value></property>" for key, value in properties.items()
    )
    (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{lines}</configuration>")
    client = HdfsClient("ns1", HadoopSettings(conf_dir=str(tmp_path)), HASTY)
    with pytest.raises(StoreUnreachable, match="Connection refused"):
        await client.info("/")
    await client.close()
