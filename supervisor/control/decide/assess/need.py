"""The restart that a job needs."""

from __future__ import annotations

from dataclasses import dataclass

from recovery.policy.budget import Verdict
from recovery.policy.suspects import BaseVerdict, NodeVerdict
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import Scope


@dataclass(frozen=True, slots=True)
class Need:
    """A restart that the job needs.

    Attributes:
        incident: its natural id: the same failure gives the same id, whoever looks.
        firm: False while a node is only suspected: prepare, but do not close or flip.
        detected_ms: from the failure to this leader's knowing of it.
        known_ms: when this leader knew.
        verdict: the budget's word; its ledger is what the flip writes.
        member: `ROLE.INDEX` of the failed task; empty when it is not about one.
        avoid_nodes: where its tasks go only if they find no other place.
        last_step: the newest step of the failed attempt itself, -1 if none is known; `stepped`: it made one.
        flat: the signs of life that are missing, of a hang.
        began: the revision of etcd when that attempt began, 0 if no attempt has failed.
        bad_node: the node that the cause has returned on.
        cold: the restart is to import afresh, as the program has failed of its code for the first time.
        bad_base: what the failures say of the checkpoint that the generation in force started from.
    """

    incident: str
    cause: Cause
    scope: Scope
    rule: str
    verdict: Verdict
    firm: bool
    detected_ms: int
    known_ms: int
    member: str = ""
    node: str = ""
    attempt: int = 0
    detail: str = ""
    tail: str = ""
    stack: str = ""
    avoid_nodes: tuple[str, ...] = ()
    last_step: int = -1
    stepped: bool = False
    flat: tuple[str, ...] = ()
    began: int = 0
    bad_node: NodeVerdict | None = None
    bad_base: BaseVerdict | None = None
    cold: bool = False
