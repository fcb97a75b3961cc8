"""Stores that a daemon may use: a job names any place, and the daemon has rights of its own there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.checkpoints.allowed import Places
from recovery.mount.open import open_backend
from recovery.stores.allowed import ANYWHERE, EVERYWHERE, AllowedStores, entries_or_default
from recovery.stores.open import Stores
from recovery.stores.user_stores import UserStore
from supervisor.adapters.etcd.memory import MemoryCoordination
from supervisor.adapters.etcd.memory_store import MemoryStore
from supervisor.adapters.files.hadoop import HadoopSettings
from supervisor.adapters.files.store_uri import parse_uri
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Put
from supervisor.contract.errors import StoreUnreachable, UserError
from supervisor.contract.job.spec import JobRecord
from tests.support.builders import job_spec

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


ALICES = "file:///data/{owner}/jobs"


@pytest.mark.parametrize(
    ("uri", "owner", "may"),
    [
        ("/data/alice/jobs/a", "user:alice", True),
        ("/data/alice/jobs", "user:alice", True),
        ("/data/alice@example.com/jobs/a", "user:alice@example.com", True),
        ("/data/bob/jobs/a", "user:alice", False),
        ("/data/alice", "user:alice", False),
        ("/data/alice/other", "user:alice", False),
        ("/data/jobs", "user:alice", False),
        ("/data/{owner}/jobs/a", "user:alice", False),
        ("/data/uid:0/jobs/a", "uid:0", False),
        ("/data/uid/jobs/a", "uid:0", False),
        ("/data/jobs/jobs", "", False),
        ("/data/token/jobs/a", "token", False),
        ("/data/alice/jobs/a", None, True),
        ("/data/alice/other/a", None, False),
    ],
)
def test_a_place_of_each_user_is_for_jobs_of_that_user(uri: str, owner: str | None, may: bool) -> None:
    allowed = AllowedStores((ALICES, "hdfs:"))
    assert allowed.by_owner
    if may:
        allowed.check(parse_uri(uri), owner)
        return
    with pytest.raises(UserError, match="in no store"):
        allowed.check(parse_uri(uri), owner)


def test_the_error_names_the_users_own_place() -> None:
    allowed = AllowedStores((ALICES,))
    with pytest.raises(UserError, match=r"\(file:///data/alice/jobs\)"):
        allowed.check(parse_uri("/data/bob/jobs"), "user:alice")
    with pytest.raises(UserError, match=r"uid:0 is no user, and has no place of its own"):
        allowed.check(parse_uri("/data/bob/jobs"), "uid:0")


@pytest.mark.parametrize(
    "entry", ["file:///data/{owner}s", "file:///data/x-{owner}/jobs", "hdfs://{owner}/a"]
)
def test_the_owner_is_a_whole_directory(entry: str) -> None:
    with pytest.raises(UserError, match="`stores:`"):
        AllowedStores((entry,))


async def test_an_agent_asks_whose_job_it_is() -> None:
    store = MemoryStore()
    coordination = MemoryCoordination(store)
    stores = Stores(allowed=AllowedStores((ALICES,)))
    record = JobRecord(job_spec(name="digits"), "uuid", 0, owner="user:alice")
    await coordination.txn((), [Put(keys.job_record("digits"), codec.encode(record))])
    places = Places(coordination, stores)
    await places.check("digits", "uuid", "file:///data/alice/jobs/a")
    stores.open("file:///data/bob/jobs/a")
    with pytest.raises(UserError, match="in no store"):
        await places.check("digits", "uuid", "file:///data/bob/jobs/a")
    with pytest.raises(StoreUnreachable, match="is over"):
        await places.check("digits", "uuid of its next life", "file:///data/alice/jobs/a")
    await Places(coordination, Stores()).check("unknown", "u", "file:///data/bob")


AS_OWNERS = AllowedStores(proxy_users=True)


@pytest.mark.parametrize("owner", ["", "uid:0", "token", "anyone", "user:ann@example.com"])
def test_an_owner_who_is_no_user_of_hdfs_is_refused_there_alone(owner: str) -> None:
    with pytest.raises(UserError, match=f"{owner or 'nobody'} is no user there") as caught:
        AS_OWNERS.hdfs_user(parse_uri("hdfs://prod/a"), owner)
    assert caught.value.field == ("checkpoint", "uri")
    assert AS_OWNERS.hdfs_user(parse_uri("file:///a"), owner) == ""
    assert ANYWHERE.hdfs_user(parse_uri("hdfs://prod/a"), owner) == ""


def test_an_owner_is_the_hdfs_user_of_its_name() -> None:
    assert AS_OWNERS.hdfs_user(parse_uri("hdfs://prod/a"), "user:ann.b-c_1") == "ann.b-c_1"


async def test_an_agent_reaches_hdfs_as_nobody_but_the_owner() -> None:
    coordination = MemoryCoordination(MemoryStore())
    record = JobRecord(job_spec(name="digits"), "uuid", 0, owner="user:ann")
    await coordination.txn((), [Put(keys.job_record("digits"), codec.encode(record))])
    places = Places(coordination, Stores(allowed=AS_OWNERS))
    await places.check("digits", "uuid", "hdfs://ann@nn:1/a")
    with pytest.raises(UserError, match=r"is to be reached as bob, but the job is user:ann's"):
        await places.check("digits", "uuid", "hdfs://bob@nn:1/a")


async def test_a_daemon_reaches_hdfs_as_its_own_configuration_has_it_or_not_at_all() -> None:
    own, as_owners = Stores(), Stores(HadoopSettings(proxy_users=True))
    with pytest.raises(UserError, match=r"as ann; set `hadoop.proxy_users: true`"):
        own.open("hdfs://ann@nn:1/a")
    with pytest.raises(UserError, match="names no user of HDFS"):
        as_owners.open("hdfs://nn:1/a")
    for stores, uri in (
        (own, "hdfs://ann@nn:1/a"),
        (as_owners, "hdfs://ann@nn:1/a"),
        (as_owners, "hdfs://nn:1/a"),
    ):
        with pytest.raises(UserError, match=r"proxy_users.* mounted"):
            open_backend(uri, stores)
    assert isinstance(as_owners.open("hdfs://ann@nn:1/a"), UserStore)
    as_owners.open("file:///a")


async def test_an_agent_follows_no_link_out_of_a_users_own_directory(tmp_path: Path) -> None:
    disk, data = tmp_path / "disk", tmp_path / "data"
    for each in ("alice/jobs", "bob/jobs", "shared"):
        (disk / each).mkdir(parents=True)
    data.symlink_to(disk)  # the administrator's own link, above the users' directories
    (disk / "alice/jobs/away").symlink_to(disk / "bob/jobs")
    (disk / "shared/away").symlink_to(disk / "bob/jobs")
    coordination = MemoryCoordination(MemoryStore())
    record = JobRecord(job_spec(name="digits"), "uuid", 0, owner="user:alice")
    await coordination.txn((), [Put(keys.job_record("digits"), codec.encode(record))])
    allowed = AllowedStores((f"file://{data}/{{owner}}/jobs", f"file://{data}/shared"))
    places = Places(coordination, Stores(allowed=allowed))
    for fine in ("alice/jobs", "alice/jobs/new/deep", "shared/away/a"):
        await places.check("digits", "uuid", f"file://{data}/{fine}")
    with pytest.raises(UserError, match=r"leads by a link to .*/disk/bob/jobs/a") as caught:
        await places.check("digits", "uuid", f"file://{data}/alice/jobs/away/a")
    assert caught.value.field == ("checkpoint", "uri")
    (disk / "alice/jobs/away").unlink()
    (disk / "alice/jobs").rmdir()
    (disk / "alice/jobs").symlink_to(disk / "bob/jobs")
    with pytest.raises(UserError, match="leads by a link"):
        await places.check("digits", "uuid", f"file://{data}/alice/jobs/a")


def test_an_entry_that_is_no_place_names_the_setting() -> None:
    with pytest.raises(UserError, match="`stores:`"):
        AllowedStores(("relative/path",))
