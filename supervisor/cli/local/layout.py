"""The files of an embedded cluster: all in one directory of mode 0700, one layout for keeper and commands."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from supervisor.adapters.files.private import write_private
from supervisor.cli.local.lives import FIRST_DATA, boot_id
from supervisor.cli.local.reachable import Reachable
from supervisor.contract.errors import NotFound, UserError

DEFAULT_STATE = Path("var/local")
SPARE_LAUNCHERS = 1
"""Launchers that each node keeps in reserve for each job."""

MAX_MEMBERS = 64
POOL = "pool"
_LONGEST_SOCKET = "supervisor-63/launchers.sock"
_MAX_SOCKET_BYTES = 90
_OLD_LOCK_S = 86_400


@dataclass(frozen=True, slots=True)
class LocalMount:
    """A directory of this machine that every container has at the same path."""

    source: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class LocalDocker:
    """The options of an embedded cluster's agents for containers.

    Attributes:
        socket: the path of dockerd's socket.
        image: the image of jobs without one; empty: jobs must name one.
        networks: the docker networks that jobs may join.
    """

    socket: str
    image: str = ""
    mounts: tuple[LocalMount, ...] = ()
    networks: tuple[str, ...] = ()

    def agent(self) -> dict[str, object]:
        """The options in the form of an agent's configuration."""
        mounts = [
            {"source": each.source, "read_only": each.read_only, "always": True} for each in self.mounts
        ]
        return {
            "runtime": "docker",
            "docker": {
                "socket": self.socket,
                "image": self.image,
                "mounts": mounts,
                "networks": list(self.networks),
            },
        }


def _own_user() -> dict[str, object]:
    """The user of containers: the one that runs the cluster."""
    return {"task_user": f"{os.geteuid()}:{os.getegid()}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """The options of `local up`. Without `docker` tasks are plain processes.

    `promise_for_ms`: the time for which supervisors promise to leave nodes alone when etcd is gone; 0: no
    promises. `separate`: each node has a checkpoint directory of its own. `secrets`: name -> file of a
    secret. `http`: member -> port of its HTTP door on loopback.

    `advertise`: where other machines reach the cluster; empty: they do not. `scratch`: a directory that each
    of these machines has to itself. `doors`: member -> port that they reach. `life`: which start of the
    cluster this is (`local.lives`). `data`: the name of etcd's directory.
    """

    cluster: str
    nodes: int
    supervisors: int
    profile: str
    docker: LocalDocker | None = None
    promise_for_ms: int = 0
    separate: bool = False
    secrets: Mapping[str, str] = field(default_factory=dict)
    http: Mapping[str, int] = field(default_factory=dict)
    advertise: str = ""
    scratch: str = ""
    doors: Mapping[str, int] = field(default_factory=dict)
    life: int = 0
    data: str = FIRST_DATA

    def check(self) -> LocalSettings:
        """Return self; raises UserError for numbers out of range."""
        if self.separate and self.docker is not None:
            raise UserError("--separate is for --runtime process: dockerd mounts directories of this machine")
        if self.advertise and (self.nodes or self.separate or self.docker is not None):
            raise UserError(
                "--advertise is for agents on other machines (`supervisorctl pool`), and starts none here: "
                "leave out --nodes, --separate and --runtime"
            )
        least = 0 if self.advertise else 1
        for what, number, lowest in (("--nodes", self.nodes, least), ("--supervisors", self.supervisors, 1)):
            if not lowest <= number <= MAX_MEMBERS:
                raise UserError(f"{what} {number}: give a number from {lowest} to {MAX_MEMBERS}")
        return self


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of a client of an embedded cluster.

    Supervisors listen on Unix sockets, which need no token.
    """

    cluster: str
    supervisors: tuple[str, ...]
    checkpoint_base: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of one embedded cluster. `state` is absolute."""

    state: Path

    @classmethod
    def of(cls, state: Path) -> Layout:
        """The layout under a directory that need not exist yet."""
        return cls(Path(os.path.realpath(state)))

    def lock(self, settings: LocalSettings) -> Path:
        """Held by the keeper with flock as long as it lives.

        Where machines share the directory, each has its own: lives decide between machines.
        """
        return self.state / (f"lock.{boot_id()}" if settings.advertise else "lock")

    def forget_locks(self, settings: LocalSettings) -> None:
        """Remove the locks of other boots that nobody has taken for a day: a newer life has the directory.

        One that cannot be removed stays.
        """
        with suppress(OSError):
            own = self.lock(settings).stat()
            for each in self.state.glob("lock.*"):
                if own.st_mtime - each.stat().st_mtime > _OLD_LOCK_S:
                    each.unlink()

    @property
    def settings(self) -> Path:
        """The file with the options of the last `local up`."""
        return self.state / "cluster.json"

    @property
    def lives(self) -> Path:
        """The directory in which machines tell each other of the starts of a cluster that they share."""
        return self.state / "lives"

    def reachable(self, settings: LocalSettings) -> Reachable:
        """The addresses and certificates of a cluster that other machines reach."""
        return Reachable(
            tls=self.state / "tls",
            host=settings.advertise,
            ports=settings.doors,
            scratch=Path(settings.scratch),
            mark=hashlib.sha256(os.fsencode(self.state)).hexdigest()[:8],
            life=settings.life,
        )

    def etcd_data(self, settings: LocalSettings) -> Path:
        """The directory of etcd's data."""
        return self.state / "etcd" / settings.data

    @property
    def run(self) -> Path:
        """The directory of sockets; outside the state directory if its path is too long for a Unix socket."""
        inside = self.state / "run"
        if len(os.fsencode(inside / _LONGEST_SOCKET)) <= _MAX_SOCKET_BYTES:
            return inside
        name = hashlib.sha256(os.fsencode(self.state)).hexdigest()[:16]
        return _per_user("tfsup-run") / name

    @property
    def ports(self) -> Path:
        """The directory of port locks, shared by all embedded clusters of a user."""
        return _per_user("tfsup-ports")

    @property
    def keeper_socket(self) -> Path:
        """The socket for requests to the keeper."""
        return self.run / "keeper.sock"

    @property
    def client_config(self) -> Path:
        """Configuration of `supervisorctl` for this cluster."""
        return self.state / "config" / "client.yaml"

    @property
    def checkpoint_base(self) -> str:
        """URI under which jobs without a `checkpoint.uri` keep their checkpoints."""
        return (self.state / "checkpoints").as_uri()

    @property
    def tasks(self) -> Path:
        """The parent of the checkpoint directories of all tasks."""
        return self.state / "tasks"

    def own_tasks(self, member: str) -> Path:
        """The directory that an agent sees at `tasks` with `--separate`."""
        return self.state / "separate" / member

    def config(self, member: str) -> Path:
        """Configuration file of a member; that of POOL is what all agents of pools share."""
        return self.state / "config" / f"{member}.yaml"

    def log(self, member: str) -> Path:
        """The file of a member's standard output and error."""
        return self.state / "logs" / f"{member}.log"

    def socket(self, member: str) -> str:
        """Address of a supervisor or agent."""
        return f"unix:{self.run / member}.sock"

    @property
    def http_token(self) -> Path:
        """The file with the token of all HTTP doors of the cluster."""
        return self.state / "http.token"

    def page(self, settings: LocalSettings, member: str) -> str:
        """The address of a supervisor's page, with the token; empty for other members."""
        if member not in self.supervisors(settings) or member not in settings.http:
            return ""
        return f"http://127.0.0.1:{settings.http[member]}/?token={self._token()}"

    def _token(self) -> str:
        """The token in `http_token`; empty if there is none. Raises OSError."""
        with suppress(FileNotFoundError):
            return self.http_token.read_text(errors="replace").strip()
        return ""

    @property
    def etcd_endpoint(self) -> str:
        """The address of etcd. It can make a socket with a name of this form only in its working
        directory.
        """
        return f"unix:{self.run}/client:0"

    def supervisors(self, settings: LocalSettings) -> list[str]:
        """Member names."""
        return [f"supervisor-{index}" for index in range(settings.supervisors)]

    def agents(self, settings: LocalSettings) -> list[str]:
        """Member names; agent-N runs node-N."""
        return [f"agent-{index}" for index in range(settings.nodes)]

    def make(self) -> None:
        """Create the directories, and the token of HTTP doors where there is none.

        Raises UserError if that fails or the directories belong to another user, Refused.
        """
        private = (
            self.state,
            # In the temporary directory, an owner of the parent could put sockets of their own there.
            self.run.parent,
            self.run,
            *(self.state / name for name in ("config", "logs", "etcd", "checkpoints")),
        )
        try:
            for directory in (*private, self.ports):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                if directory.stat().st_uid != os.geteuid():
                    raise UserError(f"{directory} belongs to another user; choose another --state")
                if directory != self.ports:
                    directory.chmod(0o700)
        except OSError as error:
            raise UserError(f"{error.filename}: cannot make this directory: {error.strerror}") from error
        if not self._token():
            write_private(self.http_token, f"{secrets.token_hex(32)}\n".encode())

    def write(self, settings: LocalSettings) -> None:
        """Write every configuration file of the cluster that is not so already. Raises Refused, OSError."""
        if settings.docker is not None:
            # What runs in containers, as another user, claims its ports itself.
            self.ports.chmod(0o1777)
        reach = self.reachable(settings) if settings.advertise else None
        address = reach.address if reach is not None else self.socket
        supervisors = [address(name) for name in self.supervisors(settings)]
        common: dict[str, object] = {
            "cluster": settings.cluster,
            "etcd": {"endpoints": [self.etcd_endpoint]},
            "profile": settings.profile,
            # One user's cluster: where that user may write.
            "stores": ["file:", "hdfs:"],
        }
        for name in self.supervisors(settings):
            own: dict[str, object] = {"id": name}
            if settings.secrets:
                files = settings.secrets.items()
                own["secrets"] = {each: {"file": file, "allow": ["*"]} for each, file in files}
            if settings.promise_for_ms:
                own["promise_for"] = f"{settings.promise_for_ms}ms"
                own["supervisors"] = self.supervisors(settings)
            met = reach.supervisor(name) if reach is not None else {}
            _write(self.config(name), common | self._own(name, settings) | own | met)
        agents = {f"node-{index}": name for index, name in enumerate(self.agents(settings))}
        for node, name in (agents | {POOL: POOL}).items():
            agent: dict[str, object] = {
                "node": node,
                "supervisors": supervisors,
                "checkpoint_parent": str(self.tasks),
                "lock_dir": str(self.ports),
                "spare_launchers": SPARE_LAUNCHERS,
                **(settings.docker.agent() if settings.docker is not None else _own_user()),
            }
            met = reach.agents() if reach is not None else {"host": "127.0.0.1"}
            _write(self.config(name), common | self._own(name, settings) | agent | met)
        client: dict[str, object] = {
            "cluster": settings.cluster,
            "supervisors": supervisors,
            "checkpoint_base": self.checkpoint_base,
            **(reach.client() if reach is not None else {}),
        }
        _write(self.client_config, client)
        _write(self.settings, asdict(settings))

    def _own(self, name: str, settings: LocalSettings) -> dict[str, object]:
        """The fields of a member's own in its configuration."""
        run_dir = self.run / name
        run_dir.mkdir(mode=0o700, exist_ok=True)
        http: dict[str, object] = {}
        if name in settings.http:
            listen = f"127.0.0.1:{settings.http[name]}"
            http["http"] = {"listen": listen, "token_file": str(self.http_token)}
        return {
            **http,
            "listen": self.socket(name),
            "state_dir": str(self.state / name),
            "run_dir": str(run_dir),
            "log": {"file": str(self.log(name).with_suffix(".jsonl"))},
        }

    def read_client(self) -> ClientSettings | None:
        """The client's configuration, if it is as `write` wrote it; None if it was changed.

        It avoids the packages that check configuration files, which would take most of a command's start.
        """
        try:
            body = json.loads(self.client_config.read_text().partition("\n")[2])
            cluster, base = body.pop("cluster"), body.pop("checkpoint_base")
            supervisors = tuple(body.pop("supervisors"))
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            return None
        ours = [self.socket(f"supervisor-{index}") for index in range(MAX_MEMBERS)]
        as_written = not body and supervisors and all(each in ours for each in supervisors)
        if not as_written or not isinstance(cluster, str) or not isinstance(base, str):
            return None
        return ClientSettings(cluster, supervisors, base)

    def read(self) -> LocalSettings:
        """The options of the last `local up`; raises NotFound if there never was one, UserError, OSError."""
        try:
            text = self.settings.read_text(errors="replace")
        except FileNotFoundError as error:
            raise NotFound(
                f"no cluster in {self.state}; run `supervisorctl local up`, or say where it is with --state"
            ) from error
        try:
            return _settings(text)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise UserError(
                f"{self.settings} is damaged, or of another version of tf-supervisor; `supervisorctl local "
                "up` with the options of the last time writes it anew, and loses nothing else"
            ) from error


def _settings(text: str) -> LocalSettings:
    body = json.loads(text.partition("\n")[2])
    if (docker := body.get("docker")) is not None:
        mounts = tuple(LocalMount(**each) for each in docker["mounts"])
        body["docker"] = LocalDocker(docker["socket"], docker["image"], mounts, tuple(docker["networks"]))
    # A newer release may have written more.
    known = {each.name for each in fields(LocalSettings)}
    return LocalSettings(**{name: value for name, value in body.items() if name in known})


def _per_user(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"{name}-{os.geteuid()}"


def _write(path: Path, body: dict[str, object]) -> None:
    """Write a file as JSON, which is YAML, atomically, unless that is in it."""
    text = f"# Written by `supervisorctl local up`; changes are lost.\n{json.dumps(body, indent=2)}\n"
    with suppress(FileNotFoundError):
        if path.read_bytes() == text.encode():
            return
    write_private(path, text.encode())
