"""Attacks by the environment of a job, its preloaded modules and its interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.attacks.attack import NOT_SEPARATED, Attack, Failed, Harmless, Refused, Where

_KILLER = """
import os, signal, sys
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        if b"agent.main" in open("/proc/" + pid + "/cmdline", "rb").read():
            os.kill(int(pid), signal.SIGKILL)
            open("/proc/" + pid + "/mem", "rb").read(1)
    except OSError:
        pass
"""


def _site_customize(home: Path) -> None:
    (home / "sitecustomize.py").write_text(_KILLER)
    (home / "usercustomize.py").write_text(_KILLER)


def _module(text: str) -> Callable[[Path], None]:
    def write(home: Path) -> None:
        (home / "evil.py").write_text(text)

    return write


def _scripts(home: Path) -> None:
    for name in ("python3", "sh", "env"):
        (home / name).write_text("#!/bin/sh\nexec /bin/sleep 1\n")
        (home / name).chmod(0o755)


def _noise(home: Path) -> None:
    (home / "attack.py").write_bytes(os.urandom(3000) + b"\0")


ATTACKS = (
    Attack(
        name="own-variables",
        tries="`env` with our own variables: marks, attempts, failpoints, TF_CONFIG, CHECKPOINT_DIR",
        job={
            "env": {
                "TFSUP_MARKER": "0#chaos/node-0@/srv/state/launchers",
                "TFSUP_FAILPOINTS": "/tmp",
                "TFSUP_BASE_STEP": "10000000000000000",
                "TFSUP_STEP_FILE": "/etc/shadow",
                "TFSUP_OUTPUT_DIR": "/srv/canary/root",
                "CHECKPOINT_DIR": "/srv/canary/root",
                "TF_CONFIG": "{{",
            }
        },
        ends=Refused("TFSUP_MARKER"),
    ),
    Attack(
        name="loader",
        tries="`LD_PRELOAD`, `LD_LIBRARY_PATH` and `LD_AUDIT` for its launcher",
        job={"env": {"LD_PRELOAD": "/nowhere.so", "LD_LIBRARY_PATH": ".", "LD_AUDIT": "./evil.so"}},
        ends=Refused("LD_PRELOAD"),
    ),
    Attack(
        name="python-variables",
        tries="`PYTHONSTARTUP`, `PYTHONPATH`, `PYTHONHOME` and a sitecustomize that kills the agent in its launcher",
        job={
            "env": {
                "PYTHONSTARTUP": "evil.py",
                "PYTHONPATH": ".",
                "PYTHONINSPECT": "1",
                "PYTHONWARNINGS": "error",
            }
        },
        files=_site_customize,
        not_in=NOT_SEPARATED,
    ),
    Attack(
        name="python-home",
        tries="a `PYTHONHOME` that is not there, so that no interpreter of the job starts",
        job={"env": {"PYTHONHOME": "/nowhere"}},
        ends=Failed("ended (at once|before)"),
    ),
    Attack(
        name="own-path",
        tries="a `PATH` with its own directory first: its `python3`, `sh` and `env` are others",
        job={"env": {"PATH": ".:/nowhere"}, "command": ["python3", "attack.py"]},
        files=_scripts,
        ends=Failed("."),
        ends_in={Where.DOCKER: Harmless()},
    ),
    Attack(
        name="preload-ends",
        tries="a module in `preload` that ends its launcher",
        job={"preload": ["evil"], "env": {"PYTHONPATH": "."}},
        files=_module("import os\nos._exit(0)\n"),
        ends=Failed("ended (at once|before)"),
    ),
    Attack(
        name="preload-forks",
        tries="a module in `preload` that leaves daemons, closes all files and replaces our modules",
        job={"preload": ["evil"], "env": {"PYTHONPATH": "."}},
        files=_module(
            "import os, sys, time\n"
            "for _ in range(5):\n"
            "    if os.fork() == 0:\n"
            "        os.setsid()\n"
            "        time.sleep(3600)\n"
            "        os._exit(0)\n"
            "import json, socket, signal\n"
            "json.dumps = lambda *_, **__: 'x'\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "os.closerange(3, 200)\n"
        ),
        ends=Failed("."),
    ),
    Attack(
        name="preload-unknown",
        tries="modules in `preload` with paths, calls and NUL in their names",
        job={"preload": ["../evil", "os; import sys", "a\0b"]},
        ends=Refused("preload"),
    ),
    Attack(
        name="no-program",
        tries="a program of noise, NUL among it",
        files=_noise,
        ends=Failed("exited with code 1"),
    ),
    Attack(
        name="large-environment",
        tries="900 variables of 1 KB",
        job={"env": {f"A{number}": "x" * 100 for number in range(900)}},
        ends=Refused("too large"),
    ),
    Attack(
        name="homes",
        tries="`HOME`, `TMPDIR` and `XDG_RUNTIME_DIR` of root and of other users",
        job={"env": {"HOME": "/root", "TMPDIR": "/root", "XDG_RUNTIME_DIR": "/run/user/0", "USER": "root"}},
        program="tried('write at home', lambda: open('/root/planted', 'w'))",
    ),
)
