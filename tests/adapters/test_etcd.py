"""Faults that only a real etcd has: members that fail one by one, certificates, a full disk."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
from aetcd import rpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.adapters.etcd import client as client_module
from supervisor.adapters.etcd.client import EtcdCoordination
from supervisor.adapters.etcd.endpoints import Endpoint, EndpointPool
from supervisor.contract.boundaries import Coordination, Delete, Put, WatchBatch
from supervisor.contract.errors import (
    Compacted,
    CoordinationFull,
    CoordinationUnreachable,
    TfSupervisorError,
    UserError,
)
from tests.adapters.conftest import etcd_client
from tests.support.etcd_server import EtcdCluster, EtcdServer, etcd_binaries
from tests.support.steady import on_a_steady_machine


async def put(client: Coordination, key: str, value: bytes = b"") -> int:
    return (await client.txn([], [Put(key, value)])).revision


async def put_soon(client: Coordination, key: str) -> int:
    """Write until one write goes through; return the number of those that failed before."""
    failed = 0
    async with asyncio.timeout(30):
        while True:
            try:
                await put(client, key)
            except CoordinationUnreachable:
                failed += 1
                continue
            return failed


async def read_all(watch: AsyncGenerator[WatchBatch, None]) -> None:
    async for _ in watch:
        pass


async def fill(client: Coordination) -> None:
    for index in range(100):
        await put(client, f"k{index}", bytes(1_000_000))
        await asyncio.sleep(0.02)  # etcd measures its size when it commits to disk, every 0.1 s


@pytest.fixture(scope="module", params=sorted(etcd_binaries()))
def cluster(request: pytest.FixtureRequest) -> Iterator[EtcdCluster]:
    with EtcdCluster(3, binary=etcd_binaries()[request.param]) as made:
        yield made


class TestMembers:
    @on_a_steady_machine
    async def test_a_frozen_member_is_left_after_one_deadline(self, cluster: EtcdCluster) -> None:
        follower = next(member for member in cluster.members if not member.is_leader())
        others = [member for member in cluster.members if member is not follower]
        client = etcd_client(follower.endpoint, *(member.endpoint for member in others), hasty=True)
        revision = await put(client, "k")
        watch = client.watch("k", revision + 1)
        await anext(watch)
        with follower.frozen():
            assert await put_soon(client, "k") <= 2, "one at the frozen one, and one on a busy machine"
            async with asyncio.timeout(20):
                with pytest.raises(CoordinationUnreachable):
                    await read_all(watch)
            assert (await client.get("k")) is not None
        await client.close()

    @on_a_steady_machine
    async def test_a_frozen_leader_costs_an_election(self, cluster: EtcdCluster) -> None:
        client = etcd_client(*cluster.endpoints, hasty=True)
        await put(client, "k")
        leader = next(member for member in cluster.members if member.is_leader())
        with leader.frozen():
            await put_soon(client, "k")
        await client.close()

    async def test_a_dead_member_costs_no_error(self, cluster: EtcdCluster) -> None:
        follower = next(member for member in cluster.members if not member.is_leader())
        others = [member.endpoint for member in cluster.members if member is not follower]
        client = etcd_client(follower.endpoint, *others)
        await put(client, "k")
        follower.kill()
        await put_soon(client, "k")
        late = etcd_client(follower.endpoint, *others)
        await put(late, "k")
        follower.start()
        follower.wait_ready()
        await client.close()
        await late.close()

    @on_a_steady_machine
    async def test_a_member_without_a_quorum_ends_its_watches(self, cluster: EtcdCluster) -> None:
        last, *others = cluster.members
        client = etcd_client(last.endpoint, hasty=True)
        revision = await put(client, "k")
        watch = client.watch("k", revision + 1)
        await anext(watch)
        for member in others:
            member.freeze()
        try:
            with pytest.raises(CoordinationUnreachable):
                await asyncio.wait_for(read_all(watch), 30)
        finally:
            for member in others:
                member.thaw()
        await client.close()

    async def test_nobody_there_is_said_with_the_address(self) -> None:
        client = etcd_client("unix:/nonexistent/etcd.sock", hasty=True)
        with pytest.raises(CoordinationUnreachable, match=r"unix:/nonexistent/etcd\.sock: UNAVAILABLE"):
            await client.get("k")
        await client.close()


class TestSpace:
    @pytest.mark.parametrize("release", sorted(etcd_binaries()))
    async def test_a_full_store_refuses_puts_and_takes_deletes(self, release: str) -> None:
        flags = ("--quota-backend-bytes", str(4 * 1024 * 1024))
        with EtcdServer(binary=etcd_binaries()[release], flags=flags) as server:
            client = etcd_client(server.endpoint)
            with pytest.raises(CoordinationFull):
                await fill(client)
            assert await client.get("k0") is not None
            await client.txn([], [Delete("k0")])
            assert await client.get("k0") is None
            await client.close()


class TestEndpoints:
    @pytest.mark.parametrize(
        ("text", "target"),
        [
            ("10.0.0.1:2379", "ipv4:10.0.0.1:2379"),
            ("http://10.0.0.1:2379", "ipv4:10.0.0.1:2379"),
            ("http://[::1]:2379/", "ipv6:[::1]:2379"),
            ("etcd-1.example:2379", "dns:///etcd-1.example:2379"),
            ("unix:/run/e:0", "unix:/run/e:0"),
            ("unix:///run/e:0", "unix:/run/e:0"),
        ],
    )
    def test_spellings(self, text: str, target: str) -> None:
        assert Endpoint.parse(text, None).target == target

    @pytest.mark.parametrize(
        "text", ["", "host", "host:", "host:x", "https://h:1", "unix:relative", "::1:2379"]
    )
    def test_nonsense_is_a_user_error(self, text: str) -> None:
        with pytest.raises(UserError):
            Endpoint.parse(text, None)

    def test_plain_http_with_certificates_is_a_contradiction(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="not encrypted"):
            Endpoint.parse("http://h:1", TlsFiles(tmp_path, tmp_path, tmp_path))


class Authority:
    """A certificate authority that lives for one test run."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(self._issuer, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.certificate = directory / f"{name}.pem"
        self.certificate.write_bytes(
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )

    def issue(self, name: str) -> TlsFiles:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = self._builder(subject, key).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        files = TlsFiles(
            self.certificate,
            self._directory / f"{self._name}-{name}.pem",
            self._directory / f"{self._name}-{name}.key",
        )
        pem = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        files.cert.write_bytes(pem)
        files.key.touch(mode=0o600)
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=1))
        )


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("theirs"), "theirs")


@pytest.fixture(scope="module", params=sorted(etcd_binaries()))
def guarded(request: pytest.FixtureRequest, ours: Authority) -> Iterator[EtcdServer]:
    with EtcdServer(binary=etcd_binaries()[request.param], tls=ours.issue("server")) as server:
        yield server


def tls_client(endpoint: str, tls: TlsFiles | None, *, patience_ms: int = 1000) -> EtcdCoordination:
    return EtcdCoordination([endpoint], "tls", tls=tls, rpc_deadline_ms=patience_ms, silence_ms=patience_ms)


class TestCertificates:
    async def test_a_client_with_a_certificate_gets_in(self, guarded: EtcdServer, ours: Authority) -> None:
        client = tls_client(guarded.endpoint, ours.issue("client"), patience_ms=20_000)
        revision = await put(client, "k", b"1")
        watch = client.watch("k", revision)
        async with asyncio.timeout(20):
            while not (await anext(watch)).changes:
                pass
        await watch.aclose()
        await client.close()

    async def test_a_client_that_speaks_in_the_clear_does_not(self, guarded: EtcdServer) -> None:
        client = tls_client(guarded.endpoint.removeprefix("https://"), None)
        with pytest.raises(CoordinationUnreachable):
            await client.get("k")
        await client.close()

    async def test_a_foreign_certificate_does_not(
        self, guarded: EtcdServer, ours: Authority, theirs: Authority
    ) -> None:
        foreign = theirs.issue("client")
        client = tls_client(guarded.endpoint, TlsFiles(ours.certificate, foreign.cert, foreign.key))
        with pytest.raises(TfSupervisorError):
            await client.get("k")
        await client.close()

    async def test_a_server_of_another_authority_is_not_trusted(
        self, guarded: EtcdServer, theirs: Authority
    ) -> None:
        client = tls_client(guarded.endpoint, theirs.issue("client"))
        with pytest.raises(CoordinationUnreachable, match=r"certificate|handshake|SSL"):
            await client.get("k")
        await client.close()


async def test_a_member_that_refuses_is_tried_again_and_not_stormed() -> None:
    tries = 0

    def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = EndpointPool([f"127.0.0.1:{port}"], None, connect_s=1.0, grace_s=0)
    assert await pool.link() is None
    assert 2 <= tries <= 9, "after 0, 50, 150, 350 ms, and then each 200 ms"
    await pool.close()
    server.close()


async def changed(batches: AsyncGenerator[WatchBatch, None]) -> list[str]:
    """The keys of the next batch that is no sign of life."""
    async with asyncio.timeout(20):
        while True:
            batch = await anext(batches)
            if batch.changes:
                return [each.key for each in batch.changes]


async def test_watches_of_a_client_share_a_stream_until_the_last_one_ends(etcd_server: EtcdServer) -> None:
    client = EtcdCoordination([etcd_server.endpoint], "shared", rpc_deadline_ms=20_000, silence_ms=20_000)
    revision = await put(client, "first")
    a, b = client.watch("a", revision + 1), client.watch("b", revision + 1)
    await anext(a)
    await anext(b)
    stream = client._watching
    assert stream is not None
    await put(client, "a1")
    await put(client, "b1")
    assert (await changed(a), await changed(b)) == (["a1"], ["b1"])
    await a.aclose()
    await put(client, "a2")
    await put(client, "b2")
    assert await changed(b) == ["b2"]
    again = client.watch("a", revision + 1)
    assert await changed(again) == ["a1", "a2"]
    assert client._watching is stream
    await again.aclose()
    await b.aclose()
    assert stream.over
    await client.close()


async def test_a_watch_that_is_given_up_before_it_began_harms_no_other(etcd_server: EtcdServer) -> None:
    client = EtcdCoordination([etcd_server.endpoint], "given-up", rpc_deadline_ms=20_000, silence_ms=20_000)
    revision = await put(client, "first")
    stays = client.watch("a", revision + 1)
    await anext(stays)
    begins = asyncio.create_task(anext(client.watch("b", revision + 1)))
    await asyncio.sleep(0)
    begins.cancel()
    await asyncio.wait([begins])
    await put(client, "a1")
    assert await changed(stays) == ["a1"]
    await stays.aclose()
    await client.close()


async def test_a_list_of_many_pages_is_one_picture(
    etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes between two pages are not in it."""
    monkeypatch.setattr(client_module, "PAGE", 3)
    reader = Paged(etcd_server.endpoint, "one-picture")
    names = [f"p/{number}" for number in range(7)]
    for name in reversed(names):
        await put(reader, name)
    revision = await put(reader, "other")

    async def write() -> None:
        await put(reader, "p/5", b"newer")
        await reader.txn([], [Delete("p/6"), Put("p/4a", b"")])

    reader.between = write
    listing = await reader.list("p/")
    assert listing.revision == revision
    assert [(each.key, each.value) for each in listing.entries] == [(name, b"") for name in names]
    assert reader.pages == 3
    await reader.close()


async def test_a_list_whose_revision_is_forgotten_is_begun_again(
    etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PAGE", 3)
    reader = Paged(etcd_server.endpoint, "forgotten")
    for number in range(7):
        await put(reader, f"p/{number}")

    async def compact() -> None:
        reader.between = nothing
        etcd_server.compact(await put(reader, "p/7"))

    reader.between = compact
    with pytest.raises(Compacted):
        await reader.list("p/")
    assert len((await reader.list("p/")).entries) == 8
    await reader.close()


async def nothing() -> None:
    """The default between two pages: nothing happens."""


class Paged(EtcdCoordination):
    """A client that does something after the first page of each list, and counts the pages."""

    def __init__(self, endpoint: str, cluster: str) -> None:
        super().__init__([endpoint], cluster, rpc_deadline_ms=20_000, silence_ms=20_000)
        self.pages = 0
        self.between = nothing

    async def _page(self, request: rpc.RangeRequest) -> rpc.RangeResponse:
        response = await super()._page(request)
        self.pages += 1
        if not request.revision:
            await self.between()
        return response
