"""The configuration of an agent of a pool, from one file that all its agents share.

The shared file is an agent's configuration (docs/configuration.md) that fits every machine: `{node}` and
`{host}` in a value stand for the node's name and the machine's. `node`, `cpus` and `memory` come from the
pool, and each agent gets directories and an address of its own. Where `tls` names no certificate, it gets one
from the supervisors (`engines.credentials`).
"""

from __future__ import annotations

import hashlib
import json
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.adapters.files.config.agent import AgentConfig, load_agent
from supervisor.adapters.files.private import write_private
from supervisor.adapters.files.yaml_file import WrittenFloat, WrittenInt
from supervisor.contract.errors import Refused
from supervisor.engines.installation.bootstrap import exchangeable

CERTIFICATE = "certificate.pem"
"""The file of an agent that supervisors certify, in its state directory: its private key and its certificate.

One file, so that no end of the keeper, and no full disk, leaves a key beside the certificate of another.
"""
_RUN = 8
"""Length of the name of a socket directory. Paths of Unix sockets are short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """The properties that an agent of a pool has to itself.

    Attributes:
        offset: added to the ports of the file's addresses, on a machine with several agents.
        cpus, memory: 0: what the file says, or the machine has.
        gpus: the indices or UUIDs of the GPUs that the engine gave it.
    """

    node: str
    offset: int = 0
    cpus: float = 0
    memory: int = 0
    gpus: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of supervisors and of etcd."""

    supervisors: tuple[str, ...]
    etcd: tuple[str, ...]

    def have_left(self, former: Addresses) -> bool:
        """Whether none of the former supervisors is among these, or none of the former etcds."""
        return not set(self.supervisors) & set(former.supervisors) or not set(self.etcd) & set(former.etcd)


@dataclass(frozen=True, slots=True)
class Shared:
    """A file that all agents of a pool share.

    Attributes:
        state_dir: as it is written there: `{node}` and `{host}` are not filled in yet.
        certified: it names no certificate, so that the supervisors certify its agents.
    """

    state_dir: str
    certified: bool


def check(path: Path, pool: str) -> Shared:
    """Read the shared file. Raises UserError with its lines that are wrong, or NotFound."""
    written = ""

    def adapt(value: dict[str, object]) -> None:
        nonlocal written
        written = str(value.get("state_dir"))
        adapt_to(value, Own(node=f"{pool}.node"))
        # An agent of a pool makes this directory where it runs.
        value["lock_dir"] = tempfile.gettempdir()

    config = load_agent(path, adapt)
    return Shared(written, is_certified(config))


def is_certified(config: AgentConfig) -> bool:
    """Whether an agent of a pool gets its certificate from the supervisors."""
    files = config.tls_files()
    return files is not None and files.cert == Path(config.state_dir) / CERTIFICATE


def write(path: Path, own: Own) -> Path:
    """Write an agent's configuration into its own directory, and return the file.

    Raises UserError with the lines of the shared file that are wrong, NotFound, Refused.
    """
    made: dict[str, object] = {}

    def adapt(value: dict[str, object]) -> None:
        adapt_to(value, own)
        make_locks(value)
        made.update(value)

    config = load_agent(path, adapt)
    to = Path(config.state_dir) / "agent.yaml"
    try:
        Path(config.socket_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in (config.state_dir, config.socket_dir, config.checkpoint_parent):
            require_own(Path(each))
    except OSError as error:
        raise Refused(f"cannot write {to}: {error.strerror}") from error
    _put(to, made, path)
    return to


def addresses(own: Path) -> Addresses:
    """The addresses in an agent's own file. Raises UserError, NotFound."""
    return _addresses(load_agent(own))


def follow(path: Path, own: Path) -> Addresses | None:
    """Take the addresses of supervisors and etcd from the shared file into an agent's own.

    Returns them; None if it has the same ones. What else has changed counts for agents that begin later.
    Raises UserError with the lines of the shared file that are wrong, NotFound, Refused.
    """
    now, before = _addresses(load_agent(path, _as_any)), addresses(own)
    if (set(now.supervisors), set(now.etcd)) == (set(before.supervisors), set(before.etcd)):
        return None
    try:
        made = json.loads(own.read_text().partition("\n")[2])
    except OSError as error:
        raise Refused(f"cannot read {own}: {error.strerror}") from error
    made["supervisors"], made["etcd"]["endpoints"] = now.supervisors, now.etcd
    _put(own, made, path)
    return now


def _addresses(config: AgentConfig) -> Addresses:
    return Addresses(tuple(config.supervisors), tuple(config.etcd.endpoints))


def _as_any(value: dict[str, object]) -> None:
    adapt_to(value, Own(node="any"))


def _put(to: Path, made: dict[str, object], source: Path) -> None:
    text = f"# Made of {source} by the agent's keeper; changes are lost.\n{json.dumps(made, indent=2)}\n"
    write_private(to, text.encode())


def require_own(path: Path) -> None:
    """Raise Refused if another user could put something else in place of this directory."""
    if (each := exchangeable(path)) is not None:
        raise Refused(
            f"{each} belongs to another user, or every user may write to it: remove it, or name another "
            f"directory than {path} in the shared file"
        )


def adapt_to(value: dict[str, object], own: Own) -> None:
    """Change the values of the shared file to those of one agent."""
    filled = _fill(value, {"{node}": own.node, "{host}": socket.gethostname()})
    assert isinstance(filled, dict)
    value.clear()
    value.update(filled)
    value["node"] = own.node
    state_dir, run_dir = value.get("state_dir"), value.get("run_dir")
    if isinstance(state_dir, str):
        value["state_dir"] = f"{state_dir}/{own.node}"
        short = hashlib.sha256(own.node.encode()).hexdigest()[:_RUN]
        value["run_dir"] = f"{run_dir if isinstance(run_dir, str) else state_dir}/{short}"
    _certify(value)
    for name in ("listen", "advertise"):
        value.update(_address(name, value, own.offset))
    http = value.get("http")
    if isinstance(http, dict):
        for name in ("listen", "advertise"):
            http.update(_address(name, http, own.offset))
    if isinstance(value.get("listen"), str) and str(value["listen"]).startswith("unix:"):
        value["listen"] = f"unix:{value.get('run_dir')}/api.sock"
    labels = value.get("labels")
    given = {str(key): _written(each) for key, each in labels.items()} if isinstance(labels, dict) else {}
    value["labels"] = {**given, **own.labels}
    gpus = value.setdefault("gpus", {})
    if isinstance(gpus, dict):
        gpus.setdefault("only", list(own.gpus))
    value.update({"cpus": own.cpus} if own.cpus else {})
    value.update({"memory": f"{own.memory}B"} if own.memory else {})
    log = value.get("log")
    if isinstance(log, dict):
        # The engine keeps what an agent prints.
        log.pop("file", None)


def _certify(value: dict[str, object]) -> None:
    """Name the certificate that supervisors give the agent, where `tls` names none."""
    tls, etcd = value.get("tls"), value.get("etcd")
    if not isinstance(tls, dict) or tls.keys() & {"cert", "key"}:
        return
    for each in (tls, etcd.get("tls") if isinstance(etcd, dict) else None):
        if isinstance(each, dict) and not each.keys() & {"cert", "key"}:
            file = f"{value.get('state_dir')}/{CERTIFICATE}"
            each.update(cert=file, key=file)


def make_locks(value: Mapping[str, object]) -> None:
    """Make the directory of port locks, which all agents of a machine share. Raises Refused."""
    locks = value.get("lock_dir")
    if not isinstance(locks, str) or Path(locks).is_dir():
        return
    try:
        Path(locks).mkdir(parents=True)
        Path(locks).chmod(0o1777)
    except FileExistsError:
        pass
    except OSError as error:
        raise Refused(f"cannot make {locks}: {error.strerror}") from error


def _address(name: str, fields: Mapping[str, object], offset: int) -> dict[str, object]:
    address = fields.get(name)
    if not offset or not isinstance(address, str):
        return {}
    host, _, port = address.rpartition(":")
    return {name: f"{host}:{int(port) + offset}"} if port.isdigit() else {}


def _fill(value: object, names: Mapping[str, str]) -> object:
    if isinstance(value, dict):
        return {key: _fill(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_fill(each, names) for each in value]
    if isinstance(value, str):
        for name, meant in names.items():
            value = value.replace(name, meant)
    return value


def _written(value: object) -> str:
    return value.written if isinstance(value, WrittenInt | WrittenFloat) else str(value)
