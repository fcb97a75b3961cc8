"""Every key in etcd: its writers, its spelling, the bound of its value, and its removal.

CONTRIBUTING.md lists the other places that a new key changes (record, snapshot, rights of agents, checkers, a
test). docs/design.md shows the table (`python -m tests.support.design_page` writes it there).

Keys are relative to the cluster's namespace (`/tfsup/CLUSTER/`), which the etcd adapter adds.
Job, role and node names hold no '/' (ids.check_name), so that a key parses in one way only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from supervisor.contract import checkpoint, code, desired, incident, observed
from supervisor.contract.boundaries import BULK
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.job import goodput, pause, spec
from supervisor.contract.pool.record import PoolRecord


class Writer(Enum):
    """The writers of a key. They determine the compares of its transactions (rule 2)."""

    LEADER = "leader token"
    AGENT = "incarnation key"
    BOTH = "leader token or incarnation key"
    CANDIDATE = "absence of the key"
    APPELLANT = "presence of the lost mark"


class Removed(Enum):
    """The remover of a key, and the time of its removal.

    Every key of a job also goes when that job is deleted.
    """

    NEVER = "nobody; the next value takes its place"
    LEASE = "etcd, when the lease of its writer ends"
    MARK = "leader, when the mark is withdrawn, or nothing refers to that incarnation any more"
    TAKEN_OVER = "leader, when it writes the node's cordon instead; only earlier releases write it"
    BOOT = "leader, when the machine has booted since and the fault is gone"
    JOB = "leader, when the job is deleted"
    NAME = "leader, after a day, or when a job of that name is submitted"
    PLAN = "leader, when the plan is given up or a later generation is in force"
    ADDRESSES = "leader, with the plan, once no attempt may be alive that knows its addresses"
    SPARE = "leader, when the job has ended, the node is gone, or the node takes tasks again"
    ATTEMPT = "leader, when the attempt is replaced and dead, and no other may know its addresses"
    FILES = "leader, after the checkpoint's files; by `submit --fresh` with all others of the job"
    FRESH = "leader, by `submit --fresh`"
    OLD = "leader, when enough newer ones are there"
    REVOKED = "leader, when the pool is ended or revoked"
    UNUSED = "leader, when no job has needed it for ten minutes"


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of key. `shape`: what the parts of a key after the prefix name; empty for a single key."""

    prefix: str
    record: type
    writer: Writer
    max_bytes: int
    removed: Removed
    shape: str = ""


LEADER = "leader"
CLUSTER = "cluster"
CLAIMS = "gpu_claims"
"""The key for claims of CPUs, memory and GPUs. Earlier releases use it under this name for GPUs alone."""
TIME = "time"
PAUSE = "pause"
"""The pause of the whole cluster: an operator's, or the brake."""
CODE = "code/"
"""Prefix of the records of archives of code."""

FAMILIES = (
    Family(LEADER, desired.LeaderRecord, Writer.CANDIDATE, 1024, Removed.LEASE),
    Family(CLUSTER, desired.ClusterRecord, Writer.LEADER, 1024, Removed.NEVER),
    Family("nodes/", observed.Incarnation, Writer.AGENT, 8192, Removed.LEASE, "node"),
    Family("lost/", desired.LostMark, Writer.LEADER, 2048, Removed.MARK, "node/incarnation"),
    Family("appeals/", observed.Appeal, Writer.APPELLANT, 1024, Removed.MARK, "node/incarnation"),
    Family("cordons/", desired.Cordon, Writer.LEADER, 16 * 1024, Removed.NEVER, "node"),
    Family("pardons/", desired.Pardon, Writer.LEADER, 16 * 1024, Removed.TAKEN_OVER, "node"),
    Family("gpus/", observed.GpuReport, Writer.AGENT, 64 * 1024, Removed.NEVER, "node"),
    Family("quarantines/", desired.GpuQuarantine, Writer.LEADER, 4096, Removed.BOOT, "node/gpu"),
    Family(CLAIMS, desired.Claims, Writer.LEADER, 1024, Removed.NEVER),
    Family(TIME, desired.ClusterTime, Writer.LEADER, 32 * 1024, Removed.NEVER),
    Family(PAUSE, pause.Pause, Writer.LEADER, 8192, Removed.NEVER),
    Family("jobs/", spec.JobRecord, Writer.LEADER, 137 * 1024, Removed.JOB, "job"),
    Family("intents/", spec.JobIntent, Writer.LEADER, 8192, Removed.JOB, "job"),
    Family("deleted/", desired.DeletedJob, Writer.LEADER, 1024, Removed.NAME, "job"),
    Family("switches/", desired.JobSwitch, Writer.LEADER, 64 * 1024, Removed.JOB, "job"),
    Family("plans/", desired.Plan, Writer.LEADER, 256 * 1024, Removed.PLAN, "job/plan"),
    Family("specs/", desired.ClusterSpec, Writer.LEADER, 128 * 1024, Removed.ADDRESSES, "job/plan"),
    Family(
        "assignments/", desired.Assignment, Writer.LEADER, 64 * 1024, Removed.PLAN, "node/job/plan/member"
    ),
    Family("spares/", desired.Spare, Writer.LEADER, 64 * 1024, Removed.SPARE, "node/job"),
    Family("prepared/", observed.Prepared, Writer.AGENT, 4096, Removed.PLAN, "job/plan/member"),
    Family("staged/", observed.Staged, Writer.AGENT, 4096, Removed.PLAN, "job/plan/node"),
    Family(
        "attempts/", observed.AttemptReport, Writer.AGENT, 64 * 1024, Removed.ATTEMPT, "job/member/attempt"
    ),
    Family("commits/", checkpoint.CommitRecord, Writer.BOTH, 16 * 1024, Removed.FILES, "job/checkpoint"),
    Family("heads/", checkpoint.CommitHead, Writer.BOTH, 1024, Removed.FRESH, "job"),
    Family("incidents/", incident.Incident, Writer.LEADER, 128 * 1024, Removed.OLD, "job/incident"),
    Family("goodput/", goodput.Goodput, Writer.LEADER, 8192, Removed.JOB, "job"),
    Family("events/", incident.Event, Writer.LEADER, 64 * 1024, Removed.OLD, "serial"),
    Family("notified/", incident.Notified, Writer.LEADER, 1024, Removed.NEVER, "target"),
    Family("pools/", PoolRecord, Writer.LEADER, 8192, Removed.REVOKED, "pool"),
    Family(CODE, code.ShippedCode, Writer.LEADER, 1024, Removed.UNUSED, "digest"),
    Family(f"{BULK}code/", code.CodeChunk, Writer.LEADER, 600 * 1024, Removed.UNUSED, "digest/chunk"),
)


def node(node_id: str) -> str:
    """Key of a node's present incarnation."""
    return f"nodes/{node_id}"


def lost(node_id: str, incarnation: str) -> str:
    """The lost mark of an incarnation."""
    return f"lost/{node_id}/{incarnation}"


def appeal(node_id: str, incarnation: str) -> str:
    """The appeal against that mark."""
    return f"appeals/{node_id}/{incarnation}"


def cordon(node_id: str) -> str:
    """The cordon of a node, or what is left of one that was lifted."""
    return f"cordons/{node_id}"


def pardon(node_id: str) -> str:
    """From when on failures count against a node again, as earlier releases write it."""
    return f"pardons/{node_id}"


def gpus(node_id: str) -> str:
    """The GPUs of a node."""
    return f"gpus/{node_id}"


def quarantine(node_id: str, uuid: str) -> str:
    """A GPU that gets no new task."""
    return f"quarantines/{node_id}/{uuid}"


def job_record(name: str) -> str:
    """A submitted job."""
    return f"jobs/{name}"


def intent(name: str) -> str:
    """The state that an operator wants for a job."""
    return f"intents/{name}"


def switch(name: str) -> str:
    """A job's switch."""
    return f"switches/{name}"


def deleted(name: str) -> str:
    """A job that was deleted."""
    return f"deleted/{name}"


def records_of(name: str) -> tuple[str, ...]:
    """The records of which a job has one each."""
    return (job_record(name), intent(name), switch(name), head(name), goodput_of(name))


def lists_of(name: str) -> tuple[str, ...]:
    """Prefixes of all other records of a job, except those that are listed by node."""
    return tuple(f"{each.prefix}{name}/" for each in FAMILIES if each.shape.startswith("job/"))


def plan(name: str, plan_id: str) -> str:
    """A plan."""
    return f"plans/{name}/{plan_id}"


def cluster_spec(name: str, plan_id: str) -> str:
    """The ClusterSpec of a plan."""
    return f"specs/{name}/{plan_id}"


def assignments_of(node_id: str) -> str:
    """Prefix of a node's assignments."""
    return f"assignments/{node_id}/"


def assignment(node_id: str, task: TaskId, plan_id: str) -> str:
    """One task of a plan on a node."""
    return f"assignments/{node_id}/{task.job}/{plan_id}/{task.member}"


def spares_of(node_id: str) -> str:
    """Prefix of the launchers that a node is to keep in reserve."""
    return f"spares/{node_id}/"


def spare(node_id: str, name: str) -> str:
    """A launcher in reserve for a job on a node."""
    return f"spares/{node_id}/{name}"


def prepared(task: TaskId, plan_id: str) -> str:
    """A prepared task of a plan."""
    return f"prepared/{task.job}/{plan_id}/{task.member}"


def staged(name: str, plan_id: str, node_id: str) -> str:
    """A node's staged base of a plan."""
    return f"staged/{name}/{plan_id}/{node_id}"


def attempt(attempt_id: AttemptId) -> str:
    """An attempt's report."""
    task = attempt_id.task
    return f"attempts/{task.job}/{task.member}/{attempt_id.generation:08d}.{attempt_id.number:06d}"


def commits_of(name: str) -> str:
    """Prefix of a job's commit records."""
    return f"commits/{name}/"


def commit(name: str, ref: CheckpointRef) -> str:
    """A commit record; keys sort by generation, then step."""
    return f"commits/{name}/{ref.generation:08d}.{ref.step:012d}"


def head(name: str) -> str:
    """The head of a job's list of commits."""
    return f"heads/{name}"


def incidents_of(name: str) -> str:
    """Prefix of a job's incidents."""
    return f"incidents/{name}/"


def incident_record(name: str, incident_id: str) -> str:
    """One incident."""
    return f"incidents/{name}/{incident_id}"


def goodput_of(name: str) -> str:
    """What a job's time was spent on."""
    return f"goodput/{name}"


def event(serial: int) -> str:
    """One event; keys sort by age."""
    return f"events/{serial:016d}"


def notified(target: str) -> str:
    """How far a target of notifications has been told."""
    return f"notified/{target}"


def pool_record(name: str) -> str:
    """A pool of agents that may have certificates."""
    return f"pools/{name}"


def shipped(digest: str) -> str:
    """The record of an archive of code."""
    return f"{CODE}{digest}"


def chunks_of(digest: str) -> str:
    """Prefix of an archive's chunks."""
    return f"{BULK}code/{digest}/"


def chunk(digest: str, index: int) -> str:
    """One chunk; keys sort by index."""
    return f"{chunks_of(digest)}{index:04d}"


_BY_PREFIX = {family.prefix: family for family in FAMILIES}


def family(key: str) -> Family:
    """The family of a key; raises KeyError for a key that is not ours."""
    end = key.find("/", len(BULK) if key.startswith(BULK) else 0) + 1
    return _BY_PREFIX[key[:end] or key]


def known_family(key: str) -> Family | None:
    """The family of a key; None for one that this release does not know."""
    try:
        return family(key)
    except KeyError:
        return None


def is_well_formed(key: str) -> bool:
    """Whether a key of a known family has the parts of that family's keys."""
    shape, parts = family(key).shape, parse(key)
    if shape == "serial":
        return len(parts) == 1 and parts[0].isascii() and parts[0].isdecimal()
    return len(parts) == len(shape.split("/") if shape else ()) and all(parts)


def subject_of(key: str) -> tuple[str, str]:
    """The job that a well-formed key is about, or the node; as (job, ""), ("", node) or ("", "")."""
    named = dict(zip(family(key).shape.split("/"), parse(key), strict=False))
    job = named.get("job", "")
    return job, "" if job else named.get("node", "")


def parse(key: str) -> tuple[str, ...]:
    """The parts of a key after its family's name."""
    return tuple(key.removeprefix(BULK).split("/")[1:])
