"""An HDFS with Kerberos and permissions, which daemons reach as the owners of jobs (`hadoop.proxy_users`)."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.checkpoints.local_copies import LocalCopies
from agent.checkpoints.saver import Saver, SaverSite
from agent.data.mounts import DataMounts
from recovery.mount.control import end
from recovery.mount.record import MountFiles
from recovery.retention.collect import delete_checkpoint
from recovery.stores.allowed import AllowedStores
from recovery.stores.code import CodeReader
from recovery.stores.hdfs_client import HdfsClient
from recovery.stores.open import Stores
from supervisor.adapters import service
from supervisor.adapters.caller import CALLER
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination
from supervisor.adapters.etcd.memory_store import MemoryStore
from supervisor.adapters.files.config.agent import load_agent
from supervisor.adapters.files.hadoop import HadoopSettings, Kerberos
from supervisor.cli.checks import cluster as doctor
from supervisor.cli.checks import model
from supervisor.cli.cluster.findings import Finding, State
from supervisor.contract import codec, keys
from supervisor.contract.access import Caller, Kind, Role, Standing
from supervisor.contract.boundaries import Delete, ModifiedAt, Put
from supervisor.contract.checkpoint import CheckpointRef, CommitState
from supervisor.contract.code import CHUNK_BYTES, CodePart
from supervisor.contract.desired import ClusterRecord
from supervisor.contract.errors import Refused, StoreUnreachable, UserError
from supervisor.contract.job.spec import JobRecord
from supervisor.contract.timing import FAST
from supervisor.contract.views.jobs import SubmitRequest
from supervisor.control.decide.plan import put
from supervisor.control.loop.code_sweep import CodeSweep
from supervisor.control.services.code_uploads import CodeUploads
from supervisor.control.services.jobs import JobService
from tests.checkpoints.world import COMMIT, NODE, World, save
from tests.cli.agent_config import write_config
from tests.control.leader import Leader, other_job
from tests.support.builders import code_archive
from tests.support.secure_hdfs import CLIENT, SecureHdfs
from tests.support.sinks import ListSink
from tests.support.users import processes_of_users

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DATA = bytes(range(256)) * 9000
OWNERS = ("ann", "bob")
PROPERTIES = {
    "dfs.permissions.enabled": "true",
    "hadoop.proxyuser.tfsup.hosts": "localhost",
    "hadoop.proxyuser.tfsup.users": ",".join(OWNERS),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[SecureHdfs]:
    """Ann and bob have each a directory that nobody else may pass."""
    with SecureHdfs(PROPERTIES) as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KRB5_CONFIG", made.environment["KRB5_CONFIG"])
        patch.setenv("KRB5CCNAME", f"FILE:{made.directory}/nobody")
        for owner in OWNERS:
            made.give(f"/jobs/{owner}", owner)
        yield made


def settings(cluster: SecureHdfs, *, proxy_users: bool = True) -> HadoopSettings:
    kerberos = Kerberos(CLIENT, str(cluster.keytab))
    return HadoopSettings(str(cluster.conf_dir), None, kerberos, proxy_users)


@pytest.fixture
async def stores(cluster: SecureHdfs) -> AsyncIterator[Stores]:
    made = Stores(settings(cluster))
    yield made
    await made.close()


def at(cluster: SecureHdfs, user: str, path: str) -> str:
    return cluster.uri.replace("hdfs://", f"hdfs://{user}@") + path


def owners(cluster: SecureHdfs, path: str) -> set[str]:
    """Of all files and directories below a path."""
    return {each.owner for each in cluster.superuser().list_status(path, recursive=True)}


async def test_what_is_written_for_a_job_is_its_owners(
    cluster: SecureHdfs, stores: Stores, tmp_path: Path
) -> None:
    (tmp_path / "source").write_bytes(DATA)
    for owner in OWNERS:
        store = stores.open(at(cluster, owner, f"/jobs/{owner}/written"))
        await store.prepare()
        sent = await store.upload(str(tmp_path / "source"), "a/data")
        assert sent.size == len(DATA)
        assert await store.crc32c("a/data") == sent.crc32c
        assert owners(cluster, f"/jobs/{owner}/written") == {owner}
    daemon = HdfsClient(cluster.uri.removeprefix("hdfs://"), settings(cluster, proxy_users=False))
    with pytest.raises(Refused, match="Permission denied: user=tfsup"):
        await daemon.list("/jobs/ann/written")
    await daemon.close()
    await stores.open(at(cluster, "ann", "/jobs/ann/written")).delete_tree("a")
    with pytest.raises(Refused, match="Permission denied: user=bob"):
        await stores.open(at(cluster, "bob", "/jobs/ann/written")).delete_tree("a")


async def test_no_connection_of_one_user_is_used_for_another(cluster: SecureHdfs, stores: Stores) -> None:
    """Both at once, again and again, over one directory of ann's."""
    await stores.open(at(cluster, "ann", "/jobs/ann/both")).prepare()

    async def look(user: str) -> str:
        try:
            await stores.open(at(cluster, user, "/jobs/ann/both")).list("")
        except Refused as error:
            return str(error)
        return "seen"

    told = await asyncio.gather(*(look(user) for _ in range(20) for user in OWNERS))
    assert set(told[::2]) == {"seen"}
    assert all("user=bob" in each for each in told[1::2])


async def test_a_user_whom_hdfs_does_not_let_us_be_is_refused_at_once(
    cluster: SecureHdfs, stores: Stores
) -> None:
    began = time.monotonic()
    with pytest.raises(
        Refused,
        match=r"as mallory: User: tfsup/localhost@TEST is not allowed to impersonate mallory; "
        r".*hadoop\.proxyuser\.tfsup\.hosts.*refreshSuperUserGroupsConfiguration",
    ):
        await stores.open(at(cluster, "mallory", "/jobs/mallory")).prepare()
    assert time.monotonic() - began < 15, "it is not tried again until its time is over"


async def test_a_job_is_submitted_into_directories_of_its_owner_alone(
    cluster: SecureHdfs, stores: Stores
) -> None:
    leader = Leader()
    service = JobService(
        MemoryCoordination(leader.world.store),
        *(stores.open, BootClock(), lambda: "new-uuid", lambda: None, leader.world.snapshot),
        allowed=AllowedStores(proxy_users=True),
    )
    spec = other_job(f"{cluster.uri}/jobs/ann/job")
    CALLER.set(Caller(Kind.USER, "bob", Standing(Role.SUBMITTER)))
    with pytest.raises(Refused, match="Permission denied: user=bob"):
        await service.submissions.submit(SubmitRequest(spec))
    assert leader.record("other") is None
    CALLER.set(Caller(Kind.USER, "ann", Standing(Role.SUBMITTER)))
    await service.submissions.submit(SubmitRequest(spec))
    record = leader.record("other")
    assert record is not None
    assert record.store_uri == at(cluster, "ann", "/jobs/ann/job")
    assert owners(cluster, "/jobs/ann/job") == {"ann"}


async def test_an_agent_commits_as_the_owner(cluster: SecureHdfs, stores: Stores, tmp_path: Path) -> None:
    store = stores.open(at(cluster, "ann", "/jobs/ann/committed"))
    await store.prepare()
    world = World(tmp_path / "parent", store, MemoryCoordination(MemoryStore()))
    await world.put_switch(1)
    identity = await world.register()
    node = await world.coordination.get(identity.compare.key)
    assert node is not None
    fence = ModifiedAt(node.key, node.mod_revision)
    site = SaverSite(
        *(NODE, "i1", world.parent, store, world.coordination, world.clock, ListSink()),
        *(lambda: fence, world.next_id, lambda: 1, LocalCopies(world.parent.parent)),
    )
    saver = Saver(COMMIT, site)
    saver.start()
    save(world.parent, CheckpointRef(1, 10))
    async with asyncio.timeout(60):
        while True:
            if records := await world.records():
                break
            await asyncio.sleep(0.05)
    saver.stop()
    (record,) = records
    assert owners(cluster, f"/jobs/ann/committed/{record.path}") == {"ann"}
    await delete_checkpoint(store, replace(record, state=CommitState.COLLECTING))
    assert not (await store.list(record.path)).files
    assert not owners(cluster, "/jobs/ann/committed") - {"ann"}
    await world.coordination.close()


async def test_shipped_code_is_written_read_and_removed_as_the_user_of_its_store(
    cluster: SecureHdfs, stores: Stores
) -> None:
    world = Leader().world
    world.write(put(keys.CLUSTER, ClusterRecord("c", "fast", FAST.d_ms, uuid="us")))
    etcd = MemoryCoordination(world.store)
    uploads = CodeUploads(etcd, world.snapshot, stores.open, lambda: "id")
    uploads.store = at(cluster, "ann", "/jobs/ann/code")
    ref, data = code_archive(CHUNK_BYTES + 5)
    texts = [base64.b64encode(each).decode() for each in (data[:CHUNK_BYTES], data[CHUNK_BYTES:])]
    for index, text in enumerate(texts):
        await uploads.put(CodePart(ref.digest, ref.size, index, text))
    assert (await uploads.find(ref)).complete
    reader = CodeReader(etcd, stores.open, ref.digest)
    assert await reader.read(0) + await reader.read(1) == data
    assert owners(cluster, "/jobs/ann/code") == {"ann"}
    assert world.store.commit([], [Delete(keys.shipped(ref.digest))], []).succeeded
    await CodeSweep(etcd, stores.open, world.snapshot, uploads.store, ListSink()).sweep()
    assert (await stores.open(uploads.store).list("us")).directories == ()


async def test_doctor_shows_whom_hdfs_does_not_let_an_agent_be(
    cluster: SecureHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kerberos = {"principal": CLIENT, "keytab": str(cluster.keytab)}
    hadoop = {"conf_dir": str(cluster.conf_dir), "kerberos": kerberos, "proxy_users": True}
    scene = model.Scene(load_agent(write_config(tmp_path, hadoop=hadoop)), "")
    kept = MemoryStore()
    monkeypatch.setattr(service, "connect", lambda _config: MemoryCoordination(kept))
    (check,) = (each for each in doctor.CHECKS if each.name == "hadoop.proxy_users")

    async def told(*users: str) -> Finding:
        for user in users:
            record = JobRecord(other_job(f"{cluster.uri}/jobs/{user}/x"), "uuid", 0, hdfs_user=user)
            assert kept.commit([], [Put(keys.job_record(user), codec.encode(record))], []).succeeded
        (found,) = await asyncio.to_thread(model.run, [check], scene)
        return found

    assert (await told()).detail == "no job is in HDFS yet"
    assert (await told("ann", "bob")).detail == "reached as ann, bob"
    found = await told("mallory")
    assert found.state is State.FAIL
    assert "not allowed to impersonate mallory" in found.detail


async def test_a_process_that_dies_is_replaced(cluster: SecureHdfs, stores: Stores) -> None:
    store = stores.open(at(cluster, "ann", "/jobs/ann/dies"))
    await store.prepare()
    (process,) = processes_of_users()
    process.kill()
    await asyncio.to_thread(process.wait, 10)
    async with asyncio.timeout(30):
        while True:
            try:
                assert not (await store.list("")).files
                return
            except StoreUnreachable:
                continue


async def test_data_is_read_as_the_jobs_owner(cluster: SecureHdfs, stores: Stores, tmp_path: Path) -> None:
    store = stores.open(at(cluster, "ann", "/jobs/ann/data"))
    await store.prepare()
    await store.write_bytes("a", DATA)
    mounts = DataMounts(tmp_path, stores, settings(cluster), BootClock(), ListSink())
    mounts.open()
    mine, others = ({"train": at(cluster, user, "/jobs/ann/data")} for user in OWNERS)
    mounts.keep(frozenset({("job-of-ann", mine["train"])}))
    try:
        await mounts.ensure("a", "job-of-ann", mine)
        directory = Path(mounts.directories("job-of-ann", mine)["train"])
        assert await asyncio.to_thread((directory / "a").read_bytes) == DATA
        with pytest.raises(Refused, match=r"data\.train: .*Permission denied: user=bob"):
            await mounts.ensure("b", "job-of-bob", others)
        with pytest.raises(UserError, match="names no user of HDFS"):
            await mounts.ensure("c", "job-of-nobody", {"train": f"{cluster.uri}/jobs/ann/data"})
    finally:
        await mounts.close()
        for wish in mounts.wished():
            end(MountFiles(Path(wish.directory).parent, 0), Path(wish.directory))
        for child in mounts._healer._children.values():
            await asyncio.to_thread(child.wait, 30)
