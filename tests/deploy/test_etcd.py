"""etcd as docs/install.md has it: three members that let nobody in without a certificate."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import grpc
import pytest
from aetcd import rpc

from supervisor.adapters.certificates.tls import TlsFiles
from tests.deploy.box import wait_for
from tests.deploy.etcd_member import environment
from tests.deploy.services import COMMAND
from tests.support.etcd_server import etcd_binaries
from tests.support.ports import free_port

NAMES = ("etcd-1", "etcd-2", "etcd-3")
HOST = "127.0.0.1"


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    found = tmp_path / "certificates"
    holders = [f"etcd:{name},{HOST}" for name in NAMES]
    subprocess.run(
        [COMMAND, "certs", "issue", str(found), *holders, "etcdctl:admin", "user:alice"], check=True
    )
    return found


@pytest.fixture
def targets(tmp_path: Path, certificates: Path) -> Iterator[list[str]]:
    """The addresses of the members for clients."""
    ports = {name: (free_port(), free_port()) for name in NAMES}
    binary = next(iter(etcd_binaries().values()))
    with ExitStack() as stack:
        for name in NAMES:
            directory = tmp_path / name
            directory.mkdir()
            env = {**environment(name, ports, certificates, HOST), "ETCD_DATA_DIR": str(directory / "data")}
            log = stack.enter_context((directory / "log").open("wb"))
            member = stack.enter_context(
                subprocess.Popen([binary], cwd=directory, env=env, stdout=log, stderr=log)
            )
            stack.callback(member.kill)
        yield [f"{HOST}:{client}" for client, _ in ports.values()]


def asked(target: str, credentials: grpc.ChannelCredentials, deadline_s: float) -> rpc.RangeResponse | None:
    """A read that all members agree on; None if it was refused."""
    with grpc.secure_channel(target, credentials) as channel:
        try:
            return rpc.KVStub(channel).Range(rpc.RangeRequest(key=b"key"), timeout=deadline_s)
        except grpc.RpcError:
            return None


def test_members_trust_each_other_and_nobody_without_a_certificate_nor_users(
    targets: list[str], certificates: Path, tmp_path: Path
) -> None:
    admin, alice = (
        TlsFiles(*(certificates / each for each in ("ca.pem", f"{holder}.pem", f"{holder}.key"))).load()
        for holder in ("etcdctl-admin", "user-alice")
    )
    credentials = admin.client_credentials()
    for target in targets:
        answer = wait_for("an answer", partial(asked, target, credentials, 5), 60)
        assert answer.header.member_id
    assert asked(targets[0], alice.client_credentials(), 5) is None
    assert asked(targets[0], grpc.ssl_channel_credentials(alice.ca), 5) is None
    # The member writes it once it has hung up.
    log = tmp_path / NAMES[0] / "log"
    why = "tls: client didn't provide a certificate"
    wait_for("the reason in the log", lambda: why in log.read_text(errors="replace"), 60)
