"""A check of NVML and the driver, in a process of its own as in an agent, because a driver may hang or
crash.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from supervisor.cli.checks.model import Check, Scene, Told, fail, ok

NVML_S = 10
DRIVER = Path("/proc/driver/nvidia/version")
DEVICE = Path("/dev/nvidia0")
_ASK = """
import json
from agent.gpus.nvml import Nvml
from supervisor.contract.errors import Refused
try:
    nvml = Nvml()
    sight = nvml.look()
    gpus = sight.gpus
    silent = [gpu.uuid for gpu in gpus if gpu.error]
    said = {"driver": nvml.driver, "gpus": len(gpus), "silent": silent, "unopened": sight.unopened}
    print(json.dumps(said))
except Refused as error:
    print(json.dumps({"problem": str(error)}))
"""


def has_gpus() -> bool:
    """Whether this machine has an NVIDIA driver or device."""
    return DRIVER.exists() or DEVICE.exists()


def nvml(scene: Scene) -> Told:
    """Whether every GPU answers."""
    library = scene.config.gpus.library if scene.config is not None else None
    env = dict(os.environ)
    if library:
        env["LD_LIBRARY_PATH"] = f"{Path(library).parent}:{env.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    try:
        asked = subprocess.run(
            [sys.executable, "-P", "-c", _ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=NVML_S,
            check=False,
            env=env,
        )
    except subprocess.TimeoutExpired:
        return fail(f"the driver does not answer within {NVML_S} s", "see dmesg; the node may need a reboot")
    if asked.returncode != 0:
        return fail(f"the process that asks NVML ended with code {asked.returncode}", "see dmesg")
    said = json.loads(asked.stdout)
    if "problem" in said:
        return fail(said["problem"]) if has_gpus() or library else ok(f"no GPU here ({said['problem']})")
    if said["silent"]:
        return fail(f"no answer from {', '.join(said['silent'])}", "see dmesg; the node may need a reboot")
    if said["unopened"]:
        return fail(
            f"{said['unopened']} of {said['gpus'] + said['unopened']} GPUs are there, but cannot be opened",
            "see dmesg; the node may need a reboot",
        )
    return ok(f"driver {said['driver']}, {said['gpus']} GPU{'' if said['gpus'] == 1 else 's'}")


CHECKS = (Check("nvml", nvml, "install NVIDIA's driver with its libnvidia-ml.so.1", lambda _: True),)
