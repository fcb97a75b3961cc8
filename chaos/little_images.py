"""Images of a few bytes, and a registry on loopback that has one: nothing is pulled from afar."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from chaos.dockerd import Dockerd
from chaos.machine import kernel

_PIECE = 64 << 10
_PACE_S = 0.1


def layer(files: Mapping[str, str]) -> bytes:
    """A layer with these executable files, as an uncompressed tar."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, text in {"tmp/.keep": "", **files}.items():
            member = tarfile.TarInfo(name)
            member.mode, member.size = 0o755, len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return stream.getvalue()


def configuration(content: bytes, architecture: str) -> bytes:
    """The image's configuration."""
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    body = {
        "architecture": architecture,
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [digest]},
    }
    return json.dumps(body).encode()


def load(dockerd: Dockerd, directory: Path, name: str, *, architecture: str = "amd64") -> None:
    """Give a dockerd an image without any program in it."""
    content = layer({})
    archive = directory / "image.tar"
    parts = {
        "config.json": configuration(content, architecture),
        "layer.tar": content,
        "manifest.json": json.dumps(
            [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
        ).encode(),
    }
    with tarfile.open(archive, "w") as tar:
        for path, body in parts.items():
            member = tarfile.TarInfo(path)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    dockerd.cli("load", "--input", str(archive))


@contextmanager
def registry(
    content: bytes,
    *,
    packed: bool = True,
    hurry: threading.Event | None = None,
    network: int | None = None,
    port: int = 0,
) -> Iterator[str]:
    """A registry with an image of one layer; its name, for `docker pull`. dockerd takes loopback without TLS.

    Where `hurry` is given, the layer comes a little at a time until that is set. It is on the loopback of the
    process `network`, or on ours; port 0: any.
    """
    config, sent = configuration(content, "amd64"), gzip.compress(content, mtime=0) if packed else content
    kinds = "application/vnd.docker."
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{kinds}distribution.manifest.v2+json",
            "config": _described(f"{kinds}container.image.v1+json", config),
            "layers": [_described(f"{kinds}image.rootfs.diff.tar.gzip", sent)],
        }
    ).encode()
    blobs = {_digest(body): body for body in (config, sent, manifest)}

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            left = memoryview(self.answer())
            while hurry is not None and len(left) > _PIECE and not hurry.wait(_PACE_S):
                self.wfile.write(left[:_PIECE])
                left = left[_PIECE:]
            self.wfile.write(left)

        def answer(self) -> bytes:
            name = self.path.rpartition("/")[2]
            body = b"{}" if self.path == "/v2/" else manifest if name == "1" else blobs.get(name)
            self.send_response(200 if body is not None else 404)
            body = body or b""
            kind = f"{kinds}distribution.manifest.v2+json" if body == manifest else "application/octet-stream"
            for header, value in (
                ("Content-Type", kind),
                ("Content-Length", str(len(body))),
                ("Docker-Content-Digest", _digest(body)),
            ):
                self.send_header(header, value)
            self.end_headers()
            return body

        def log_message(self, *_: object) -> None:
            """Say nothing, also of the TLS that dockerd tries first."""

    with kernel.network_of(network):
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield name_at(server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def name_at(port: int) -> str:
    """The image of a registry that listens there."""
    return f"127.0.0.1:{port}/little:1"


def _digest(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def _described(kind: str, body: bytes) -> dict[str, object]:
    return {"mediaType": kind, "size": len(body), "digest": _digest(body)}
