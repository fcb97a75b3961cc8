"""What a dockerd of the tests needs to have nvidia-docker, over scripted GPUs (`nvidia_oci.py`)."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from chaos.nvml import FakeNvml

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


def _script(nvml: FakeNvml, name: str, role: str) -> Path:
    directory = nvml.state.parent
    directory.chmod(0o755)
    script = directory / "bin" / name
    script.parent.mkdir(exist_ok=True)
    command = shlex.join([sys.executable, "-IS", str(TOOL), role, str(directory)])
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(0o755)
    return script
