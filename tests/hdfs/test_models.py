"""Models are published, withdrawn and removed in a real HDFS."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.hdfs import HdfsCluster
from recovery.models.index import put_forward, rolled_back
from recovery.models.store import ModelStore
from recovery.stores.open import Stores
from supervisor.adapters.files.hadoop import HadoopSettings
from tests.models.exported import export
from tests.models.site import MODEL, Site, state


@pytest.mark.slow
async def test_versions_come_and_go_by_renames_in_hdfs(hdfs: HdfsCluster, tmp_path: Path) -> None:
    stores = Stores(HadoopSettings(conf_dir=str(hdfs.conf_dir)))
    try:
        site = Site(tmp_path, stores.open(hdfs.fresh_uri("models")))
        await site.store.prepare()
        files = {number: export(site.out, f"export/{number}", b"%d" % number, number) for number in (1, 2, 3)}
        await site.publisher(state(keep=2)).look(final=True)
        assert await site.seen() == {2: files[2], 3: files[3]}
        found = ModelStore(site.store, MODEL)
        await found.update(lambda index, _: rolled_back(index, None))
        await found.settle()
        assert await site.seen() == {2: files[2]}
        await found.update(lambda index, _: put_forward(index, None))
        await found.settle()
        assert await site.seen() == {2: files[2], 3: files[3]}
        assert await site.rest() == []
        await site.store.rename(
            f"models/{MODEL}/3", f".models/{MODEL}/kept/{(await site.index()).find(3).id}"
        )
        await site.store.write_bytes(f"models/{MODEL}/3/theirs", b"x")
        await found.settle()
        assert found.blocked == (3,), "what somebody else has put there stays, and nothing goes into it"
        assert (await site.seen())[3] == {"theirs": b"x"}
    finally:
        await stores.close()
