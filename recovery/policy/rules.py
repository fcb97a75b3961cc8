"""The action for each cause of failure: the table of docs/restart-policy.md, which a job may override."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from supervisor.contract.ids import TaskId
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import JobSpec, Rule


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table, for code and for people.

    Attributes:
        seen_by: the way in which the cause is detected.
        rule: the action, unless the job overrides it.
        why: the reason for an unusual action; empty for a usual one.
        fixed: a job cannot override it.
    """

    seen_by: str
    rule: Rule
    why: str = ""
    fixed: bool = False


TABLE = MappingProxyType(
    {
        Cause.SUBMITTED: Row("a job is submitted or started", Rule.RESTART, "no failure", fixed=True),
        Cause.OPERATOR: Row("an operator asks for a restart", Rule.RESTART, "no failure", fixed=True),
        Cause.PROGRAM_EXIT: Row("exit code other than 0", Rule.RESTART),
        Cause.PROGRAM_SIGNAL: Row(
            "a signal that a program's fault raises (SIGSEGV, SIGABRT), or XID 11, 13, 25, 31 or 69",
            Rule.RESTART,
        ),
        Cause.EXITED_EARLY: Row("exit code 0 of a server while training goes on", Rule.RESTART),
        Cause.KILLED: Row("SIGKILL, SIGTERM, SIGINT, SIGHUP or SIGQUIT from outside", Rule.RESTART),
        Cause.LAUNCHER_LOST: Row(
            "the launcher is gone or silent", Rule.RESTART, "again and again within a minute it ends the job"
        ),
        Cause.START_FAILED: Row(
            "the attempt could not be started or prepared, or fills its node's disk (`job_disk`)",
            Rule.RESTART,
            "elsewhere when it returns on the same node",
        ),
        Cause.DEADLINE: Row("the launcher's dead-man's switch", Rule.RESTART),
        Cause.NODE_LOST: Row(
            "rule 3: a lost mark and D",
            Rule.ELSEWHERE,
            "its addresses are gone: a new generation, unless its tasks can move alone",
            fixed=True,
        ),
        Cause.BAD_CHECKPOINT: Row(
            "verification of the base", Rule.RESTART, "from the checkpoint before it", fixed=True
        ),
        Cause.OOM: Row("the kernel's OOM killer", Rule.RESTART),
        Cause.HANG: Row("no step for too long", Rule.RESTART, "its stack is kept"),
        Cause.NAN_LOSS: Row(
            "TensorFlow's NaN error in the log, or a loss printed as NaN where the job asks",
            Rule.FAIL,
            "the same data and weights give the same loss",
        ),
        Cause.USER_ERROR: Row(
            "ImportError, SyntaxError or a flag error before the job's first step; ValueError and the like, "
            "twice the same; shards of a save on several nodes",
            Rule.FAIL,
            "a restart repeats it; after a step it is `program_exit`",
        ),
        Cause.MISSING_PROGRAM: Row(
            "the command cannot be run, before the job's first step",
            Rule.FAIL,
            "a restart repeats it; after a step it is `start_failed`",
        ),
        Cause.PORT_CLASH: Row(
            "TensorFlow cannot start its server, or EADDRINUSE",
            Rule.RESTART,
            "always a new generation, which has other ports",
        ),
        Cause.PEER_LOST: Row(
            "UnavailableError or AbortedError in the log",
            Rule.RESTART,
            "a consequence: the root is waited for first",
        ),
        Cause.DATA_LOSS: Row(
            "DataLossError in the log",
            Rule.RESTART,
            "before the first step of a generation it accuses the base",
        ),
        Cause.OUT_OF_RANGE: Row("OutOfRangeError in the log", Rule.RESTART),
        Cause.RESOURCE_EXHAUSTED: Row("ResourceExhaustedError or MemoryError in the log", Rule.RESTART),
        Cause.NEVER_READY: Row("limits.startup has passed", Rule.RESTART),
        Cause.WALL_TIME: Row("limits.wall_time has passed", Rule.FAIL, fixed=True),
        Cause.GPU: Row(
            "NVML, the kernel's log, or a probe inside the container",
            Rule.RESTART,
            "on other GPUs, if the fault is the GPU's: it is quarantined",
        ),
        Cause.DRAINED: Row(
            "its node is drained, by an operator or for a GPU's fault",
            Rule.ELSEWHERE,
            "no failure: it runs on until there is room elsewhere",
            fixed=True,
        ),
        Cause.RESIZED: Row(
            "another size of the job is asked for, or there is room for more tasks of an elastic role",
            Rule.RESTART,
            "no failure: workers join and leave, or all run on until a checkpoint is committed",
            fixed=True,
        ),
        Cause.STORE_LOST: Row(
            "an error shortly after the task's mounted directory gave one, or a hang as it waits for it",
            Rule.RESTART,
            "the store failed, not the program; the next start waits for it",
        ),
        Cause.BASE_MISSED: Row(
            "the first step of a mounted job is below its base's",
            Rule.RESTART,
            "it found no checkpoint and began from scratch; what it saved is set aside",
        ),
        Cause.LEFT_LOCK: Row(
            "the lockfile of `tf.data`'s `cache()`, at the first failure after another restart",
            Rule.RESTART,
            "a killed attempt left it; if it is still there then, that is `program_exit`",
        ),
    }
)


def rule_of(
    spec: JobSpec, cause: Cause, task: TaskId | None = None, saver: TaskId | None = None, code: int = 0
) -> Rule:
    """The action for this cause in this job, for `task` if one is given; `saver` as for `scope_of`.

    `code`: the exit code, which a job may let restart all the same. The failure of the task that saves is
    never ignored: its end would count as the end of the training.
    """
    row = TABLE[cause]
    rule = row.rule if row.fixed else spec.restart.rules.get(cause.value, row.rule)
    if rule is Rule.FAIL and cause is Cause.PROGRAM_EXIT and 0 < spec.restart.retry_from <= code:
        return Rule.RESTART
    return row.rule if rule is Rule.IGNORE and task == (saver or spec.saver) else rule


def objection(cause: str) -> str:
    """The reason why `restart.rules` cannot override this cause; empty if it can."""
    known = {each.value: row for each, row in TABLE.items()}
    row = known.get(cause)
    if row is None:
        return f"unknown cause {cause!r}; known: {', '.join(sorted(known))}"
    return f"the rule of {cause} cannot be changed" if row.fixed else ""
