"""The end of a node whose agent does not come back: all that it ran is fenced, and etcd is told (rule 3).

The leader then replaces the node's tasks without a wait for D. That is safe because this process holds the
lock of the state directory all the time: no agent runs that could start anything, and none can begin before
this process ends. A launcher without an agent starts nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from agent.boundaries import Runtime, StateFile
from agent.state_file_check import end_all
from supervisor.adapters.failpoints import effect
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Clock, Coordination, Logger, ModifiedAt, Put
from supervisor.contract.errors import CoordinationUnreachable, Refused, TfSupervisorError, UserError
from supervisor.contract.observed import Incarnation
from supervisor.contract.timing import Timing

AGAIN_S = 0.1
LEASE_DS = 2
"""The lease of the key lasts for so many times D, so that the leader reads `fenced` before the key goes."""


@dataclass(frozen=True, slots=True)
class Fencing:
    """A node, and the parts of the machine and of etcd that `fence_node` uses."""

    node: str
    timing: Timing
    state_file: StateFile
    runtime: Runtime
    coordination: Coordination
    clock: Clock
    sink: Logger


async def fence_node(given: Fencing) -> None:
    """Fence all that this node's agent has started, and write into the node's key that nothing is left.

    Does not return while a process lives that cannot be killed. Raises Conflict (an agent runs on the state
    directory: nothing was done), UserError, Refused (the tasks are dead, and D is waited for).
    """
    record = given.state_file.read()
    if record is None:
        given.sink.info("nothing to fence: no agent has run on this state directory")
        return
    if record.node != given.node:
        raise UserError(f"the state directory belongs to node {record.node!r}, this is {given.node!r}")
    await end_all(record, given.runtime, given.sink)
    given.sink.info("all tasks of this node are dead", incarnation=record.incarnation)
    own = {record.incarnation, *record.succeeds}
    # As long as etcd may need to have a leader again. A machine that goes down is not kept for longer.
    until_ms = given.clock.now_ms() + given.timing.etcd_failover_ms + 2 * given.timing.rpc_deadline_ms
    while not await _told(given, own):
        if given.clock.now_ms() > until_ms:
            raise Refused("etcd could not be told that this node's tasks are dead: D is waited for")
        await asyncio.sleep(AGAIN_S)


async def _told(given: Fencing, own: set[str]) -> bool:
    """Whether etcd knows it now. Raises Refused where the node's key is not this agent's."""
    key = keys.node(given.node)
    try:
        held = await given.coordination.get(key)
        if held is None:
            raise Refused(f"the key of node {given.node} is gone, so that its loss is known: D is waited for")
        life = codec.decode(Incarnation, held.value)
        if life.incarnation not in own:
            raise Refused(
                f"another agent, incarnation {life.incarnation}, holds the key of node {given.node}"
            )
        with effect("fencing.lease", CoordinationUnreachable):
            lease = await given.coordination.grant(
                max(given.timing.node_lease_s, LEASE_DS * life.d_ms // 1000)
            )
        # Over the very key that was read: from here on no write of the dead agent takes effect (rule 2).
        with effect("fencing.tell", CoordinationUnreachable):
            told = await given.coordination.txn(
                [ModifiedAt(key, held.mod_revision)],
                [Put(key, codec.encode(replace(life, fenced=True)), lease)],
            )
    except TfSupervisorError as error:
        if not error.retryable:
            raise
        given.sink.warning("etcd cannot be told yet that this node's tasks are dead", reason=str(error))
        return False
    if told.succeeded:
        given.sink.info("etcd knows that this node's tasks are dead", incarnation=life.incarnation)
    return told.succeeded
