"""One dockerd, for the verbs that look at this machine: each call has a deadline, each container is removed.

The agent's runtime is another client with other needs; this one blocks, and lives as long as one command.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import requests
from docker import APIClient, errors
from docker.types import LogConfig, Mount
from urllib3.exceptions import HTTPError

from supervisor.contract.errors import NotFound, Refused, TfSupervisorError, Unreachable

DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
CALL_S = 10
WORK_S = 60
"""So long may a call take that makes, starts or removes a container: a disk may be slow."""
STALL_S = 60
"""So long may a pull tell nothing."""
OUTPUT_LINES = 40
TEMPORARY = "/tmp"
SHARED_MEMORY = "/dev/shm"
_TEMPORARY_BYTES = 256 << 20
_MEMORY_BYTES = 4 << 30
_PIDS = 512
_ANY_VERSION = "1.41"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What dockerd says of itself. `architecture` is named as images name theirs."""

    version: str
    api: str
    architecture: str
    live_restore: bool
    cgroup_driver: str
    cgroup_version: str
    runtimes: tuple[str, ...]
    data_root: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Image:
    """An image that this dockerd has. `user` is the image's own, which tasks do not run as."""

    id: str
    architecture: str
    system: str
    user: str


@dataclass(frozen=True, slots=True)
class Box:
    """How a throw-away container runs: as a task's does, but without a network.

    Attributes:
        mounts: directories of this machine, by their path inside; read-only.
    """

    user: str = "1000:1000"
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a throw-away container ended. `code` is None when its time was over."""

    code: int | None
    output: str
    errors: str
    oom: bool = False


class CannotStart(TfSupervisorError):
    """The container was made but could not be started: no such program, no such user."""


def address_of(given: str | None) -> str:
    """Where dockerd listens: what was given, else DOCKER_HOST, else docker's default."""
    address = given or os.environ.get("DOCKER_HOST") or DEFAULT_ADDRESS
    return f"unix://{address}" if address.startswith("/") else address


class Engine:
    """A connection to one dockerd; a context manager. Raises Unreachable, Refused."""

    def __init__(self, address: str) -> None:
        self.address = address
        _knock(address)
        # A client that asks for the version while it is made leaves its socket open when nobody answers.
        with self._mapped(), APIClient(address, version=_ANY_VERSION, timeout=CALL_S) as first:
            version = str(first.version(api_version=False)["ApiVersion"])
        self._api = APIClient(address, version=version, timeout=CALL_S)
        self._work = APIClient(address, version=version, timeout=WORK_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._api.close()
        self._work.close()

    def info(self) -> EngineInfo:
        """What it says of itself."""
        with self._mapped():
            said = self._api.info()
        machine = str(said.get("Architecture", ""))
        return EngineInfo(
            version=str(said.get("ServerVersion", "")),
            api=self._api.api_version,
            architecture=_MACHINES.get(machine, machine),
            live_restore=bool(said.get("LiveRestoreEnabled")),
            cgroup_driver=str(said.get("CgroupDriver", "")),
            cgroup_version=str(said.get("CgroupVersion", "1")),
            runtimes=tuple(sorted(said.get("Runtimes") or ())),
            data_root=str(said.get("DockerRootDir", "")),
            warnings=tuple(str(line) for line in said.get("Warnings") or ()),
        )

    def image(self, name: str) -> Image | None:
        """The image, None when this dockerd has none of that name."""
        try:
            with self._mapped():
                said = self._api.inspect_image(name)
        except NotFound:
            return None
        config = said.get("Config") or {}
        return Image(str(said["Id"]), str(said["Architecture"]), str(said["Os"]), str(config.get("User", "")))

    def pull(self, name: str, moved: Callable[[int, int], None]) -> None:
        """Fetch an image; `moved` is told bytes done and bytes known of. It may take as long as it moves."""
        layers: dict[str, tuple[int, int]] = {}
        with self._mapped():
            client = APIClient(self.address, version=self._api.api_version, timeout=STALL_S)
        with self._mapped(), client:
            for event in client.pull(name, stream=True, decode=True):
                if "error" in event:
                    raise Refused(f"{name}: {event['error']}")
                amount = event.get("progressDetail") or {}
                if event.get("status") == "Downloading" and amount.get("total"):
                    layers[str(event["id"])] = (int(amount["current"]), int(amount["total"]))
                elif event.get("status") == "Download complete" and event.get("id") in layers:
                    total = layers[event["id"]][1]
                    layers[event["id"]] = (total, total)
                moved(sum(done for done, _ in layers.values()), sum(total for _, total in layers.values()))

    def run(self, image: str, argv: tuple[str, ...], box: Box, deadline_s: int) -> Outcome:
        """Run one command in a container of its own, which is removed; raises CannotStart too."""
        with self._mapped():
            created = self._work.create_container(
                image,
                list(argv[1:]),
                entrypoint=[argv[0]],
                name=f"tfsup-check-{secrets.token_hex(6)}",
                user=box.user,
                environment={"HOME": TEMPORARY, **box.env, "NVIDIA_VISIBLE_DEVICES": "void"},
                host_config=self._work.create_host_config(
                    network_mode="none",
                    cap_drop=["ALL"],
                    security_opt=["no-new-privileges"],
                    read_only=True,
                    tmpfs={TEMPORARY: f"size={_TEMPORARY_BYTES},mode=1777"},
                    pids_limit=_PIDS,
                    mem_limit=_MEMORY_BYTES,
                    mounts=[
                        Mount(target, str(source), type="bind", read_only=True)
                        for target, source in box.mounts.items()
                    ],
                    log_config=LogConfig(type="json-file", config={"max-size": "1m", "max-file": "1"}),
                ),
                labels={"tfsup.check": "1"},
            )
        ident = str(created["Id"])
        try:
            return self._ran(ident, deadline_s)
        finally:
            self.remove(ident)

    def labelled(self, label: str) -> dict[str, str]:
        """Of every container with this label, running or not: its id and the label's value."""
        with self._mapped():
            found = self._work.containers(all=True, filters={"label": label})
        return {str(each["Id"]): str(each["Labels"][label]) for each in found}

    def remove(self, ident: str) -> None:
        """Kill and remove a container; not an error if it is gone."""
        try:
            with self._mapped():
                self._work.remove_container(ident, force=True, v=True)
        except NotFound:
            return

    def _ran(self, ident: str, deadline_s: int) -> Outcome:
        try:
            with self._mapped():
                self._work.start(ident)
        except (NotFound, Refused) as error:
            raise CannotStart(str(error)) from error
        code: int | None = None
        deadline = time.monotonic() + deadline_s
        try:
            code = int(self._work.wait(ident, timeout=deadline_s)["StatusCode"])
        except requests.RequestException:
            if time.monotonic() < deadline:
                raise Unreachable(f"dockerd at {self.address} has ended while a container ran") from None
        with self._mapped():
            out = self._work.logs(ident, stdout=True, stderr=False, tail=OUTPUT_LINES)
            err = self._work.logs(ident, stdout=False, stderr=True, tail=OUTPUT_LINES)
            oom = bool(self._work.inspect_container(ident)["State"].get("OOMKilled"))
        return Outcome(code, out.decode(errors="replace"), err.decode(errors="replace"), oom)

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        """Errors of docker's SDK as ours."""
        try:
            yield
        except errors.NotFound as error:
            raise NotFound(_said(error)) from error
        except errors.APIError as error:
            raise Refused(_said(error)) from error
        except requests.Timeout as error:
            raise Unreachable(f"dockerd at {self.address} does not answer: timed out") from error
        except (errors.DockerException, errors.StreamParseError, HTTPError, OSError) as error:
            # requests' errors are OSErrors; a stream that breaks off in the middle has other names.
            raise Unreachable(f"dockerd at {self.address} does not answer: {error}") from error


def _knock(address: str) -> None:
    """Connect once: the SDK buries the system's reason, and forgets to close what did not connect."""
    if not address.startswith("unix://"):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(CALL_S)
            connection.connect(address.removeprefix("unix://"))
    except PermissionError as error:
        raise Refused(
            f"this user may not use dockerd at {address}; be root, or a member of the socket's group"
        ) from error
    except OSError as error:
        raise Unreachable(f"no dockerd at {address}: {error.strerror or error}") from error


def _said(error: errors.APIError) -> str:
    return str(error.explanation or error).strip()
