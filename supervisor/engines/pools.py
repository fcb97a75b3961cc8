"""Pools on any engine: start, resize and end one. All state is the engine's (`engines.engine`)."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from supervisor.contract.errors import Conflict, NotFound, Unreachable, UserError
from supervisor.contract.pool.record import check_pool
from supervisor.engines.engine import Engine, Pool, PoolAgent, State

MOST_AGENTS = 1000
LOOK_S = 0.5
KILL_S = 60
"""How long an engine may take to end what it was told to end. Slurm's KillWait is 30 s unless set."""

CHANGES = 20
"""Most changes that `scale` makes to a pool that others scale, too."""

_TAIL_BYTES, _MOST_LINE = 4 << 10, 500


def start(engine: Engine, pool: Pool, agents: int) -> list[PoolAgent]:
    """Start a pool, and return its agents. Raises Conflict if one of this name is there."""
    check_free(engine, pool.name, agents)
    ours = engine.start(pool, agents)
    found = live(engine, pool.name)
    if found and found[0].id not in ours:
        # Another client has started a pool of this name at the same moment. The later one gives way.
        engine.cancel(ours)
        raise _taken(pool.name, len(found) - len(ours))
    return found


def check_free(engine: Engine, name: str, agents: int) -> None:
    """Raise Conflict if there is a pool of this name, UserError for a name or number that cannot be."""
    check_pool(name)
    _check_number(agents)
    if there := live(engine, name):
        raise _taken(name, len(there))


def scale(engine: Engine, name: str, agents: int) -> str:
    """Give a pool so many agents, and return what was done. Raises NotFound for a pool without any.

    Other clients may scale it at the same moment: this one looks again after each change, until the pool has
    its number. Of too many those go that came last, whoever queued them.
    """
    check_pool(name)
    _check_number(agents)
    done: list[str] = []
    for turn in range(CHANGES):
        if turn > 1:
            # An engine may take a while to show what it was told. Two clients that want different numbers,
            # and look equally often, would undo each other's changes for ever.
            time.sleep(LOOK_S * turn * random.uniform(0.2, 1))
        all_there = live(engine, name)
        there = _staying(all_there)
        if not there:
            raise unknown(name)
        if not done:
            # Slurm loses a signal to an agent that has just begun, so those that leave are told again.
            engine.notify(_ids(all_there, State.LEAVING))
        if len(there) == agents:
            return "; ".join(dict.fromkeys(done)) or f"it has {agents} already"
        done.append(_change(engine, name, there, agents))
    raise Conflict(f"pool {name} is scaled by other clients, too; see `supervisorctl pool status {name}`")


def _change(engine: Engine, name: str, there: list[PoolAgent], agents: int) -> str:
    """Queue the agents that are missing, or let go of those that are too many; what was done."""
    if (more := agents - len(there)) > 0:
        engine.add(name, more)
        return f"{more} more queued"
    # Those that wait go first, then those that came last.
    there.sort(key=lambda each: each.state is State.WAITING)
    waiting, running = _let_go(engine, there[agents:])
    return f"{waiting} that waited are cancelled; {running} leave, their tasks first"


def end(engine: Engine, name: str, within_s: float, say: Callable[[str], None] = lambda _: None) -> int:
    """End a pool, and return how many agents it had once the engine has all of them back.

    Each gets `within_s` to move its tasks away; with 0 it is ended at once. They go also if this process
    ends meanwhile. Raises Unreachable if the engine does not take all of them back.
    """
    check_pool(name)
    there = live(engine, name)
    many, began = len(there), time.monotonic()
    told: set[str] = set()
    ended: set[str] = set()
    while there:
        spent_s = time.monotonic() - began
        # One that begins between the look and this is told after the next look; one that the engine has
        # queued again is cancelled again.
        engine.cancel(_ids(there, State.WAITING), waiting_only=True)
        if spent_s >= within_s:
            engine.cancel(_new(ended, [each.id for each in there]))
        else:
            engine.notify(_new(told, [*_ids(there, State.RUNNING), *_ids(there, State.LEAVING)]))
        if spent_s > within_s + KILL_S:
            left = ", ".join(f"{each.id} ({each.word})" for each in there)
            raise Unreachable(f"pool {name} was ended, and the engine still holds {left}")
        time.sleep(LOOK_S)
        there = live(engine, name)
        say(f"{len(there)} of {many} agents are left")
    return many


def live(engine: Engine, name: str = "") -> list[PoolAgent]:
    """The agents that hold resources, or wait for them; the oldest first."""
    return [each for each in engine.agents(name) if each.state is not State.ENDED]


def last_words(agent: PoolAgent) -> str:
    """The last line of the log of an agent that has failed. Empty where it is not to be read from here."""
    try:
        with Path(agent.log).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return ""
    last = next((each.strip() for each in reversed(lines) if each.strip()), "")
    return last[-_MOST_LINE:]


def _staying(agents: Sequence[PoolAgent]) -> list[PoolAgent]:
    return [each for each in agents if each.state is not State.LEAVING]


def _let_go(engine: Engine, agents: Sequence[PoolAgent]) -> tuple[int, int]:
    """End those that wait, and tell the others to leave; how many of each."""
    waiting, running = _ids(agents, State.WAITING), _ids(agents, State.RUNNING)
    engine.cancel(waiting, waiting_only=True)
    engine.notify(running)
    return len(waiting), len(running)


def _ids(agents: Sequence[PoolAgent], state: State) -> list[str]:
    return [each.id for each in agents if each.state is state]


def _new(known: set[str], ids: Sequence[str]) -> list[str]:
    """Those that are not known yet, which then are."""
    fresh = [each for each in ids if each not in known]
    known.update(fresh)
    return fresh


def _check_number(agents: int) -> None:
    if not 1 <= agents <= MOST_AGENTS:
        raise UserError(f"{agents} agents: give a number from 1 to {MOST_AGENTS}")


def _taken(name: str, agents: int) -> Conflict:
    return Conflict(
        f"there is a pool {name} with {agents} agents; `pool scale {name} N` resizes it, `pool down {name}` "
        "ends it"
    )


def unknown(name: str) -> NotFound:
    """The error about a pool that has no agents."""
    return NotFound(f"there is no pool {name}, or all its agents have ended; see `supervisorctl pool list`")
