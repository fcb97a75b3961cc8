"""A configuration of an agent, for verbs that read one."""

from __future__ import annotations

import json
import os
from pathlib import Path


def write_config(directory: Path, **more: object) -> Path:
    """A node's configuration, all of it in one directory."""
    locks = directory / "locks"
    locks.mkdir(exist_ok=True)
    body = {
        "cluster": "trial",
        "etcd": {"endpoints": [f"unix:{directory}/client:0"]},
        "listen": f"unix:{directory}/agent.sock",
        "state_dir": str(directory / "state"),
        "node": "node-0",
        "supervisors": [f"unix:{directory}/supervisor.sock"],
        "checkpoint_parent": str(directory / "tasks"),
        "lock_dir": str(locks),
        **({} if more.get("runtime") == "docker" else {"task_user": f"{os.geteuid()}:{os.getegid()}"}),
        **more,
    }
    path = directory / "agent.yaml"
    path.write_text(json.dumps(body))
    return path
