"""Which stores a daemon may use: a job names any place, and the daemon has rights of its own there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recovery.mount.open import open_backend
from recovery.stores.allowed import EVERYWHERE, AllowedStores, entries_or_default
from recovery.stores.open import Stores
from supervisor.adapters.hadoop import HadoopSettings
from supervisor.contract.errors import UserError

CONF = """<configuration>
<property><name>dfs.nameservices</name><value>prod</value></property>
<property><name>dfs.ha.namenodes.prod</name><value>a,b</value></property>
<property><name>dfs.namenode.rpc-address.prod.a</name><value>nn-a:8020</value></property>
<property><name>dfs.namenode.rpc-address.prod.b</name><value>nn-b:8020</value></property>
</configuration>"""


def may_use(uri: str, *entries: str, hadoop: HadoopSettings | None = None) -> bool:
    stores = Stores(hadoop or HadoopSettings(), allowed=AllowedStores(entries))
    try:
        stores.place(uri)
    except UserError:
        return False
    return True


@pytest.mark.parametrize("uri", ["file:///data/ckpt", "/data/ckpt/a", "file://localhost/data//ckpt/./a/b"])
def test_a_directory_is_allowed_with_all_below_it(uri: str) -> None:
    assert may_use(uri, "file:///data/ckpt")


@pytest.mark.parametrize(
    "uri", ["/etc", "/data", "/data/ckpt2", "/data/ckp", "hdfs://data/ckpt", "hdfs://nn:1/data/ckpt"]
)
def test_all_else_is_refused(uri: str) -> None:
    assert not may_use(uri, "file:///data/ckpt")


def test_the_error_names_the_field_and_what_is_allowed() -> None:
    with pytest.raises(UserError, match="file:///data") as caught:
        AllowedStores(("file:///data",)).check(Stores().place("/etc"))
    assert caught.value.field == ("checkpoint", "uri")


def test_a_kind_is_allowed_as_a_whole() -> None:
    assert may_use("/etc", "file:")
    assert not may_use("hdfs://nn:1/a", "file:")
    assert may_use("hdfs://nn:1/a", "hdfs:")


def test_a_namenode_is_its_nameservice(tmp_path: Path) -> None:
    (tmp_path / "hdfs-site.xml").write_text(CONF)
    hadoop = HadoopSettings(str(tmp_path))
    assert may_use("hdfs://nn-b:8020/jobs/a", "hdfs://prod/jobs", hadoop=hadoop)
    assert not may_use("hdfs://nn-c:8020/jobs/a", "hdfs://prod/jobs", hadoop=hadoop)


def test_a_mount_is_opened_nowhere_else() -> None:
    with pytest.raises(UserError, match="in no store"):
        open_backend("file:///etc", Stores(allowed=AllowedStores(("file:///data",))))


def test_root_takes_no_directory_that_nobody_has_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert entries_or_default([]) == ("hdfs:",)
    assert entries_or_default(["/data"]) == ("/data",)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert entries_or_default([]) == EVERYWHERE


def test_an_entry_that_is_no_place_names_the_setting() -> None:
    with pytest.raises(UserError, match="`stores:`"):
        AllowedStores(("relative/path",))
