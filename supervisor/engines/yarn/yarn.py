"""YARN: each agent of a pool is an application of its own, with a small ApplicationMaster and one container.

The agent is not in the ApplicationMaster's container: a queue gives those 10 % of its memory unless set. The
application's name says the pool, its tags where the pool's files are staged. Its lifetime is set when it is
told to leave, and so says that it is leaving. The ResourceManager is the only record (decision 0091).
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from supervisor.adapters.neutral import one_line
from supervisor.contract.errors import NotFound, UserError
from supervisor.engines.engine import Pool, PoolAgent, State, model
from supervisor.engines.yarn.container import ARCHIVE
from supervisor.engines.yarn.java import HERE, PATIENCE_S, Bridge

PREFIX = "tfsup:"
"""The beginning of the names of our applications."""
LATE_S = 60
"""How much longer than its notice an agent that is to leave may take (`Client.java`)."""
SHOWN_S = 300
"""How long an agent that has ended is shown. YARN itself keeps the last 1000 applications."""
_KEPT = ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH", "HADOOP_CONF_DIR", "HADOOP_HOME", "JAVA_HOME")
"""The environment that agents get: users have secrets in theirs."""
_PLAIN = re.compile(r"[A-Za-z0-9/._+-]+")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_ENDED = frozenset({"FINISHED", "FAILED", "KILLED"})
_MOST_REASON = 400
_EXPIRED = "InvalidToken"
"""HDFS raises this where a token is over: after that an agent cannot be moved."""
_OURS = ("tfsup-keeper: ", "tfsup-bootstrap: ", "tfsup-container: ")


class Yarn:
    """YARN by Hadoop's own client, as the user who runs this."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._bridge = Bridge(environment)

    def start(self, pool: Pool, agents: int) -> list[str]:
        """Submit an application for each agent; all are killed again if one is refused."""
        order = json.dumps(order_of(pool, self._environment), sort_keys=True)
        with tempfile.TemporaryDirectory() as directory:
            written = Path(directory) / "order.json"
            written.write_text(order)
            files = {
                "master.jar": self._bridge.jar(),
                "container.py": HERE / "container.py",
                "order.json": written,
            }
            named = {name: str(path) for name, path in files.items()} | (
                {ARCHIVE: pool.archive} if pool.archive else {}
            )
            return self._submit(agents, pool=pool.name, files=named)

    def add(self, name: str, agents: int) -> None:
        """Submit more applications with the files of the newest that is there."""
        there = self.agents(name)
        if not there:
            raise NotFound(f"YARN knows no application of pool {name} any more")
        self._submit(agents, like=model(there).id)

    def agents(self, name: str = "") -> list[PoolAgent]:
        """Read this user's applications of our type."""
        rows = cast("list[dict[str, object]]", self._bridge.ask("list", pool=name))
        found = [agent_of(row) for row in rows if _is_shown(row, time.time())]
        return sorted(
            (each for each in found if not name or each.pool == name),
            key=lambda each: [int(part) for part in each.id.split("_")[1:]],
        )

    def notify(self, ids: Sequence[str]) -> None:
        """Have YARN send SIGQUIT to the containers, and end the applications that stay."""
        if ids:
            self._bridge.ask("notify", within_s=PATIENCE_S + len(ids), ids=list(ids))

    def cancel(self, ids: Sequence[str], *, waiting_only: bool = False) -> None:
        """Have YARN send SIGTERM to the containers, and kill applications that have none."""
        if ids:
            self._bridge.ask(
                "cancel", within_s=PATIENCE_S + len(ids), ids=list(ids), waiting_only=waiting_only
            )

    def forget(self, name: str) -> None:
        """Remove the pool's files in `fs.defaultFS`."""
        self._bridge.ask("tidy", pool=name)

    def origin(self) -> str:
        """The ResourceManagers, and this user there."""
        return f"yarn:{self._bridge.ask('origin')}"

    def close(self) -> None:
        """End the Java process."""
        self._bridge.close()

    def _submit(self, agents: int, **which: object) -> list[str]:
        return cast(
            "list[str]", self._bridge.ask("submit", within_s=PATIENCE_S + 2 * agents, agents=agents, **which)
        )


def order_of(pool: Pool, environment: Mapping[str, str]) -> dict[str, object]:
    """The order for an ApplicationMaster and an agent's container: names of files, and no secret.

    Raises UserError for what YARN does not have.
    """
    if pool.time or pool.requeue:
        raise UserError("--time and --requeue: applications of YARN run until they are ended; leave them out")
    if not pool.memory_mib:
        raise UserError("--memory is needed: YARN ends a container that takes more than it asked for")
    if pool.gpus and not pool.gpus.isdigit():
        raise UserError(f"--gpus {pool.gpus}: YARN knows GPUs by their number alone; leave the type out")
    if pool.constraint and not _LABEL.fullmatch(pool.constraint):
        raise UserError(
            f"--constraint {pool.constraint}: write one node label; `yarn cluster --list-node-labels`"
        )
    if not _PLAIN.fullmatch(pool.command[0]):
        raise UserError(f"--python {pool.command[0]!r}: choose a path of letters, digits and /._+-")
    kept = {name: value for name, value in environment.items() if name in _KEPT or name.startswith("LC_")}
    return {
        "pool": pool.name,
        "python": pool.command[0],
        "command": [ARCHIVE if pool.archive and word == pool.archive else word for word in pool.command],
        "environment": kept,
        "cpus": pool.cpus,
        "memory_mib": pool.memory_mib,
        "gpus": int(pool.gpus or 0),
        "queue": pool.queue,
        "constraint": pool.constraint,
        "notice_s": pool.notice_s,
    }


def agent_of(row: Mapping[str, object]) -> PoolAgent:
    """An application as YARN tells it."""
    ident, word = str(row["id"]), str(row["state"])
    place = str(row.get("host", ""))
    state = _state(row, place)
    if word == "FINISHED":
        word = str(row["final"])
    left_s = int(str(row["left_s"]))
    ends = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + left_s)) if left_s >= 0 else ""
    return PoolAgent(
        id=ident,
        pool=str(row["name"]).removeprefix(PREFIX),
        state=state,
        # An application runs as soon as its ApplicationMaster does.
        word="WAITING" if state is State.WAITING and word == "RUNNING" else word,
        place=place,
        reason=_reason(row, state),
        ends=ends if state in (State.RUNNING, State.LEAVING) else "",
        log=f"`yarn logs -applicationId {ident}`" if state is not State.WAITING else "",
    )


def _state(row: Mapping[str, object], place: str) -> State:
    if row["state"] in _ENDED:
        return State.ENDED
    if 0 <= int(str(row["left_s"])) <= int(str(row["notice_s"])) + LATE_S:
        # Its container may be gone already, and its ApplicationMaster about to end.
        return State.LEAVING
    return State.RUNNING if place else State.WAITING


def _reason(row: Mapping[str, object], state: State) -> str:
    lines = str(row["diagnostics"]).strip().splitlines() or [""]
    told = one_line(" ".join(lines).partition(" Details : ")[0])[:_MOST_REASON]
    # YARN adds the end of the container's output.
    ours = [one_line(each.partition(": ")[2]) for each in lines if each.startswith(_OURS)]
    if state is State.ENDED and ours:
        return f"{one_line(lines[0]).partition(': [')[0]}: {ours[-1]}"
    if state is State.ENDED and _EXPIRED in str(row["diagnostics"]):
        again = "`pool scale` queues another, `pool up` where none is left"
        return f"the token by which YARN fetches its files is over; {again}: {told}"
    if state is State.WAITING and "queue_used" in row:
        used = float(str(row["queue_used"]))
        return f"its container waits for room in queue {row['queue']}, of which {used:.0f} % is used"
    if state is State.WAITING:
        return told or "its container waits for room"
    return told if state is not State.RUNNING else ""


def _is_shown(row: Mapping[str, object], now_s: float) -> bool:
    finished_s = int(str(row["finished_ms"])) / 1000
    return not finished_s or now_s - finished_s < SHOWN_S
