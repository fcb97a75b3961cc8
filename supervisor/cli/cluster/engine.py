"""One dockerd, for the verbs that check this machine: each call has a deadline, each container is removed.

The agent's runtime is another client with other needs; this one blocks, and lives as long as one command.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import requests

from agent.runtimes.docker_container import least_privilege
from agent.runtimes.docker_mounts import in_memory
from agent.runtimes.docker_node import HOME
from supervisor.adapters import dockerd
from supervisor.contract.errors import NotFound, Refused, TfSupervisorError, Unreachable

DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
CALL_S = 10
WORK_S = 60
"""Seconds for a call that makes, starts or removes a container: a disk may be slow."""
STALL_S = 60
"""Seconds without a message of a pull after which it has failed."""
OUTPUT_LINES = 40
SHARED_MEMORY = "/dev/shm"
_MEMORY_BYTES = 4 << 30
_PIDS = 512
_MAPS_USERS = {"userns": "userns-remap", "rootless": "rootless"}


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The report of dockerd on itself.

    `architecture` is spelt as in images. `runc`: its version. `maps_users`: the reason why uids in containers
    differ from those outside; empty if they are the same.
    """

    version: str
    api: str
    architecture: str
    live_restore: bool
    cgroup_driver: str
    cgroup_version: str
    runtimes: tuple[str, ...]
    data_root: str
    warnings: tuple[str, ...] = ()
    runc: str = ""
    maps_users: str = ""


@dataclass(frozen=True, slots=True)
class Image:
    """An image of this dockerd.

    `user` is the image's own user, which tasks do not use; `volumes` are the directories that it declares as
    volumes.
    """

    id: str
    architecture: str
    system: str
    user: str
    volumes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Box:
    """The options of a throw-away container: those of a task's, but without a network.

    Attributes:
        mounts: directories of this machine, by their path inside; read-only.
        volumes: the image's volumes, which are in memory for tasks.
    """

    user: str = "1000:1000"
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, Path] = field(default_factory=dict)
    volumes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a throw-away container. `code` is None if its time was over."""

    code: int | None
    output: str
    errors: str
    oom: bool = False


class CannotStart(TfSupervisorError):
    """A container was made but could not be started: there is no such program or user."""


def address_of(given: str | None) -> str:
    """The address of dockerd: the given one, else DOCKER_HOST, else docker's default."""
    address = given or os.environ.get("DOCKER_HOST") or DEFAULT_ADDRESS
    return f"unix://{address}" if address.startswith("/") else address


class Engine:
    """A connection to one dockerd; a context manager. Raises Unreachable, Refused."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._api = dockerd.connect(address, CALL_S)
        self._work = dockerd.another(self._api, address, WORK_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._api.close()
        self._work.close()

    def info(self) -> EngineInfo:
        """The report of dockerd on itself."""
        with self._mapped():
            said = self._api.info()
            parts = self._api.version().get("Components") or ()
        machine = str(said.get("Architecture", ""))
        return EngineInfo(
            version=str(said.get("ServerVersion", "")),
            api=self._api.api_version,
            architecture=dockerd.architecture(machine),
            live_restore=bool(said.get("LiveRestoreEnabled")),
            cgroup_driver=str(said.get("CgroupDriver", "")),
            cgroup_version=str(said.get("CgroupVersion", "1")),
            runtimes=tuple(sorted(said.get("Runtimes") or ())),
            data_root=str(said.get("DockerRootDir", "")),
            warnings=tuple(str(line) for line in said.get("Warnings") or ()),
            maps_users=mapping_of(said.get("SecurityOptions") or ()),
            runc=next((str(each["Version"]) for each in parts if each["Name"] == "runc"), ""),
        )

    def image(self, name: str) -> Image | None:
        """The image; None if this dockerd has none of that name."""
        try:
            with self._mapped():
                said = self._api.inspect_image(name)
        except NotFound:
            return None
        config = said.get("Config") or {}
        return Image(
            str(said["Id"]),
            str(said["Architecture"]),
            str(said["Os"]),
            str(config.get("User", "")),
            tuple(sorted(config.get("Volumes") or ())),
        )

    def networks(self) -> frozenset[str]:
        """The names of its networks."""
        with self._mapped():
            return frozenset(str(each["Name"]) for each in self._api.networks())

    def pull(self, name: str, moved: Callable[[int, int], None]) -> None:
        """Fetch an image; `moved` is called with (bytes done, bytes known so far).

        There is no limit while it makes progress.
        """
        with dockerd.mapped_errors(self.address), dockerd.another(self._api, self.address, STALL_S) as client:
            dockerd.pull(client, name, moved)

    def run(self, image: str, argv: tuple[str, ...], box: Box, deadline_s: int) -> Outcome:
        """Run one command in a container of its own, which is removed; raises CannotStart too."""
        variables = {"HOME": HOME, **box.env, "NVIDIA_VISIBLE_DEVICES": "void"}
        body = {
            "Image": image,
            "User": box.user,
            "Env": [f"{name}={value}" for name, value in variables.items()],
            "Entrypoint": [argv[0]],
            "Cmd": list(argv[1:]),
            "Labels": {"tfsup.check": "1"},
            "HostConfig": {
                **least_privilege(),
                "Tmpfs": in_memory(box.volumes, list(box.mounts), box.user),
                "NetworkMode": "none",
                "PidsLimit": _PIDS,
                "Memory": _MEMORY_BYTES,
                "Mounts": [
                    {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": True}
                    for target, source in box.mounts.items()
                ],
                "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
            },
        }
        with self._mapped():
            created = self._work.create_container_from_config(body, f"tfsup-check-{secrets.token_hex(6)}")
        ident = str(created["Id"])
        try:
            return self._ran(ident, deadline_s)
        finally:
            self.remove(ident)

    def labelled(self, label: str) -> dict[str, str]:
        """Id -> value of the label, for all containers with this label, running or not."""
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

    def _mapped(self) -> AbstractContextManager[None]:
        return dockerd.mapped_errors(self.address)


def mapping_of(options: Iterable[str]) -> str:
    """The reason, from dockerd's security options, why uids in containers differ from those outside; empty:
    they are the same.
    """
    named = {part.removeprefix("name=") for each in options for part in each.split(",")}
    return next((why for name, why in _MAPS_USERS.items() if name in named), "")
