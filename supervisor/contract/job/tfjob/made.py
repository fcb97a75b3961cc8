"""The job file that is made of a manifest, and the parts of the manifest behind it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from supervisor.contract.bounds import MAX_SPEC_BYTES
from supervisor.contract.job.container import Where
from supervisor.contract.job.tfjob.check import Findings
from supervisor.contract.job.tfjob.fields import PREFIX
from supervisor.contract.job.tfjob.texts import expand, growth

Plain = dict[str, object]


@dataclass(slots=True)
class Conversion:
    """A job file, and what its user has to be told.

    Attributes:
        job: the document of the job file.
        origin: by field of the job file, the field of the manifest.
        findings: errors, and notes on what has no effect or was chosen.
        hold: the job is recorded and not started.
        grown: the characters that were put into texts for `$(VAR)`.
    """

    findings: Findings
    job: Plain = field(default_factory=dict)
    origin: dict[Where, Where] = field(default_factory=dict)
    hold: bool = False
    grown: int = 0

    def put(self, target: Where, value: object, where: Where) -> None:
        """Set a field of the job file."""
        at = self.job
        for part in target[:-1]:
            below = at.setdefault(str(part), {})
            if not isinstance(below, dict):
                self.findings.problem(where, f"{'.'.join(map(str, target))} is no field of a job file")
                return
            at = below
        at[str(target[-1])] = value
        self.origin[target] = where

    def expanded(self, text: str, variables: Mapping[str, str], where: Where) -> str:
        """The text with `$(VAR)` replaced; an error where variables that name variables grow without end."""
        is_first = self.grown <= MAX_SPEC_BYTES
        self.grown += growth(text, variables)
        if self.grown <= MAX_SPEC_BYTES:
            return expand(text, variables)
        if is_first:
            most = f"{MAX_SPEC_BYTES // 1024} KiB"
            self.findings.problem(where, f"$(VAR) makes more than {most} of this manifest, which no job has")
        return ""

    def written(self, where: Where) -> Where:
        """The field of the manifest that a field of the job file was made of, or an annotation for it."""
        known = where
        while known and known not in self.origin:
            known = known[:-1]
        if known:
            return self.origin[known]
        return ("metadata", "annotations", PREFIX + ".".join(map(str, where))) if where else ()


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica type: its role, its place, its pod, and the container that trains with its place."""

    role: str
    where: Where
    given: Mapping[str, object]
    pod: Mapping[str, object]
    main: Mapping[str, object]
    at: Where

    @property
    def pod_at(self) -> Where:
        """The place of its pod."""
        return (*self.where, "template", "spec")

    @property
    def count(self) -> int:
        """Its number of tasks."""
        count = self.given.get("replicas")
        return count if isinstance(count, int) else 1


def one_of(made: Conversion, where: Where, value: object, known: tuple[str, ...]) -> bool:
    """Whether a value is not given, or is one of those that are known; otherwise add an error."""
    if value is None or value in known:
        return True
    shown = ", ".join(filter(None, known))
    made.findings.problem(
        where, f"{str(value)[:40]!r} is not possible; write {'one of ' if len(known) > 1 else ''}{shown}"
    )
    return False


def mapping(value: object) -> Mapping[str, object]:
    """A mapping, or an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def listed(value: object) -> list[object]:
    """A list, or an empty one for anything else."""
    return value if isinstance(value, list) else []
