"""A job for a run: its file, its directories, and a secret that nobody may tell."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from chaos.cluster import Shape
from chaos.cluster.docker import PYTHON
from chaos.container_image import site_packages
from chaos.faults.operator import Operator
from chaos.faults.scene import Job
from chaos.programs import REPOSITORY, Program, in_order, job_file
from chaos.runner.record import SECRETS


def job_of(operator: Operator, name: str, directory: Path) -> Job:
    """A job whose files are in a directory of its own, which tasks on all nodes see."""
    return Job(operator, name, directory / "steplog", directory / "control")


def submit(
    job: Job,
    program: Program,
    directory: Path,
    shape: Shape,
    also: Mapping[str, object] = MappingProxyType({}),
    *,
    ordered: bool = False,
) -> None:
    """Start it on a cluster of this shape; `also` is what its file says instead. Raises CommandFailed.

    `ordered`: its programs start when those that they need listen.
    """
    secret = secrets.token_hex(16)
    _write(directory / SECRETS, {"the job's environment": secret})
    env = {"STEP_LOG": str(job.step_log), "CHAOS_CONTROL": str(job.control), "CHAOS_SECRET": secret}
    body = job_document(program, job.name, env, shape)
    _write(directory / "job.yaml", {**(in_order(body) if ordered else body), **also})
    job.operator.ctl("submit", str(directory / "job.yaml"))


def job_document(program: Program, name: str, env: Mapping[str, str], shape: Shape) -> dict[str, object]:
    """The job file of a program on a cluster of this shape."""
    inside = {"PYTHONPATH": f"{REPOSITORY}:{site_packages()}"} if shape.docker_agents else {}
    body = job_file(program, name, {**inside, **env}, min(1, shape.gpus))
    if shape.docker_agents:
        body["command"] = [PYTHON, *program.command]
    return body


def _write(path: Path, body: Mapping[str, object]) -> None:
    path.touch(mode=0o600)
    path.write_text(json.dumps(body, indent=1) + "\n")
