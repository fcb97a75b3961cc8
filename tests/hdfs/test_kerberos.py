"""An HDFS with Kerberos: keytab, ticket cache, the environment's ticket; and what is said without one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from recovery.stores.hdfs import HdfsStore
from recovery.stores.hdfs_client import HdfsClient
from recovery.stores.hdfs_files import Patience
from supervisor.adapters.files.hadoop import HadoopSettings, Kerberos
from supervisor.contract.errors import Refused, StoreUnreachable
from tests.support import waiting
from tests.support.secure_hdfs import CLIENT, REALM, SecureHdfs, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
from tests.support import waiting
from tests.support.secure_hdfs import SecureHdfs
with SecureHdfs():
    print("ready", flush=True)
    input()
"""
DATA = bytes(range(256)) * 9000
START_S = 90.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[SecureHdfs]:
    with SecureHdfs() as made:
        yield made


@pytest.fixture(autouse=True)
def kerberos_of_the_test(cluster: SecureHdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5_CONFIG", cluster.environment["KRB5_CONFIG"])
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{cluster.directory}/nobody")


def client(cluster: SecureHdfs, kerberos: Kerberos | None) -> HdfsClient:
    settings = HadoopSettings(conf_dir=str(cluster.conf_dir), kerberos=kerberos)
    return HdfsClient(cluster.uri.removeprefix("hdfs://"), settings, Patience(call_ms=6_000))


async def up(store: HdfsStore, cluster: SecureHdfs) -> None:
    """Wait until NameNode and DataNode have started: the first write succeeds."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            return await store.prepare()
        except StoreUnreachable:
            assert time.monotonic() < deadline, cluster.last_words()
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("how", ["keytab", "cache", "environment"])
async def test_a_checkpoint_goes_in_and_comes_back(
    cluster: SecureHdfs, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = f"FILE:{cluster.directory}/cache-{how}"
    if how != "keytab":
        cluster.ticket(cache)
    if how == "environment":
        monkeypatch.setenv("KRB5CCNAME", cache)
    kerberos = {
        "keytab": Kerberos(CLIENT, str(cluster.keytab)),
        "cache": Kerberos(CLIENT, None, cache),
        "environment": None,
    }[how]
    hdfs = client(cluster, kerberos)
    store = HdfsStore(hdfs, f"/jobs/{how}")
    await up(store, cluster)
    await store.write_bytes("f", DATA)
    assert await store.read_bytes("f", len(DATA)) == DATA
    await hdfs.close()


async def test_without_a_ticket_the_words_say_what_to_do(cluster: SecureHdfs) -> None:
    for kerberos, words in (
        (Kerberos(CLIENT, None, f"FILE:{cluster.directory}/absent"), "No credentials cache found"),
        (Kerberos(f"other/localhost@{REALM}", str(cluster.keytab)), "No credentials cache found"),
        (None, "No Kerberos credentials available"),
    ):
        hdfs = client(cluster, kerberos)
        with pytest.raises(Refused, match=rf"{words}.*klist"):
            await hdfs.info("/")
        await hdfs.close()


async def test_a_ticket_that_ends_is_renewed_from_the_keytab_alone(cluster: SecureHdfs) -> None:
    """The KDC's clock counts seconds; `_lane` is turned to make the client connect again."""
    by_keytab = client(cluster, Kerberos(CLIENT, str(cluster.keytab), f"MEMORY:{time.monotonic_ns()}"))
    await up(HdfsStore(by_keytab, "/jobs/renewed"), cluster)
    cluster.shorten_tickets("3 seconds")
    cache = f"FILE:{cluster.directory}/short"
    cluster.ticket(cache)
    fetched = time.monotonic()
    by_cache = client(cluster, Kerberos(CLIENT, None, cache))
    short_lived = client(cluster, Kerberos(CLIENT, str(cluster.keytab), f"FILE:{cluster.directory}/own"))
    assert (await short_lived.info("/")).is_dir
    await asyncio.to_thread(wait_until, fetched + 5)
    with pytest.raises(Refused, match="Ticket expired"):
        await by_cache.info("/")
    short_lived._lane = 1 - short_lived._lane
    assert (await short_lived.info("/")).is_dir
    for one in (by_keytab, by_cache, short_lived):
        await one.close()


def test_its_daemons_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        assert len(daemons(tmp_path)) == 3
    finally:
        holder.terminate()
        holder.communicate()
    waiting.wait_until(lambda: daemons(tmp_path) == [], "all have ended")


def daemons(directory: Path) -> list[str]:
    """The command lines of the processes that have their files in a directory."""
    lines = (" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]))
    return [line for line in lines if f"{directory}/" in line]
