"""Pods of the printed manifests as docker containers, with commands, files, users and rights as printed.

Each volume is a directory of this machine with the owner and mode that a kubelet gives it. The Service is a
name in docker's network. There is no scheduler, no controller and no policy: this is not Kubernetes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

from chaos.container_image import IMAGE, site_packages
from chaos.dockerd import Dockerd
from tests.examples.harness import ROOT
from tests.kubernetes.printed import Document, Printed

_LISTEN = "0A"
NAMESPACE = "tf-supervisor"
PROGRAM = ("python3", "-P", "-m")


@dataclass
class Stage:
    """The settings that all pods share.

    Attributes:
        certificates: the directory in which they were issued.
        store: the directory of the PersistentVolumeClaim.
    """

    dockerd: Dockerd
    network: str
    printed: Printed
    directory: Path
    certificates: Path = field(init=False)
    store: Path = field(init=False)

    def __post_init__(self) -> None:
        self.certificates = self.directory / "certs"
        self.store = self.directory / "store"
        self.bin = self.directory / "bin"
        self.bin.mkdir()
        tini = shutil.which("docker-init")
        assert tini is not None, "docker.io brings it"
        shutil.copy(tini, self.bin / "tini")
        for name, module in (
            ("tfsup-supervisord", "supervisor.main"),
            ("supervisorctl", "supervisor.cli.main"),
        ):
            script = self.bin / name
            script.write_text(f'#!/bin/sh\nexec {" ".join(PROGRAM)} {module} "$@"\n')
            script.chmod(0o755)

    @property
    def installation(self) -> list[str]:
        """Options that put tf-supervisor into the test image, in place of `pip install`."""
        places = (ROOT, site_packages())
        return [
            *(f"--volume={each}:{each}:ro" for each in places),
            f"--env=PYTHONPATH={':'.join(map(str, places))}",
            "--env=PYTHONDONTWRITEBYTECODE=1",
            *(f"--volume={each}:/usr/local/bin/{each.name}:ro" for each in self.bin.iterdir()),
        ]


class Pod:
    """A pod of a StatefulSet. `life` tells apart pods of one name."""

    def __init__(self, stage: Stage, component: str, number: int, life: int = 0) -> None:
        self.stage = stage
        self.component = component
        self.name = f"{component}-{number}"
        self.container = f"{self.name}-{life}"
        self.spec = stage.printed.pod(component)
        self.context = self.spec["securityContext"]
        self.directory = stage.directory / self.container
        volumes = {each["name"]: each for each in self.spec["volumes"]}
        claims = stage.printed.find("StatefulSet", component)["spec"].get("volumeClaimTemplates", ())
        self.volumes = {name: self._make(name, volume) for name, volume in volumes.items()}
        for each in claims:
            name = each["metadata"]["name"]
            self.volumes[name] = self._directory(stage.directory / f"{name}-{self.name}", 0o2775)

    @property
    def main(self) -> Document:
        """The container of the daemon."""
        (found,) = self.spec["containers"]
        assert isinstance(found, dict)
        return found

    def start(self) -> None:
        """Run the init container to its end, and start the container."""
        (prepare,) = self.spec["initContainers"]
        words = self._run(prepare, "--rm", "--network=none")
        self.stage.dockerd.cli(*words)
        alias = f"{self.name}.{self.component}.{NAMESPACE}.svc"
        assert self.component == self.stage.printed.find("StatefulSet", self.component)["spec"]["serviceName"]
        there = (f"--network={self.stage.network}", f"--network-alias={alias}")
        self.stage.dockerd.cli(*self._run(self.main, "--detach", f"--name={self.container}", *there))

    def run(self, command: Sequence[str]) -> int:
        """The exit code of a command in the container, as a probe or a hook is run."""
        return self.stage.dockerd.attempt("exec", self.container, *command).returncode

    def stop(self) -> None:
        """End the pod as the kubelet does: the hook, and a signal after it."""
        # The end of the container ends the hook.
        self.run(self.main["lifecycle"]["preStop"]["exec"]["command"])
        assert not self.runs
        assert self.stage.dockerd.cli("inspect", "--format={{.State.ExitCode}}", self.container) == "0", (
            self.log
        )

    def connections(self) -> set[tuple[str, str, int]]:
        """Each connection: `ingress` or `egress`, the address of the peer, and the port of who listens."""
        told = self.stage.dockerd.cli("exec", self.container, "cat", "/proc/net/tcp", "/proc/net/tcp6")
        rows = [line.split()[1:4] for line in told.splitlines() if "local_address" not in line]
        listening = {_port(local) for local, _, state in rows if state == _LISTEN}
        found = set()
        for local, remote, state in rows:
            if state == _LISTEN or _address(remote).is_loopback or _address(local).is_loopback:
                continue
            if _port(local) in listening:
                found.add(("ingress", str(_address(remote)), _port(local)))
            else:
                found.add(("egress", str(_address(remote)), _port(remote)))
        return found

    @property
    def runs(self) -> bool:
        """Whether the container runs."""
        return self.stage.dockerd.cli("inspect", "--format={{.State.Running}}", self.container) == "true"

    @property
    def log(self) -> str:
        """The end of what the container has printed."""
        done = self.stage.dockerd.attempt("logs", "--tail=60", self.container)
        return done.stdout + done.stderr

    def _run(self, container: Document, *options: str) -> list[str]:
        rights, context = container["securityContext"], self.context
        environment = self._environment(container)
        mounts = []
        for each in container["volumeMounts"]:
            source = self.volumes[each["name"]] / each.get("subPath", "")
            mounts.append(f"--volume={source}:{each['mountPath']}{':ro' if each.get('readOnly') else ''}")
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["readOnlyRootFilesystem"] is True
        return [
            *("run", f"--hostname={self.name}", f"--user={context['runAsUser']}:{context['runAsGroup']}"),
            *(f"--group-add={context['fsGroup']}", "--read-only", "--security-opt=no-new-privileges"),
            *(f"--cap-drop={each}" for each in rights["capabilities"]["drop"]),
            *(f"--env={name}={value}" for name, value in environment.items()),
            *(*mounts, *self.stage.installation, *options, IMAGE),
            *(_expanded(each, environment) for each in container["command"]),
        ]

    def _environment(self, container: Document) -> dict[str, str]:
        fields = {
            "metadata.name": self.name,
            "metadata.uid": f"uid-of-{self.container}",
            "spec.nodeName": "machine-1",
        }
        return {
            each["name"]: each["value"]
            if "value" in each
            else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container["env"]
        }

    def _make(self, name: str, volume: Document) -> Path:
        if "persistentVolumeClaim" in volume:
            return self._directory(self.stage.store, 0o2775)
        path = self._directory(self.directory / name, 0o2777)
        if "configMap" in volume:
            for file, text in self.stage.printed.find("ConfigMap", volume["configMap"]["name"])[
                "data"
            ].items():
                (path / file).write_text(text)
        if "secret" in volume:
            for source in secret(self.stage.printed, volume["secret"]["secretName"], self.stage.certificates):
                copy = path / source.name
                copy.write_bytes(source.read_bytes())
                os.chown(copy, 0, self.context["fsGroup"])
                copy.chmod(0o440)
        return path

    def _directory(self, path: Path, mode: int) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        os.chown(path, 0, self.context["fsGroup"])
        path.chmod(mode)
        return path


def secret(printed: Printed, name: str, directory: Path) -> list[Path]:
    """The files that the printed command puts into a Secret."""
    (line,) = (each for each in printed.commands("kubectl") if f" {name} " in each)
    found: list[Path] = []
    for pattern in re.findall(r" certs/(\S+?)(?=[ )])", line):
        files = sorted(directory.glob(pattern))
        assert files, pattern
        found += files
    return found


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda match: environment[match[1]], text)


def _port(text: str) -> int:
    return int(text.rpartition(":")[2], 16)


def _address(text: str) -> IPv4Address:
    """An address of /proc/net/tcp: words with their lowest byte first. IPv4 is the last one of IPv6."""
    return IPv4Address(int(text.partition(":")[0][-8:], 16).to_bytes(4, "little"))
