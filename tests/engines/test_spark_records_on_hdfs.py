"""Partitions of Spark as files of a real HDFS."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chaos.hdfs import HdfsCluster
from recovery.stores.open import Stores
from supervisor.engines.spark.records import make_room, put_in_place, write_partition
from tests.engines.tfrecords import read_records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_data_takes_the_place_of_former_data(
    hdfs: HdfsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf_dir))
    uri = hdfs.fresh_uri("records")
    for content in (b"first", b"second"):
        fresh = asyncio.run(make_room(uri, "train"))
        for index in range(2):
            assert list(write_partition(uri, fresh, index, [content] * (index + 1))) == [index + 1]
        # Spark runs a task twice.
        assert list(write_partition(uri, fresh, 0, [b"other"])) == [1]
        asyncio.run(put_in_place(uri, fresh, "train", [1, 2]))
        assert asyncio.run(read_all(uri, tmp_path / content.decode())) == {
            "part-00000.tfrecord": [content],
            "part-00001.tfrecord": [content] * 2,
        }


async def read_all(uri: str, directory: Path) -> dict[str, list[bytes]]:
    directory.mkdir()
    stores = Stores()
    store = stores.open(uri)
    assert (await store.list("")).directories == ("train",)
    names = [each.path.rpartition("/")[2] for each in (await store.list("train")).files]
    for name in names:
        await store.download(f"train/{name}", str(directory / name))
    await stores.close()
    return {name: read_records(directory / name) for name in names}
