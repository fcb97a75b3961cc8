"""The files that give a dockerd nvidia-docker, over scripted GPUs (`nvidia_oci.py`)."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from chaos.nvidia_oci import CONTROL, MAJOR, MINOR, VISIBLE
from chaos.nvml import FakeNvml

TOOL = Path(__file__).with_name("nvidia_oci.py")
RUNTIME = "nvidia"
_RULE = f"c {MAJOR}:{MINOR} rwm"


def runtime_settings(nvml: FakeNvml) -> Mapping[str, object]:
    """The settings of daemon.json for the runtime `nvidia`."""
    return {"runtimes": {RUNTIME: {"path": str(runtime(nvml.state.parent))}}}


def runtime(directory: Path) -> Path:
    """The OCI runtime that gives containers the GPUs of a directory of `chaos.nvml`."""
    return _script(directory, "nvidia-container-runtime", "runtime")


def hook_env(nvml: FakeNvml, path: str) -> Mapping[str, str]:
    """The environment of dockerd: the hook is in its PATH, so that it has `--gpus`."""
    script = _script(nvml.state.parent, "nvidia-container-runtime-hook", "hook")
    return {"PATH": f"{script.parent}:{path}"}


def see(nvml: FakeNvml, container: str, *uuids: str) -> None:
    """From now on a container sees these GPUs alone, whatever this machine does."""
    draft = nvml.state.parent / "visible" / container / "uuids.new"
    draft.write_text("\n".join(uuids))
    draft.replace(draft.with_name("uuids"))


def sees(pid: int) -> list[str]:
    """The GPUs that the container of a process sees, as the kernel shows its files. Raises OSError."""
    return Path(f"/proc/{pid}/root{VISIBLE}/uuids").read_text().split()


def deny(pid: int) -> None:
    """Take the control device from the container of a process, as a reload of systemd's units can."""
    group = _devices(pid)
    if group is not None:
        (group / "devices.deny").write_text(_RULE)
    else:
        # The rules of cgroup v2 are a program of dockerd's.
        subprocess.run(["nsenter", "-t", str(pid), "-m", "--", "chmod", "000", CONTROL], check=True)


def denied(pid: int) -> bool:
    """Whether the kernel lets its container open the control device no more. Raises OSError."""
    group = _devices(pid)
    if group is not None:
        return _RULE not in (group / "devices.list").read_text().splitlines()
    return not Path(f"/proc/{pid}/root{CONTROL}").stat().st_mode & 0o777


def _devices(pid: int) -> Path | None:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    path = next((line.partition(":devices:")[2] for line in lines if ":devices:" in line), "")
    return Path("/sys/fs/cgroup/devices") / path.lstrip("/") if path else None


def _script(directory: Path, name: str, role: str) -> Path:
    directory.chmod(0o755)
    script = directory / "bin" / name
    script.parent.mkdir(exist_ok=True)
    command = shlex.join([sys.executable, "-IS", str(TOOL), role, str(directory)])
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(0o755)
    return script
