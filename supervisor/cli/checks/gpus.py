"""NVML and the driver, asked in a process of its own: a driver that hangs must not hang us."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from supervisor.cli.checks.model import Check, Scene, Told, fail, ok

NVML_S = 10
DRIVER = Path("/proc/driver/nvidia/version")
DEVICE = Path("/dev/nvidia0")
_ASK = """
import pynvml
try:
    pynvml.nvmlInit()
    count, driver = pynvml.nvmlDeviceGetCount(), pynvml.nvmlSystemGetDriverVersion()
    for index in range(count):
        pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
    print("ok", count, driver)
except pynvml.NVMLError as error:
    print("no", error)
"""


def has_gpus() -> bool:
    """Whether this machine has a driver of NVIDIA's or a device of it."""
    return DRIVER.exists() or DEVICE.exists()


def nvml(scene: Scene) -> Told:
    """Whether every GPU answers."""
    del scene
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=NVML_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return fail(f"the driver does not answer within {NVML_S} s", "see dmesg; the node may need a reboot")
    word, _, rest = asked.stdout.strip().partition(" ")
    if word == "ok":
        count, _, driver = rest.partition(" ")
        return ok(f"driver {driver}, {count} GPU{'' if count == '1' else 's'}")
    if word == "no" and not has_gpus():
        return ok(f"no GPU here ({rest})")
    return fail(rest or f"asking NVML ended with code {asked.returncode}")


CHECKS = (Check("nvml", nvml, "install NVIDIA's driver with its libnvidia-ml.so.1", lambda _: True),)
