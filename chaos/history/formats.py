"""The files of a run's directory: one dataclass for each kind of line.

All times are milliseconds of this machine's CLOCK_BOOTTIME. A change that a recorder finds by polling has two
times: it happened after the first (the poll before) and not after the second. A checker takes the one that is
kinder to the product.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ETCD = "etcd.jsonl"
TRANSACTIONS = "transactions.jsonl"
PROCESSES = "processes.jsonl"
STEPS = "steps.jsonl"
STORE = "store.jsonl"
LEFT = "left.jsonl"
LEAKS = "leaks.jsonl"
RUN = "run.json"
SECRETS = "secrets.json"
WATCHES = "watch-*.jsonl"

PUT, DELETE, BASE, CUT = "put", "delete", "base", "cut"


@dataclass(frozen=True, slots=True)
class EtcdLine:
    """A key's change, as an independent client of etcd saw it.

    Attributes:
        kind: `put`; `delete`, also by a lease that ran out; `base`: it was there when the recording began, as
            what is older was compacted; `cut`: changes up to this revision cannot be had any more.
        key: without the cluster's prefix.
        value: empty unless it is a put or a base.
        revision: of the change.
        created: the revision that created the key.
        version: how often it was written since; 1 when it was created.
        after_ms: -1 where the change is older than the recording.
    """

    kind: str
    revision: int
    key: str = ""
    value: str = ""
    created: int = 0
    version: int = 0
    lease: int = 0
    after_ms: float = -1.0
    at_ms: float = -1.0


@dataclass(frozen=True, slots=True)
class Compared:
    """One compare of a transaction.

    Attributes:
        target: version, create, mod, value or lease.
        result: =, >, < or !=.
    """

    key: str
    target: str
    result: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction that took effect, from etcd's own log. `by_lease`: a lease ran out or was revoked."""

    revision: int
    compares: tuple[Compared, ...]
    puts: tuple[str, ...]
    deletes: tuple[str, ...]
    by_lease: bool = False


BORN, STATE, KILLED, GONE = "born", "state", "killed", "gone"
RUNS, STOPPED, FROZEN = "runs", "stopped", "frozen"


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """Something happened to a process that carries a launcher's marker, or to a daemon.

    Attributes:
        kind: `born`: it was seen for the first time; `after_ms` is then when the kernel began it; `state`;
            `killed`: SIGKILL is pending; `gone`: every thread of it has ended.
        pid: in the outermost namespace.
        state: runs, stopped (by a signal) or frozen (by its cgroup).
        inner: its pids from the outermost namespace to its own.
    """

    kind: str
    at_ms: float
    after_ms: float
    pid: int
    ticks: int
    state: str = ""
    node: str = ""
    marker: str = ""
    parent: int = 0
    inner: tuple[int, ...] = ()
    command: str = ""


@dataclass(frozen=True, slots=True)
class StepLine:
    """One line of a program's step log. The program writes it before other processes can see its effect.

    Attributes:
        kind: start, restored, step, saved, accepted, seen or end.
        step: of `start`, the step that it was told; of `restored`, the step in the data, -1 without any.
        caller: the attempt that an `accepted` call came from.
        gpus: of `start`: those that it sees, comma-separated.
        chain: the generations that the weights went through.
    """

    at_ms: float
    kind: str
    attempt: str
    generation: int
    task: str = ""
    pid: int = 0
    step: int = -1
    caller: str = ""
    caller_generation: int = -1
    gpus: str | None = None
    chain: tuple[int, ...] = ()


WHOLE, BROKEN, ABSENT = "whole", "broken", "absent"


@dataclass(frozen=True, slots=True)
class StoreLine:
    """A change that a poll of the checkpoint store found: a directory is whole, broken or absent.

    `manifest`: crc32c of its manifest, 8 hex digits. `size`: bytes of the files that it names.
    """

    after_ms: float
    at_ms: float
    path: str
    found: str
    why: str = ""
    manifest: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True)
class Watched:
    """An event that a client of the product's API was sent; `serial` numbers the events of the cluster."""

    at_ms: float
    serial: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Left:
    """Something that the job has left behind when everything of it should have been gone."""

    at_ms: float
    kind: str
    what: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class Leak:
    """A known secret was found where nobody should find one. `which` names the secret and is not it."""

    which: str
    where: str


@dataclass(frozen=True, slots=True)
class Expects:
    """The product's expected reaction to an injected fault.

    Attributes:
        incidents: none, one or any.
        causes, scopes: of the incidents; empty: whatever they are.
        ends: phases that the job may end in.
        hides_steps: while it is in force, the job makes steps that the product cannot see.
    """

    incidents: str = "any"
    causes: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    hides_steps: bool = False


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """A fault that was injected.

    Attributes:
        damages: prefixes of stored paths that it broke on purpose.
        program_faults: so many of the program's own faults at most come of it.
    """

    name: str
    family: str = ""
    target: str = ""
    begin_ms: float = 0.0
    in_force_ms: float = -1.0
    heal_ms: float = -1.0
    expects: Expects = field(default_factory=Expects)
    damages: tuple[str, ...] = ()
    program_faults: int = 0


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The fields of `run.json` that the checkers use.

    Attributes:
        bound_ms: how long converging may take after the last heal.
        patience: tolerances of time are so many times larger: the machine is busy with other work.
    """

    id: str = ""
    job: str = ""
    job_uuid: str = ""
    faults: tuple[FaultRecord, ...] = ()
    began_ms: float = -1.0
    healthy_ms: float = -1.0
    healed_ms: float = -1.0
    converged_ms: float = -1.0
    bound_ms: float = -1.0
    ended_ms: float = -1.0
    patience: float = 1.0
