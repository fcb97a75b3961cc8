"""Calls of agents' `Node` services. Each has a deadline, so that a frozen agent cannot hold up its caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

import grpc

from supervisor.contract import codec
from supervisor.contract.errors import NotFound, Unreachable
from supervisor.contract.ids import TaskId
from supervisor.contract.pool.record import pool_of, server_name
from supervisor.control.decide.facts.history import check_task
from supervisor.control.decide.snapshot import JobState, Snapshot
from supervisor.wire.failures import from_failure, read_failure
from supervisor.wire.rpc import Guard
from supervisor.wire.tfsup_pb2 import Record

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class AgentAddress:
    """The address of an agent. `server`: its name in a certificate of the supervisors, else empty."""

    at: str
    server: str = ""

    def __str__(self) -> str:
        return self.at


class Agents:
    """Connections for as long as one request of a client lasts: `async with Agents(guard) as agents`."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._channels: dict[AgentAddress, grpc.aio.Channel] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def ask(
        self, address: AgentAddress, method: str, request: object, kind: type[R], timeout_s: float
    ) -> R:
        """Make one call. Raises the error that the agent answers, Unreachable after `timeout_s`."""
        call = self._channel(address).unary_unary(
            f"/tfsup.v1.Node/{method}",
            request_serializer=Record.SerializeToString,
            response_deserializer=Record.FromString,
        )
        body = Record(json=codec.encode(request))
        try:
            reply = await call(body, timeout=timeout_s, metadata=self._guard.metadata())
        except grpc.aio.AioRpcError as error:
            await self._fail(address, error)
            raise
        return codec.decode(kind, reply.json)

    async def stream(
        self, address: AgentAddress, method: str, request: object, kind: type[R], silence_s: float
    ) -> AsyncGenerator[R, None]:
        """Read a stream. Raises the error that the agent answers, Unreachable after `silence_s` without a
        message.
        """
        call = self._channel(address).unary_stream(
            f"/tfsup.v1.Node/{method}",
            request_serializer=Record.SerializeToString,
            response_deserializer=Record.FromString,
        )(Record(json=codec.encode(request)), metadata=self._guard.metadata())
        try:
            while True:
                async with asyncio.timeout(silence_s):
                    item = await call.read()
                if not isinstance(item, Record):
                    return
                yield codec.decode(kind, item.json)
        except TimeoutError as error:
            raise Unreachable(f"the agent at {address} has been silent for {silence_s:g} s") from error
        except grpc.aio.AioRpcError as error:
            await self._fail(address, error)
            raise
        finally:
            call.cancel()

    async def _fail(self, address: AgentAddress, error: grpc.aio.AioRpcError) -> None:
        failure = read_failure(error)
        if failure is not None:
            raise from_failure(failure) from error
        # gRPC's own reconnect waits longer than we want to.
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.close()
        raise Unreachable(f"the agent at {address} does not answer: {error.code().name}") from error

    def _channel(self, address: AgentAddress) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = self._guard.channel(address.at, address.server)
        return self._channels[address]


def address_of(snap: Snapshot, node: str) -> AgentAddress:
    """The address of a node's agent; raises Unreachable if none is registered."""
    picture = snap.nodes.get(node)
    if picture is None or picture.incarnation is None:
        raise Unreachable(f"the agent of {node} is not registered")
    pool = snap.pools.get(pool_of(node))
    server = server_name(node, pool.value.id) if pool is not None else ""
    return AgentAddress(picture.incarnation.value.address, server)


def node_of(job: JobState, task: TaskId) -> str:
    """The node of a task by the plan in force; raises NotFound."""
    check_task(job, task)
    plan = job.plan_in_force
    for placement in plan.value.placements if plan is not None else ():
        if placement.member == task.member and not job.switch.value.phase.ended:
            return placement.node
    raise NotFound(f"{task} does not run at the moment; see `supervisorctl status {job.name}`")
