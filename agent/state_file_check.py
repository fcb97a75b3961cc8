"""A state file that is not the newest one: it was restored, or the disk lost a synced write.

Such a file does not name all processes here, or a later save is known. An agent that trusted it could report
a living task dead, or start it a second time. So all processes of this node end before it registers (rule
12).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from agent.boundaries import Outside, Process, Runtime
from agent.core.saved import adopt
from agent.core.saved.record import AgentRecord, Saved
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Logger

AGAIN_S = 0.1


async def strange_lives(record: AgentRecord | None, saved: Saved | None, outside: Outside) -> tuple[str, ...]:
    """Lives of this agent that may be missing in its state file: that of a later record, and those of
    launchers.

    Empty if the file can be trusted. Otherwise no process of this node is alive when this returns: it waits
    for those that cannot be killed.
    """
    living = await outside.runtime.living()
    unknown = adopt.unknown(record, living.keys())
    later = saved if adopt.is_older(record, saved) else None
    if not unknown and later is None:
        return ()
    outside.sink.error(
        "the state file is not the newest: all tasks on this node are killed, and none is adopted",
        unknown=unknown,
        launchers=len(living),
        incarnation=record.incarnation if record is not None else "",
        serial=record.serial if record is not None else 0,
        saved=saved.serial if saved is not None else 0,
    )
    await end_all(record, outside.runtime, outside.sink)
    lives = [later.incarnation] if later is not None else []
    return tuple(dict.fromkeys((*lives, *(each.rpartition("-")[0] for each in unknown))))


async def end_all(record: AgentRecord | None, runtime: Runtime, sink: Logger) -> None:
    """Kill all processes of this node's launchers. Returns when none is seen; some may never die."""
    told = False
    # Of an earlier boot it names processes that are somebody else's now.
    known = record if record is not None and record.boot_id == runtime.boot_id() else None
    while left := await _kill(runtime, to_kill(known, await runtime.living())):
        if not told:
            sink.error("killed processes are still there; it is waited until they are gone", processes=left)
        told = True
        await asyncio.sleep(AGAIN_S)


async def _kill(runtime: Runtime, roots: Mapping[str, Iterable[Process]]) -> int:
    """Kill all launchers at once; returns the number of processes that are still seen."""
    with effect("agent.fence_strange"):
        rounds = (runtime.fence(launcher_id, tuple(each)) for launcher_id, each in roots.items())
        left = sum(await asyncio.gather(*rounds))
    return left or len(await runtime.living())


def to_kill(
    record: AgentRecord | None, living: Mapping[str, tuple[Process, ...]]
) -> dict[str, list[Process]]:
    """Launcher -> its processes: those found on the machine, and those of it and its attempts in the file.

    Processes that the file marks as dead are left out: they may have ended with an earlier boot of the
    machine.
    """
    roots = {launcher_id: list(processes) for launcher_id, processes in living.items()}
    if record is not None:
        known = [(each.launcher_id, each.pid, each.start_ticks) for each in record.launchers]
        live = [each for each in record.attempts if each.end is None or not each.end.confirmed_dead]
        known += [(each.launcher_id, each.pid, each.start_ticks) for each in live]
        for launcher_id, pid, start_ticks in known:
            roots.setdefault(launcher_id, []).extend([Process(pid, start_ticks)] if pid else [])
    return roots
