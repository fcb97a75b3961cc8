"""A dockerd of the demonstration's own, and the digits job in its containers.

The image holds Debian's Python alone, and the virtual environment with TensorFlow is mounted: nothing is
pulled. A dockerd that is already there is left alone.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from chaos.container_image import IMAGE, USER_ID, site_packages
from chaos.dockerd import Dockerd
from examples.demo.job import PROGRAM
from supervisor.cli.local.layout import LocalDocker, LocalMount
from supervisor.contract.errors import UserError
from supervisor.contract.job.spec import JobSpec

SHARES = 512
"""Of the processors, for all tasks together: half of what each daemon has, which needs little, at once."""


class Boxes:
    """A dockerd and the image for an embedded cluster with the digits job; containers write to `outputs`."""

    def __init__(self, outputs: Path) -> None:
        self._outputs = outputs
        self._dockerd = Dockerd(live_restore=True, shares=SHARES)

    def start(self) -> None:
        """Start dockerd and give it the image; raises UserError without root."""
        if os.geteuid() != 0:
            raise UserError("--runtime docker starts a dockerd of its own, for which it must be root")
        self._outputs.mkdir(parents=True, exist_ok=True)
        os.chown(self._outputs, USER_ID, USER_ID)
        self._dockerd.__enter__()

    def stop(self) -> None:
        """End it, with all its containers and data; safe to repeat."""
        self._dockerd.remove()

    @property
    def dockerd(self) -> Dockerd:
        """To be killed and restarted."""
        return self._dockerd

    @property
    def docker(self) -> LocalDocker:
        """For an embedded cluster."""
        mounts = (
            LocalMount(str(site_packages())),
            LocalMount(str(PROGRAM.parent)),
            LocalMount(str(self._outputs), read_only=False),
        )
        return LocalDocker(str(self._dockerd.socket), IMAGE, mounts)

    def boxed(self, spec: JobSpec) -> JobSpec:
        """The job, with TensorFlow where the containers have it."""
        return replace(spec, env={**spec.env, "PYTHONPATH": str(site_packages())})
