"""The digits job with the flags and environment that a demonstration or a benchmark needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.adapters.files.jobfile import load_job_file
from supervisor.contract.job.spec import JobSpec

JOB_FILE = Path(__file__).resolve().parents[1] / "digits_async" / "job.yaml"
PROGRAM = JOB_FILE.parent / "train.py"


@dataclass(frozen=True, slots=True)
class Training:
    """The length of the training, and the file that it writes.

    `step_delay_ms` is a pause after each step of each replica; `save_steps` are global steps.
    """

    steps: int
    step_delay_ms: float
    save_steps: int
    step_log: Path
    report: Path | None = None

    def flags(self) -> tuple[str, ...]:
        """Flags of the program."""
        flags = (
            *("--steps", str(self.steps), "--step-delay-ms", f"{self.step_delay_ms:g}"),
            *("--save-steps", str(self.save_steps)),
        )
        return flags if self.report is None else (*flags, "--report", str(self.report))


def digits_job(
    training: Training, checkpoint_base: str, *, warm: bool = True, wrapped: bool = False
) -> JobSpec:
    """`examples/digits_async/job.yaml` with these flags.

    It is cold without anything preloaded, and `wrapped` where a shell runs each program.
    """
    spec = load_job_file(JOB_FILE, checkpoint_base=checkpoint_base).spec
    wrapper = ("sh", "-c", '"$@"; exit $?', "wrapper") if wrapped else ()
    command = (*wrapper, "python", PROGRAM.name, *training.flags())
    return replace(
        spec,
        roles=tuple(replace(role, command=command) for role in spec.roles),
        env={**spec.env, "STEP_LOG": str(training.step_log)},
        preload=spec.preload if warm else (),
    )
