"""The restart that a job needs, what follows from the job's past, and what is known of the failed attempt."""

from __future__ import annotations

from dataclasses import dataclass, field

from supervisor.contract.bounds import MAX_INT
from supervisor.contract.incident import Cause, Raised
from supervisor.contract.job.spec import Scope
from supervisor.control.decide.assess.verdicts import Judgement

UNTIL_COMMIT = MAX_INT
"""The patience of what must not cost a step, however long the next commit takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The facts about an attempt that has failed, for the record of its incident.

    Attributes:
        last_step: its newest step, -1 if none is known; `stepped`: it made one.
        tail: the end of its output.
        error: the error of its code that ended it.
        stack: where its threads were.
        flat: the signs of life that are missing, of a hang.
        began: the revision of etcd when it began; 0 if no attempt has failed, or if it lost its launcher
            before it ran.
    """

    last_step: int = -1
    stepped: bool = False
    tail: str = ""
    error: Raised | None = None
    stack: str = ""
    flat: tuple[str, ...] = ()
    began: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A restart that a job needs.

    Attributes:
        incident: its natural id: the same failure gives the same id, whoever looks.
        firm: False while a node is only suspected: prepare, but do not close or flip.
        known_ms: when this leader knew.
        detected_ms: from the failure to that.
        member: `ROLE.INDEX` of the failed task; empty when it is not about one.
        beside: the members that restart with it, each in place.
        avoid_nodes: where its tasks go only if they find no other place.
        patience_ms: for so long, once its generation is prepared, the next commit is waited for.
    """

    incident: str
    cause: Cause
    scope: Scope
    rule: str
    judgement: Judgement
    known_ms: int
    detail: str
    detected_ms: int = 0
    firm: bool = True
    member: str = ""
    node: str = ""
    beside: tuple[str, ...] = ()
    avoid_nodes: tuple[str, ...] = ()
    patience_ms: int = 0
    evidence: Evidence = field(default_factory=Evidence)

    @property
    def due_ms(self) -> int:
        """When its back-off is over."""
        return self.known_ms + self.judgement.verdict.backoff_ms
