"""The boundary to a resource manager, an *engine*, and a pool of agents as it sees one.

An engine runs one command for each agent, each as a unit of its own: a lost unit takes no other with it, and
a pool starts with as many agents as there is room for. The engine's own queue is the only record of a pool,
so that a client that dies leaves nothing behind that only it knew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class State(Enum):
    """The life of an agent in its engine's words. Those that are ENDED hold no resources."""

    WAITING = "waiting"
    RUNNING = "running"
    LEAVING = "leaving"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The agents of a pool, all alike.

    Attributes:
        command: the program of one agent. The engine adds `--place` and `--id`, `--label rack=R` where it
            knows one, and as `--then` the command that queues it again.
        directory: the working directory; logs go there.
        archive: the file with the agents' installation, as a word of the command, which checks it. An engine
            that brings files to machines by its own means puts its place there instead; empty: none.
        gpus: `N` or `TYPE:N`; empty: none.
        memory_mib: 0: the engine's default.
        queue, time: empty: the engine's default.
        constraint: what machines must have, in the engine's words; empty: nothing.
        notice_s: how long before its time limit an agent is told.
        requeue: after its time limit an agent is queued again.
        token: the file by which its agents get certificates, as a word of the command. An engine that brings
            files to machines puts its place there instead, and lets no other user read it; empty: none.
    """

    name: str
    command: tuple[str, ...]
    directory: str
    archive: str = ""
    cpus: int = 1
    memory_mib: int = 0
    gpus: str = ""
    queue: str = ""
    constraint: str = ""
    time: str = ""
    notice_s: int = 60
    requeue: bool = False
    token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAgent:
    """One agent in its engine.

    Attributes:
        id: the engine's name of it.
        word: its state in the engine's own words.
        place: the engine's name of its machine; empty while it waits.
        reason: why it waits, or how it ended.
        ends: when its time is over, for people; empty: never, or unknown.
        log: the file with its output.
    """

    id: str
    pool: str
    state: State
    word: str
    place: str = ""
    reason: str = ""
    ends: str = ""
    log: str = ""


def model(agents: Sequence[PoolAgent]) -> PoolAgent:
    """The agent of a pool that more are to be like: the newest that stays, else the newest.

    Those that have ended, or leave, may be of a `pool up` that gave way to this pool, with other options.
    """
    staying = [each for each in agents if each.state in (State.RUNNING, State.WAITING)]
    return (staying or agents)[-1]


class Engine(Protocol):
    """A resource manager. Every method raises NotFound where it is not installed, Unreachable where it does
    not answer, and Refused with its own reason.
    """

    def start(self, pool: Pool, agents: int) -> list[str]:
        """Queue the first agents of a pool, all of them or none, and return their ids."""

    def add(self, name: str, agents: int) -> None:
        """Queue more agents like those that the pool has (`model`): all of them, or none."""

    def agents(self, name: str = "") -> list[PoolAgent]:
        """This caller's agents of a pool, or of all pools, the oldest first.

        Those that ended are shown for a while.
        """

    def notify(self, ids: Sequence[str]) -> None:
        """Tell agents that run to leave: they move their tasks away first, if there is room elsewhere."""

    def cancel(self, ids: Sequence[str], *, waiting_only: bool = False) -> None:
        """End agents at once; with `waiting_only` those alone that have not begun."""

    def origin(self) -> str:
        """The name of this queue, which no other has: of this caller in this resource manager.

        Agents have it as the label `origin`, and the record of a pool's token has it.
        """

    def forget(self, name: str) -> None:
        """Remove what the engine keeps of a pool whose agents have all ended."""
