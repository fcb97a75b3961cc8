"""What a dockerd of the tests needs to have nvidia-docker, over scripted GPUs (`nvidia_oci.py`)."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from chaos.nvml import FakeNvml
from tests.nvml.nvidia_oci import CONTROL, MAJOR, MINOR

TOOL = Path(__file__).with_name("nvidia_oci.py")


def runtime_settings(nvml: FakeNvml) -> Mapping[str, object]:
    """For daemon.json: the runtime `nvidia`."""
    return {"runtimes": {"nvidia": {"path": str(_script(nvml, "nvidia-container-runtime", "runtime"))}}}


def hook_env(nvml: FakeNvml, path: str) -> Mapping[str, str]:
    """For dockerd's environment: the hook is in its PATH, so that it has `--gpus`."""
    return {"PATH": f"{_script(nvml, 'nvidia-container-runtime-hook', 'hook').parent}:{path}"}


def see(nvml: FakeNvml, container: str, *uuids: str) -> None:
    """From now on a container sees these GPUs alone, whatever this machine does."""
    (nvml.state.parent / "visible" / container / "uuids").write_text("\n".join(uuids))


def deny(pid: int) -> None:
    """Take the control device from the container of a process, as a reload of systemd's units can."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    path = next((line.partition(":devices:")[2] for line in lines if ":devices:" in line), "")
    if path:
        group = Path("/sys/fs/cgroup/devices") / path.lstrip("/")
        (group / "devices.deny").write_text(f"c {MAJOR}:{MINOR} rwm")
    else:
        # The rules of cgroup v2 are a program of dockerd's.
        subprocess.run(["nsenter", "-t", str(pid), "-m", "--", "chmod", "000", CONTROL], check=True)


def _script(nvml: FakeNvml, name: str, role: str) -> Path:
    directory = nvml.state.parent
    directory.chmod(0o755)
    script = directory / "bin" / name
    script.parent.mkdir(exist_ok=True)
    command = shlex.join([sys.executable, "-IS", str(TOOL), role, str(directory)])
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(0o755)
    return script
