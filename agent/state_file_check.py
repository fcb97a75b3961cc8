"""A state file that is not the last one: it was put back, or the disk lost what it had synced.

It does not know what runs here, or a later one is known to have been saved. What is in it cannot be told from
what has happened since. An agent that believed it could report a living task dead, or start it again beside
itself; so everything of this node ends before it registers (rule 12).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from agent.boundaries import Outside, Process, Runtime
from agent.core.saved import adopt
from agent.core.saved.record import AgentRecord, Saved
from supervisor.adapters.failpoints import effect

AGAIN_S = 0.1


async def strange_lives(record: AgentRecord | None, saved: Saved | None, outside: Outside) -> tuple[str, ...]:
    """Lives of this agent that its state file may not know: that of a later record, and those of launchers.

    Empty where the file is to be trusted. Else, when this returns, nothing of this node lives any more: what
    cannot be killed is waited for.
    """
    living = await outside.runtime.living()
    unknown = adopt.unknown(record, living.keys())
    later = saved if adopt.is_older(record, saved) else None
    if not unknown and later is None:
        return ()
    outside.sink.error(
        "the state file is not the last one: all that runs on this node is killed, and nothing taken over",
        unknown=unknown,
        launchers=len(living),
        incarnation=record.incarnation if record is not None else "",
        serial=record.serial if record is not None else 0,
        saved=saved.serial if saved is not None else 0,
    )
    told = False
    # Of an earlier boot it names processes that are somebody else's now.
    known = record if record is not None and record.boot_id == outside.runtime.boot_id() else None
    while left := await _kill(outside.runtime, to_kill(known, living)):
        if not told:
            outside.sink.error("what runs here does not die: this node waits for it", processes=left)
        told = True
        await asyncio.sleep(AGAIN_S)
        living = await outside.runtime.living()
    lives = [later.incarnation] if later is not None else []
    return tuple(dict.fromkeys((*lives, *(each.rpartition("-")[0] for each in unknown))))


async def _kill(runtime: Runtime, roots: Mapping[str, Iterable[Process]]) -> int:
    """All launchers at once; how many processes are still seen."""
    with effect("agent.fence_strange"):
        rounds = (runtime.fence(launcher_id, tuple(each)) for launcher_id, each in roots.items())
        left = sum(await asyncio.gather(*rounds))
    return left or len(await runtime.living())


def to_kill(
    record: AgentRecord | None, living: Mapping[str, tuple[Process, ...]]
) -> dict[str, list[Process]]:
    """By launcher: what is seen of it, and what the file says that it and its attempts are.

    Not those that it knows to be dead: they may have ended with an earlier boot of the machine.
    """
    roots = {launcher_id: list(processes) for launcher_id, processes in living.items()}
    if record is not None:
        known = [(each.launcher_id, each.pid, each.start_ticks) for each in record.launchers]
        live = [each for each in record.attempts if each.end is None or not each.end.confirmed_dead]
        known += [(each.launcher_id, each.pid, each.start_ticks) for each in live]
        for launcher_id, pid, start_ticks in known:
            roots.setdefault(launcher_id, []).extend([Process(pid, start_ticks)] if pid else [])
    return roots
