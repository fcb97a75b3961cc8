"""The configuration of the command line."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.adapters.files.config.daemon import TlsConfig, check_doors, read_token
from supervisor.adapters.files.config.fields import Address
from supervisor.adapters.files.config.loading import load
from supervisor.adapters.files.quantities import Name, Text
from supervisor.adapters.files.yaml_file import Document, Strict


class ClientConfig(Strict):
    """`supervisorctl --config FILE`."""

    cluster: Name = Field(description="add `cluster: NAME`")
    supervisors: list[Address] = Field(min_length=1, description="add `supervisors: [HOST:PORT, ...]`")
    tls: TlsConfig | None = None
    insecure: bool = False
    token_file: Text | None = None
    checkpoint_base: Text | None = None

    @property
    def token(self) -> str:
        """The shared secret of a cluster on loopback TCP; empty when none is configured."""
        return read_token(self.token_file)

    def tls_files(self) -> TlsFiles | None:
        """Certificates to show to supervisors."""
        return self.tls.files() if self.tls else None


def load_client(path: Path) -> ClientConfig:
    """Read a client's configuration; raises UserError with every problem, NotFound."""
    return load(ClientConfig, path, _check)


def _check(document: Document, config: ClientConfig) -> None:
    doors, tls = config.supervisors, config.tls_files()
    check_doors(document, ("supervisors",), doors, tls, insecure=config.insecure)
