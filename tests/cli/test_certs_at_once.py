"""Starts of one cluster that make its authorities at the same moment, or are killed while they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from supervisor.cli.local.reachable import Reachable
from tests.cli.shell import environment

SUPERVISOR = "supervisor-0"
START = """
import os, signal, subprocess, sys
from pathlib import Path
from supervisor.adapters.files import private
from supervisor.cli.cluster import certs
from supervisor.cli.local.reachable import Reachable

tls, life, at, *other = sys.argv[1:]
reach = Reachable(tls=Path(tls), host="127.0.0.2", ports={}, scratch=Path(tls), mark="m", life=int(life))
EFFECTS = {"os.link", "os.rename", "os.mkdir"}
many = 0

def count(event, _arguments):
    global many
    if event in EFFECTS:
        many += 1
        if many == int(at):
            if other:
                subprocess.run([sys.executable, "-c", *other], input=b"\\n", check=True, capture_output=True)
            else:
                os.kill(os.getpid(), signal.SIGKILL)

print("ready", flush=True)
sys.stdin.readline()
sys.addaudithook(count)
reach.certify(["supervisor-0"])
print(many)
"""


def start(tls: Path, life: int) -> None:
    """Make the certificates of a start, in this process."""
    reach = Reachable(tls=tls, host="127.0.0.2", ports={}, scratch=tls, mark="m", life=life)
    reach.certify([SUPERVISOR])


@contextmanager
def starting(tls: Path, life: int, at: int = 0, *other: str) -> Iterator[subprocess.Popen[str]]:
    """A process that makes them as soon as it gets a line.

    At this effect, counted from 1, it is killed; or it has another one make its own meanwhile.
    """
    words = (sys.executable, "-c", START, str(tls), str(life), str(at), *other)
    with subprocess.Popen(
        words, env=environment(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Have it begin, and wait for its end; its code, and how many effects it had."""
    told, _ = process.communicate("\n", timeout=60)
    return process.returncode, told.strip()


def certificate(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def assert_pair(stem: Path) -> x509.Certificate:
    """The certificate of a pair of files that belong together."""
    found = certificate(stem.with_name(f"{stem.name}.pem"))
    key = load_pem_private_key(stem.with_name(f"{stem.name}.key").read_bytes(), None)
    assert found.public_key() == key.public_key(), stem
    return found


def assert_whole(tls: Path, life: int) -> None:
    """A start has all its pairs, and each is of an authority that all starts share."""
    authorities = {name: assert_pair(tls / name) for name in ("ca", "user-ca", "peer-ca", "pool-ca")}
    signers = dict.fromkeys(("etcd-etcd", "etcdctl-admin", f"supervisor-{SUPERVISOR}"), "ca")
    for name, signer in (signers | {"user-owner": "user-ca", "etcd-etcd-peer": "peer-ca"}).items():
        assert_pair(tls / str(life) / name).verify_directly_issued_by(authorities[signer])
    of_etcd = x509.load_pem_x509_certificates((tls / str(life) / "of-etcd.pem").read_bytes())
    assert of_etcd == [authorities["ca"], certificate(tls / "pool-ca-etcd.pem")]
    assert of_etcd[1].public_key() == authorities["pool-ca"].public_key()


@pytest.mark.parametrize("name", ["user-ca.key", "user-ca.pem", "ca.key", "ca.pem", "pool-ca.key"])
def test_of_two_starts_the_first_to_publish_an_authority_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    tls, link = tmp_path / "tls", os.link

    def after_another(fresh: Path, path: Path) -> None:
        if Path(path).name == name:
            monkeypatch.setattr(os, "link", link)
            start(tls, 2)
        link(fresh, path)

    monkeypatch.setattr(os, "link", after_another)
    start(tls, 1)
    assert_whole(tls, 1)
    assert_whole(tls, 2)


@pytest.mark.slow
def test_two_starts_at_once_share_their_authorities(tmp_path: Path) -> None:
    for turn in range(12):
        tls = tmp_path / str(turn)
        with starting(tls, 1) as first, starting(tls, 2) as second, ThreadPoolExecutor(2) as both:
            assert [code for code, _ in both.map(ended, (first, second))] == [0, 0]
        assert_whole(tls, 1)
        assert_whole(tls, 2)
        assert not list(tls.rglob(".making-*"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "beside another"])
def test_a_start_is_whole_whatever_happens_at_each_effect(tmp_path: Path, killed: bool) -> None:
    with starting(tmp_path / "all", 1) as process:
        code, many = ended(process)
    assert code == 0

    def happens(at: int) -> None:
        tls = tmp_path / str(at)
        other = () if killed else (START, str(tls), "2", "0")
        with starting(tls, 1, at, *other) as process:
            assert ended(process)[0] == (-signal.SIGKILL if killed else 0), at
        if killed:
            start(tls, 2)
        else:
            assert_whole(tls, 1)
        assert_whole(tls, 2)

    with ThreadPoolExecutor(2) as both:
        assert len(list(both.map(happens, range(1, int(many) + 1)))) > 25
