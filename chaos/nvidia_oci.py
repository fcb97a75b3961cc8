"""The OCI runtime `nvidia` and the prestart hook of nvidia-docker, for scripted GPUs; standard library alone.

    PYTHON -IS nvidia_oci.py runtime DIRECTORY ARGUMENTS...   instead of runc, which it becomes
    PYTHON -IS nvidia_oci.py hook DIRECTORY prestart          as dockerd has it called for `--gpus`

Both give a container whose NVIDIA_VISIBLE_DEVICES names GPUs (by UUID, by index, or `all`) the library of
DIRECTORY, the state that it answers from, and the list of its own GPUs, `visible/ID/uuids`, as a directory
that a test rewrites while the container runs; and a device `/dev/nvidiactl`, which is `/dev/full`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
STATE = "/run/fake-nvml"
VISIBLE = "/run/fake-nvml-visible"
CONTROL, MAJOR, MINOR = "/dev/nvidiactl", 1, 7


def main(arguments: list[str]) -> None:
    """Dispatch on how it was called."""
    role, directory = arguments[0], Path(arguments[1])
    if role == "runtime":
        rest = arguments[2:]
        if "create" in rest:
            _extend_bundle(directory, _bundle_of(rest), rest[-1])
        os.execvp("runc", ["runc", *rest])
    state = json.load(sys.stdin)
    _mount_into(directory, Path(state["bundle"]), state["id"], state["pid"])


def _bundle_of(arguments: list[str]) -> Path:
    for position, each in enumerate(arguments):
        if each in {"--bundle", "-b"}:
            return Path(arguments[position + 1])
        if each.startswith("--bundle="):
            return Path(each.partition("=")[2])
    return Path.cwd()


def _extend_bundle(directory: Path, bundle: Path, container: str) -> None:
    path = bundle / "config.json"
    config = json.loads(path.read_text())
    binds = _binds(directory, config, container)
    config["mounts"] += [
        {"type": "bind", "source": source, "destination": target, "options": ["rbind", "ro"]}
        for source, target in binds
    ]
    if binds:
        control = {"path": CONTROL, "type": "c", "major": MAJOR, "minor": MINOR, "fileMode": 0o666}
        config["linux"].setdefault("devices", []).append(control)
    path.write_text(json.dumps(config))


def _mount_into(directory: Path, bundle: Path, container: str, pid: int) -> None:
    """Before the container's root becomes its root, its mount namespace still shows this machine's paths."""
    config = json.loads((bundle / "config.json").read_text())
    root = bundle / config["root"]["path"]
    enter = ["nsenter", "-t", str(pid), "-m", "--"]
    binds = _binds(directory, config, container)
    for source, target in binds:
        inside = Path(f"{root}{target}")
        if Path(source).is_dir():
            inside.mkdir(parents=True, exist_ok=True)
        else:
            inside.touch()
        subprocess.run([*enter, "mount", "--bind", source, str(inside)], check=True)
    if binds:
        node = ["mknod", "--mode=666", f"{root}{CONTROL}", "c", str(MAJOR), str(MINOR)]
        subprocess.run([*enter, *node], check=True)


def _binds(directory: Path, config: dict[str, dict[str, list[str]]], container: str) -> list[tuple[str, str]]:
    """The (source, target) mounts of a container with GPUs; empty without GPUs."""
    env = dict(each.partition("=")[::2] for each in config["process"]["env"])
    asked = env.get("NVIDIA_VISIBLE_DEVICES", "")
    if asked in {"", "void", "none"}:
        return []
    lines = (directory / "state").read_text().splitlines()
    there = [line.split()[1] for line in lines if line.startswith("gpu ")]
    chosen = there if asked == "all" else [_uuid(each, there) for each in asked.split(",")]
    visible = directory / "visible" / container
    visible.mkdir(parents=True, exist_ok=True)
    (visible / "uuids").write_text("\n".join(chosen))
    return [
        (str(directory / "libnvidia-ml.so.1"), LIBRARY),
        (str(directory), STATE),
        (str(visible), VISIBLE),
    ]


def _uuid(name: str, there: list[str]) -> str:
    """The UUID of a GPU, given by UUID or index; exits for another name, as nvidia-docker does."""
    uuid = there[int(name)] if name.isdigit() and int(name) < len(there) else name
    if uuid not in there:
        sys.exit(f"nvidia-container-cli: device error: {name}: unknown device")
    return uuid


if __name__ == "__main__":
    main(sys.argv[1:])
