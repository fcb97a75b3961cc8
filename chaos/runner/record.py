"""The file `run.json` of a run: its faults, its outcome, and the command that repeats it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from chaos.cluster import Shape
from chaos.faults.fault import Expects

RUN = "run.json"
SECRETS = "secrets.json"


class Outcome(Enum):
    """BROKEN: a promise was. ERROR: the run proves nothing, as it did not bite or could not be made."""

    PASSED = "passed"
    BROKEN = "broken"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Expected:
    """`faults.fault.Expects`, as JSON has it."""

    incidents: str
    causes: tuple[str, ...]
    scopes: tuple[str, ...]
    ends: tuple[str, ...]
    hides_steps: bool = False

    @classmethod
    def of(cls, found: Expects) -> Expected:
        """In an order of its own."""
        parts = (found.causes, found.scopes, found.ends)
        incidents, (causes, scopes, ends) = found.incidents.value, (tuple(sorted(part)) for part in parts)
        return cls(incidents, causes, scopes, ends, found.hides_steps)


@dataclass(slots=True)
class FaultRun:
    """One injection; times are CLOCK_BOOTTIME, -1 until they are known. `evidence` is the kernel's word."""

    name: str
    family: str
    target: str
    expects: Expected
    program_faults: int
    begin_ms: float = -1.0
    in_force_ms: float = -1.0
    heal_ms: float = -1.0
    evidence: str = ""
    damages: tuple[str, ...] = ()

    @property
    def in_force(self) -> bool:
        """Whether there was evidence."""
        return self.in_force_ms >= 0


@dataclass(frozen=True, slots=True)
class Broken:
    """A promise that did not hold."""

    promise: str
    text: str
    at_ms: float
    evidence: tuple[str, ...] = ()


@dataclass(slots=True)
class RunRecord:
    """`run.json`.

    Attributes:
        patience: bounds and tolerances are so many times larger.
        healthy_ms: when the job was healthy, before the first fault.
        converged_ms: when it was again, after the last heal; -1 if that took longer than `bound_ms`.
        wall_s: when it began, for people: seconds since 1970.
        steps_after: steps that the tasks made after the last heal.
        phases: how long the parts of the run took, in milliseconds.
    """

    id: str
    scenario: str
    seed: str
    program: str
    shape: dict[str, object]
    job: str
    patience: float = 1.0
    job_uuid: str = ""
    wall_s: float = 0.0
    faults: list[FaultRun] = field(default_factory=list)
    began_ms: float = -1.0
    healthy_ms: float = -1.0
    healed_ms: float = -1.0
    converged_ms: float = -1.0
    bound_ms: float = -1.0
    ended_ms: float = -1.0
    steps_after: int = 0
    outcome: Outcome = Outcome.ERROR
    why: str = "it did not come to its end"
    violations: list[Broken] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    replay: str = ""

    def write(self, directory: Path) -> None:
        """Replace DIRECTORY/run.json."""
        body = asdict(self) | {"outcome": self.outcome.value}
        for plain, fault in zip(body["faults"], self.faults, strict=True):
            plain["in_force"] = fault.in_force
        fresh = directory / f".{RUN}"
        fresh.write_text(json.dumps(body, indent=1, default=str) + "\n")
        fresh.replace(directory / RUN)


@dataclass(frozen=True, slots=True)
class Again:
    """The part of a run that `replay` needs."""

    scenario: str
    seed: str
    program: str
    shape: Shape
    faults: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, directory: Path) -> Again:
        """From DIRECTORY/run.json; raises OSError, ValueError or KeyError for another file."""
        body = json.loads((directory / RUN).read_text())
        faults = tuple((str(each["name"]), str(each["target"])) for each in body["faults"])
        shape = _shape(dict(body["shape"]))
        return cls(str(body["scenario"]), str(body["seed"]), str(body["program"]), shape, faults)


def shape_document(shape: Shape) -> dict[str, object]:
    """The shape for JSON: paths are text."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(shape).items()}


def _shape(body: dict[str, Any]) -> Shape:
    etcd = body.pop("etcd_binary")
    mounts = tuple(Path(each) for each in body.pop("docker_mounts"))
    # A run that was kept by a release without tenants has none.
    tenants = tuple(body.pop("tenants", ()))
    binary = Path(etcd) if etcd else None
    return Shape(**body, etcd_binary=binary, docker_mounts=mounts, tenants=tenants)
