"""Slurm: each agent of a pool is one element of a job array, on one node.

Not one allocation of many nodes: that one begins only when all of them are free at once, cannot grow, and
gets no other machine for one that fails (decision 0089). The job's name says the pool, its comment that it is
leaving, and its script holds all options of the pool. So Slurm's queue is the only record.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from supervisor.adapters.neutral import one_line
from supervisor.contract.errors import NotFound, Refused, Unreachable, UserError
from supervisor.engines.engine import Pool, PoolAgent, State, model

PREFIX = "tfsup:"
"""The beginning of the names of our jobs."""
LEAVING = "leaving"
PATIENCE_S = 60
FIELDS = ("id", "word", "place", "ends", "limit", "comment", "directory", "name", "reason")
FORMAT = "%i|%T|%N|%e|%l|%k|%Z|%j|%r"
"""The reason is last: it is free text."""
_WAITING = frozenset(
    {
        "PENDING",
        "CONFIGURING",
        "REQUEUED",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "RESV_DEL_HOLD",
        "SPECIAL_EXIT",
        "SUSPENDED",
        "STOPPED",
    }
)
_RUNNING = frozenset({"RUNNING", "RESIZING", "SIGNALING", "STAGE_OUT"})
_NEVER = frozenset({"UNLIMITED", "NOT_SET"})
_LEAVING = frozenset({"COMPLETING"})
_RACK = """\
above=${SLURM_TOPOLOGY_ADDR%"$SLURMD_NODENAME"}
above=${above%.}
rack=${above##*.}"""
"""The lowest switch above the node. Where Slurm knows its network, an address has the names of all switches
and of the node, with dots between."""

_RACK_LABEL = ' ${rack:+--label "rack=$rack"}'
_KEPT = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "TZ",
    "LD_LIBRARY_PATH",
    "HADOOP_CONF_DIR",
    "HADOOP_HOME",
    "JAVA_HOME",
    "SLURM_CONF",
    "SLURM_CLUSTERS",
    "SBATCH_ACCOUNT",
    "SBATCH_QOS",
    "SBATCH_RESERVATION",
)
"""The environment that Slurm is given, which keeps it on its disks and gives it to agents. Nothing else goes
there: users have secrets in theirs."""


class Slurm:
    """Slurm by its commands, as the user who runs this."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = {
            name: value for name, value in environment.items() if name in _KEPT or name.startswith("LC_")
        }

    def start(self, pool: Pool, agents: int) -> list[str]:
        """Submit an array; the ids are those of its elements."""
        return self._submit(script_of(pool), agents)

    def add(self, name: str, agents: int) -> None:
        """Submit another array with the script of the newest agent that is there."""
        there = self.agents(name)
        if not there:
            raise NotFound(f"Slurm knows no job of pool {name} any more")
        # Slurm keeps the script of an array under the number of the array.
        array = model(there).id.partition("_")[0]
        self._submit(self._ask("scontrol", "write", "batch_script", array, "-"), agents)

    def agents(self, name: str = "") -> list[PoolAgent]:
        """Read this user's queue. Slurm shows jobs that have ended for MinJobAge, 5 minutes unless set."""
        # Of this user alone: a job's name and comment are what its owner wrote, line ends included.
        only = (f"--user={os.geteuid()}", *((f"--name={PREFIX}{name}",) if name else ()))
        told = self._ask("squeue", "--noheader", "--array", "--states=all", f"--format={FORMAT}", *only)
        found = [each for line in told.splitlines() if (each := agent_of(line)) is not None]
        return sorted(found, key=lambda each: [int(part) for part in each.id.split("_")])

    def notify(self, ids: Sequence[str]) -> None:
        """Send SIGUSR2 to the batch scripts, which are the agents' keepers, and note it in the comments."""
        if not ids:
            return
        self._ask("scancel", "--batch", "--signal=USR2", *ids, may_be_over=True)
        for each in ids:
            # So that `pool scale` does not count it, and nothing queues it again.
            change = (f"JobId={each}", "Requeue=0", f"Comment={LEAVING}")
            self._ask("scontrol", "update", *change, may_be_over=True)

    def cancel(self, ids: Sequence[str], *, waiting_only: bool = False) -> None:
        """Run scancel: SIGTERM, and SIGKILL after KillWait."""
        if ids:
            only = ("--state=PENDING",) if waiting_only else ()
            self._ask("scancel", *only, *ids, may_be_over=True)

    def origin(self) -> str:
        """The cluster's name in slurm.conf, and this user's number."""
        told = self._ask("scontrol", "show", "config")
        found = re.search(r"^ClusterName\s*=\s*(\S+)", told, re.MULTILINE)
        if found is None:
            raise Refused("`scontrol show config` tells no ClusterName")
        return f"slurm:{found[1]}:{os.geteuid()}"

    def forget(self, name: str) -> None:
        """Do nothing: Slurm itself removes what it has of a job."""
        del name

    def _submit(self, script: str, agents: int) -> list[str]:
        told = self._ask("sbatch", "--parsable", f"--array=0-{agents - 1}", script=script)
        array = told.strip().partition(";")[0]
        if not array.isdigit():
            raise Refused(f"sbatch says {one_line(told[:200])!r}, which is no number of a job")
        return [f"{array}_{index}" for index in range(agents)]

    def _ask(self, program: str, *arguments: str, script: str = "", may_be_over: bool = False) -> str:
        """The output of a command of Slurm. `may_be_over`: the jobs that it names may have ended."""
        found = shutil.which(program, path=self._environment.get("PATH"))
        if found is None:
            raise NotFound(
                f"there is no {program} on PATH: run this where Slurm's commands are, such as a login node"
            )
        try:
            done = subprocess.run(
                [found, *arguments],
                input=script,
                env=self._environment,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=PATIENCE_S,
            )
        except subprocess.TimeoutExpired as error:
            raise Unreachable(f"{program} has not answered within {PATIENCE_S} s") from error
        if done.returncode == 0:
            return done.stdout
        lines = (line.removeprefix(f"{program}: error: ").strip() for line in done.stderr.splitlines())
        said = one_line("; ".join(filter(None, lines))[-500:]) or f"exit code {done.returncode}"
        if "configuration source" in said:
            raise NotFound(
                f"{program} finds no configuration of Slurm: run this on a login node, or set SLURM_CONF "
                f"to its slurm.conf (it said: {said})"
            )
        if "nable to contact" in said or "onnection refused" in said:
            raise Unreachable(f"{program}: {said}")
        if may_be_over and "ermission" not in said:
            return done.stdout
        raise Refused(f"{program}: {said}")


def agent_of(line: str) -> PoolAgent | None:
    """An agent from one line of squeue; None for a job that is no pool's."""
    parts = line.strip().split("|", len(FIELDS) - 1)
    row = dict(zip(FIELDS, parts, strict=False))
    name = row.get("name", "")
    if len(parts) != len(FIELDS) or not name.startswith(PREFIX) or not row["id"].replace("_", "").isdigit():
        return None
    pool, ident = name.removeprefix(PREFIX), row["id"]
    state = _state(row["word"], row["comment"])
    # Of one that waits again Slurm shows where it was. One that was cancelled before it began was nowhere.
    place = row["place"] if state is not State.WAITING else ""
    return PoolAgent(
        id=ident,
        pool=pool,
        state=state,
        word=row["word"],
        place=place,
        reason=row["reason"] if row["reason"] != "None" else "",
        ends=row["ends"] if state in (State.RUNNING, State.LEAVING) and row["limit"] not in _NEVER else "",
        log=f"{row['directory']}/{log_of(pool, ident)}" if place else "",
    )


def _state(word: str, comment: str) -> State:
    if word in _WAITING:
        return State.WAITING
    if word in _LEAVING or (word in _RUNNING and comment == LEAVING):
        return State.LEAVING
    return State.RUNNING if word in _RUNNING else State.ENDED


def log_of(pool: str, ident: str) -> str:
    """The name of an agent's log in the working directory of its job."""
    return f"tfsup-{pool}-{ident}.log"


def script_of(pool: Pool) -> str:
    """The batch script of one agent, with all options of the pool. It holds names of files, and no secret."""
    options = [
        f"--job-name={PREFIX}{pool.name}",
        f"--chdir={_quoted(pool.directory)}",
        f"--output={log_of(pool.name, '%A_%a')}",
        "--open-mode=append",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={pool.cpus}",
        f"--signal=B:USR1@{pool.notice_s}",
        # A machine that fails is replaced. The end of the time limit is the keeper's own affair (`--then`).
        "--requeue",
        *_given("--mem", f"{pool.memory_mib}M" if pool.memory_mib else ""),
        *_given("--gres", f"gpu:{pool.gpus}" if pool.gpus else ""),
        *_given("--partition", pool.queue),
        *_given("--constraint", pool.constraint),
        *_given("--time", pool.time),
    ]
    then = ' --then "scontrol requeue $SLURM_JOB_ID"' if pool.requeue else ""
    ident = "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
    directives = "\n".join(f"#SBATCH {each}" for each in options)
    return f"""#!/bin/sh
{directives}
{_RACK}
exec {shlex.join(pool.command)} --place "$SLURMD_NODENAME" --id "{ident}"{_RACK_LABEL}{then}
"""


def _given(option: str, value: str) -> Iterable[str]:
    return (f"{option}={value}",) if value else ()


def _quoted(path: str) -> str:
    """A path in an option of a script, which Slurm reads without a shell, and in a line of `FORMAT`."""
    if not path.isprintable() or set(path) & set('"\\%|'):
        raise UserError(
            f"{path!r}: choose a directory without quotes, backslashes, '%', '|' and control characters"
        )
    return f'"{path}"'
