"""A cluster of two nodes with scripted GPUs under a real Prometheus, and jobs that do as they are told."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.metrics.monitoring import Monitoring, monitoring
from tests.nvml.cluster import Cluster, gpu_cluster

PROGRAM = """
import os, sys, time
from pathlib import Path
do, saves = sys.argv[1], Path(os.environ["CHECKPOINT_DIR"])
print("sees", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
begin = max((int(each.stem.partition("-")[2]) for each in saves.glob("model-*.json")), default=0)
for step in range(begin + 1, 1_000_000):
    print("global step:", step, flush=True)
    if do == "fail" and step > 3:
        sys.exit("it fails")
    if do == "stall" and step > 3:
        time.sleep(1_000)
    if step % 10 == 0:
        Path(saves / "new").write_text('{"step": %d}' % step)
        Path(saves / "new").rename(saves / f"model-{step}.json")
    time.sleep(0.05)
"""
FASTER = {
    "for: 30s": "for: 0s",
    "for: 1m": "for: 0s",
    "for: 3m": "for: 0s",
    "_age_seconds > 900": "_age_seconds > 3",
    "_trouble_seconds > 60": "_trouble_seconds > 1",
}
"""What the rules wait for, shortened."""


@dataclass
class Site:
    """The cluster and its monitoring."""

    cluster: Cluster
    prometheus: Monitoring
    directory: Path

    def submit(self, name: str, do: str, **fields: object) -> str:
        """A job of one worker with a GPU, or none to spare; returns its task."""
        job = {
            "name": name,
            "command": ["python", "prog.py", do],
            "strategy": "plain",
            "preload": [],
            "code": {"dir": "code"},
            "roles": {"worker": {"count": 1, "resources": {"gpus": 1 if do == "train" else 0}}},
            "env": {"FAKE_NVML_VISIBLE": str(self.directory / "visible")},
            "checkpoint": {
                "uri": (self.directory / f"store-{name}").as_uri(),
                "pattern": "model-{step}.json",
                "lag_bound": "2s",
            },
            **fields,
        }
        file = self.directory / f"{name}.yaml"
        file.write_text(json.dumps(job))
        self.cluster.ask("submit", str(file))
        return f"{name}/worker:0"

    def configure(self, member: str, **fields: object) -> None:
        """Change a member's configuration, and start it again."""
        local = self.cluster.local
        local.stop_member(member)
        path = local.layout.config(member)
        text = path.read_text()
        path.write_text(json.dumps({**json.loads(text[text.index("{") :]), **fields}))
        local.start_member(member)


@contextmanager
def site(directory: Path) -> Iterator[Site]:
    """Up, with nothing to do yet."""
    with (
        gpu_cluster(directory, supervisors=2, program=PROGRAM) as cluster,
        monitoring(directory, cluster.local, FASTER) as prometheus,
    ):
        yield Site(cluster, prometheus, directory)


def old_certificate(directory: Path) -> dict[str, str]:
    """Files of a certificate that has lived for ten days and ends tomorrow, and signs itself."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "old")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=10))
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption(), serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
    files = {each: directory / f"old.{each}" for each in ("ca", "cert", "key")}
    for each, path in files.items():
        path.touch(mode=0o600)
        pem = key.private_bytes(plain[2], plain[1], plain[0])
        path.write_bytes(pem if each == "key" else certificate.public_bytes(serialization.Encoding.PEM))
    return {each: str(path) for each, path in files.items()}
