"""etcd's own maintenance calls, each to the member that it is about, over a fresh connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
from aetcd import rpc
from google.protobuf.unknown_fields import UnknownFieldSet

from supervisor.adapters.certificates.reload import Certificates
from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.adapters.etcd.client import map_error
from supervisor.adapters.etcd.endpoints import Endpoint, open_channel
from supervisor.contract.errors import CoordinationUnreachable, Refused, TfSupervisorError
from supervisor.contract.etcd_member import EtcdMaintenance, EtcdMember

STATUS_S = 2.0
CALL_S = 10.0
DEFRAGMENT_S = PHYSICAL_S = 600.0
FREED_S, STEADY_S, AGAIN_S = 60.0, 1.0, 0.2
"""A compaction has freed its room once no member's data have shrunk for STEADY_S; or after FREED_S."""
_QUOTA_FIELD = 12
"""`dbSizeQuota` of StatusResponse, since etcd 3.6."""


class EtcdCalls(EtcdMaintenance):
    """The maintenance calls of the configured members."""

    def __init__(self, endpoints: Sequence[str], tls: TlsFiles | None) -> None:
        self._endpoints = [Endpoint.parse(text, tls) for text in endpoints]
        self._certificates = Certificates(tls) if tls is not None else None

    async def members(self) -> Sequence[EtcdMember]:
        """The status of each configured member, asked all at once. One that has two addresses counts once."""
        found = await asyncio.gather(*(self._status(each) for each in self._endpoints))
        alone = {each.member_id or each.endpoint: each for each in reversed(found)}
        return tuple(each for each in found if alone[each.member_id or each.endpoint] is each)

    async def compact(self, revision: int, *, physical: bool = False) -> None:
        """Ask the members in turn until one has compacted; with `physical` wait until all have made room.

        The answer of one member says nothing of the others. That a revision "has been compacted" says nothing
        of the room.
        """
        request = rpc.CompactionRequest(revision=revision, physical=physical)

        async def ask(channel: grpc.aio.Channel) -> None:
            await rpc.KVStub(channel).Compact(request, timeout=PHYSICAL_S if physical else CALL_S)

        try:
            await self._ask_any(ask)
        except Refused as error:
            if "has been compacted" not in str(error):
                raise
        if physical:
            await self._freed()

    async def _freed(self) -> None:
        least: dict[str, int] = {}
        loop = asyncio.get_running_loop()
        until, fell = loop.time() + FREED_S, loop.time()
        while loop.time() < min(until, fell + STEADY_S):
            for each in await self.members():
                if not each.problem and each.used_bytes < least.setdefault(each.endpoint, each.used_bytes):
                    least[each.endpoint], fell = each.used_bytes, loop.time()
            await asyncio.sleep(AGAIN_S)

    async def defragment(self, endpoint: str) -> None:
        """Returns when the member has rewritten its file."""
        async with self._channel(self._endpoint(endpoint)) as channel:
            await rpc.MaintenanceStub(channel).Defragment(rpc.DefragmentRequest(), timeout=DEFRAGMENT_S)

    async def move_leader(self, leader: EtcdMember, target: EtcdMember) -> None:
        """Let another member lead."""
        request = rpc.MoveLeaderRequest(targetID=target.member_id)
        async with self._channel(self._endpoint(leader.endpoint)) as channel:
            await rpc.MaintenanceStub(channel).MoveLeader(request, timeout=CALL_S)

    async def disarm(self) -> None:
        """Ask the members in turn until one has ended the alarm of all."""

        async def ask(channel: grpc.aio.Channel) -> None:
            stub, no_space = rpc.MaintenanceStub(channel), rpc.AlarmType.Value("NOSPACE")
            raised = await stub.Alarm(rpc.AlarmRequest(action=rpc.AlarmRequest.GET), timeout=CALL_S)
            for each in raised.alarms:
                if each.alarm == no_space:
                    end = rpc.AlarmRequest(
                        action=rpc.AlarmRequest.DEACTIVATE, memberID=each.memberID, alarm=no_space
                    )
                    await stub.Alarm(end, timeout=CALL_S)

        await self._ask_any(ask)

    def _endpoint(self, text: str) -> Endpoint:
        return next(each for each in self._endpoints if each.text == text)

    async def _ask_any(self, ask: Callable[[grpc.aio.Channel], Awaitable[None]]) -> None:
        errors: list[TfSupervisorError] = []
        for endpoint in self._endpoints:
            try:
                async with self._channel(endpoint) as channel:
                    await ask(channel)
                return
            except CoordinationUnreachable as error:
                errors.append(error)
        raise errors[0]

    async def _status(self, endpoint: Endpoint) -> EtcdMember:
        silent = EtcdMember(endpoint=endpoint.text)
        try:
            async with self._channel(endpoint) as channel:
                status = await rpc.MaintenanceStub(channel).Status(rpc.StatusRequest(), timeout=STATUS_S)
        except Refused as error:
            return replace(silent, problem=str(error), refused=True)
        except TfSupervisorError as error:
            return replace(silent, problem=str(error))
        if not status.leader:
            return replace(silent, problem="this member knows no leader")
        told = "\n".join(status.errors)
        rest = UnknownFieldSet(status)
        unknown = [rest[index] for index in range(len(rest))]
        quota = [each.data for each in unknown if each.field_number == _QUOTA_FIELD]
        return EtcdMember(
            endpoint=endpoint.text,
            member_id=int(status.header.member_id),
            leads=status.leader == status.header.member_id,
            revision=int(status.header.revision),
            file_bytes=int(status.dbSize),
            used_bytes=int(status.dbSizeInUse),
            quota_bytes=int(quota[0]) if quota else 0,
            full="NOSPACE" in told,
            corrupt="CORRUPT" in told,
        )

    @asynccontextmanager
    async def _channel(self, endpoint: Endpoint) -> AsyncIterator[grpc.aio.Channel]:
        channel = open_channel(endpoint, self._certificates)
        try:
            yield channel
        except grpc.aio.AioRpcError as error:
            raise _mapped(error) from error
        finally:
            await channel.close()


def _mapped(error: grpc.aio.AioRpcError) -> TfSupervisorError:
    # etcd 3.4 says it with the code UNKNOWN.
    if error.code() is grpc.StatusCode.UNAUTHENTICATED or "permission denied" in (error.details() or ""):
        return Refused(f"etcd: {error.details()}")
    return map_error(error)
